"""The commands that show the state of the loop and check its set-up: status, doctor."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, json_option, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output
    from streams.tools.doctor import DoctorFinding
    from streams.tools.status import LoopStatus


@click.command()
@json_option
@pass_call
def status(call: AppContext, output: str) -> None:
    """Show the whole loop on one screen.

    Shows whether each policy moves or is stuck, which processes are alive and what each waits for, the serving versions
    and what the last step taught, failing and paused scorers, transactions that keep readers waiting, and drops. It
    reads the log and changes nothing. A process is alive while it is a member of its consumer group. Drops are those of
    the last hour: dead letters, and groups that were not trained on, with the reason.
    """
    from streams.kafka import times
    from streams.tools import status as loop
    from streams.tools.doctor import disk
    from streams.tools.standstill import standstills

    now_ms = times.now_ms()
    state = loop.look(call.settings, now_ms=now_ms)
    plain = _plain(call, state, list(disk(call.settings)))
    rows = standstills(call.settings, state, now_ms)
    plain["motion"] = [{"policy": row.policy, "motion": row.motion, "text": str(row)} for row in rows]
    plain["diagnoses"] = {name: str(diagnosis) for name, diagnosis in loop.diagnoses(call.settings, state).items()}
    if output == "json":
        from streams import output as show

        print(show.json_line(plain))
        return
    _show(plain)


def _plain(call: AppContext, state: LoopStatus, disks: list[DoctorFinding]) -> dict[str, Any]:
    settings = call.settings
    return {
        "bootstrap": settings.kafka.bootstrap,
        "prefix": settings.topics.prefix,
        "processes": [asdict(process) for process in state.processes],
        "policies": [
            {
                "policy": name,
                "primary": policy.state.primary,
                "candidate": policy.state.serving.candidate,
                "share": policy.state.serving.share,
                "newest": policy.state.newest,
                "newest_changes_nothing": policy.state.versions[policy.state.newest].is_unchanged,
                "batches": policy.admission.sequence,
                "waiting_batches": policy.waiting_batches,
                "next_batch_groups": policy.admission.pending,
                "last_step": None if (learning := policy.learning.last_step()) is None else learning.plain(),
            }
            for name, policy in state.policies.items()
        ],
        "dropped": [asdict(drop) for drop in state.dropped],
        "paused": state.paused,
        "failing": [asdict(scorer) for scorer in state.failing],
        "open_transactions": [transaction.row() for transaction in state.transactions],
        "disk": [{"state": finding.state, "what": finding.what} for finding in disks],
        "ended": None if any(process.alive for process in state.processes) else _ended_run(call),
    }


def _ended_run(call: AppContext) -> str | None:
    """Return the run whose settings these are, e.g. `up`: its processes end with it."""
    from streams.demo.settings_file import run_here

    return run_here() if call.config is None else None


def _show(state: dict[str, Any]) -> None:
    from streams import output as show

    print(f"{state['prefix']}* at {state['bootstrap']}\n")
    for row in state["motion"]:
        print(f"{show.printable(row['text'])}\n")
    if state["ended"]:
        run = f"`streamward {state['ended']}`"
        print(f"{run} has ended with all its processes; run it again to continue from the log.\n")
    columns = [
        show.Column(
            "process", lambda row: " ".join(part for part in (row["process"], row["policy"], row["agent"]) if part)
        ),
        *show.columns(">alive, >lag, what it waits for=waits_for"),
    ]
    show.rows(state["processes"], columns, "table")
    print()
    columns = [
        show.Column("policy", "policy"),
        show.Column("serves", _serves),
        show.Column("newest", _newest, right=True),
        *show.columns(">batches, >untrained=waiting_batches, >groups in the next=next_batch_groups"),
        show.Column("differed in the last step", _difference, right=True),
    ]
    show.rows(state["policies"], columns, "table")
    for name, diagnosis in state["diagnoses"].items():
        print(f"\n{name}: {show.printable(diagnosis)}")
    for error in (*state["paused"], *map(_failing, state["failing"])):
        print(f"\nscoring: {show.printable(error)}")
    for transaction in state["open_transactions"]:
        print(f"\n{transaction['what']}")
    print("\ndropped in the last hour" + ("" if state["dropped"] else ": nothing"))
    if state["dropped"]:
        names = ("what", "stage", "reason", "count")
        show.rows(state["dropped"], [show.Column(name, name, right=name == "count") for name in names], "table")
    print()
    show.rows(state["disk"], [show.Column("disk", "state"), show.Column("what", "what")], "table")


def _difference(row: dict[str, Any]) -> str:
    """Return how many groups of the newest step differed in reward."""
    step = row["last_step"]
    return "" if step is None else f"{step['differed']} of {step['groups']}"


def _failing(scorer: dict[str, Any]) -> str:
    return f"{scorer['answers']} answers of the last hour have no score, the last: {scorer['last_error']}"


def _serves(row: dict[str, Any]) -> str:
    if row["candidate"] is None:
        return str(row["primary"])
    return f"{row['primary']}, and {row['candidate']} for {row['share']:.0%}"


def _newest(row: dict[str, Any]) -> str:
    return f"{row['newest']} (changes nothing)" if row["newest_changes_nothing"] else str(row["newest"])


@click.command()
@click.option(
    "--model",
    metavar="NAME",
    help="Check the tokens and the chat template of a known model, a folder or a cached hub id instead: what ends an "
    "answer, what may be drawn, and each oddity. Needs no settings and no broker.",
)
@output_option
@click.pass_context
@pass_call
def doctor(call: AppContext, ctx: click.Context, model: str | None, output: Output) -> None:
    """Check this set-up and say how to fix it.

    Checks broker, topics, schemas, model and disk, and changes nothing. The exit code is that of the worst finding;
    warnings are 0.
    """
    from streams import output as show
    from streams.tools.doctor import examine, examine_model

    findings = examine(lambda: call.settings_and_origins) if model is None else examine_model(model)
    columns = [
        *show.columns("check, state"),
        show.Column("what", lambda row: f"{row['what']}. {row['do']}" if row["do"] else row["what"]),
    ]
    show.rows([finding.row() for finding in findings], columns, output)
    ctx.exit(max(finding.exit_code for finding in findings))
