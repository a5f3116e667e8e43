"""The command that shows the state of the loop: status."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, json_option, pass_call

if TYPE_CHECKING:
    from streams.tools.doctor import DoctorFinding
    from streams.tools.status import LoopStatus


@click.command()
@json_option
@pass_call
def status(call: AppContext, output: str) -> None:
    """Show the whole loop on one screen.

    Who lives, what each process waits for, which scorers are paused, what was dropped and who serves. It reads the log
    and changes nothing. A process is alive while it is a member of its consumer group. Drops are those of the last
    hour: dead letters, and groups that were not trained on, with the reason.
    """
    from streams.tools import status as loop
    from streams.tools.doctor import disk

    found, rooms = loop.look(call.settings), list(disk(call.settings))
    plain = _plain(call, found, rooms)
    if output == "json":
        from streams import output as show

        print(show.json_line(plain))
        return
    _show(plain)


def _plain(call: AppContext, found: LoopStatus, rooms: list[DoctorFinding]) -> dict[str, Any]:
    settings = call.settings
    return {
        "bootstrap": settings.kafka.bootstrap,
        "prefix": settings.topics.prefix,
        "processes": [asdict(process) for process in found.processes],
        "policies": [
            {
                "policy": name,
                "primary": one.state.primary,
                "candidate": one.state.serving.candidate,
                "share": one.state.serving.share,
                "newest": one.state.newest,
                "batches": one.admission.sequence,
                "waiting_batches": one.waiting_batches,
                "next_batch_groups": one.admission.pending,
            }
            for name, one in found.policies.items()
        ],
        "dropped": [asdict(one) for one in found.dropped],
        "paused": found.paused,
        "disk": [{"state": room.state, "what": room.what} for room in rooms],
    }


def _show(found: dict[str, Any]) -> None:
    from streams import output as show

    print(f"{found['prefix']}* at {found['bootstrap']}\n")
    columns = [
        show.Column(
            "process", lambda row: " ".join(part for part in (row["process"], row["policy"], row["agent"]) if part)
        ),
        show.Column("alive", "alive", right=True),
        show.Column("lag", "lag", right=True),
        show.Column("what it waits for", "waits_for"),
    ]
    show.rows(found["processes"], columns, "table")
    print()
    columns = [
        show.Column("policy", "policy"),
        show.Column("serves", _serves),
        show.Column("newest", "newest", right=True),
        show.Column("batches", "batches", right=True),
        show.Column("untrained", "waiting_batches", right=True),
        show.Column("groups in the next", "next_batch_groups", right=True),
    ]
    show.rows(found["policies"], columns, "table")
    for error in found["paused"]:
        print(f"\nscoring: {error}")
    print("\ndropped in the last hour" + ("" if found["dropped"] else ": nothing"))
    if found["dropped"]:
        names = ("what", "stage", "reason", "count")
        show.rows(found["dropped"], [show.Column(name, name, right=name == "count") for name in names], "table")
    print()
    show.rows(found["disk"], [show.Column("disk", "state"), show.Column("what", "what")], "table")


def _serves(row: dict[str, Any]) -> str:
    if row["candidate"] is None:
        return str(row["primary"])
    return f"{row['primary']}, and {row['candidate']} for {row['share']:.0%}"
