"""The commands of curation: improve curate run, follow, queue, show, decide, agreement.

runs that ended ──► gates, judge ──► verdicts             run, follow
verdicts ──► runs that wait for a person ──► a verdict    queue, show, decide
both ──► how well judges agree with people                agreement
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from streams.cli.route_commands import RouteCommand, add_routes
from streams.cli.runtime import AppContext, actor_option, begin, output_option, pass_call, until_stopped, user_name

if TYPE_CHECKING:
    from plugins.improve.curation.ended_run import EndedRun
    from streams.output import Output
    from streams.settings.model import Settings
    from streams.tools.query.finished import FinishedSelection

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def curate() -> None:
    """Judge runs: which are good enough to learn from."""


def _selecting(command: F) -> F:
    """Add the options that choose runs."""
    command = click.option(
        "--purpose",
        type=click.Choice(["serve", "train", "eval"]),
        default="serve",
        show_default=True,
        help="Runs of this purpose.",
    )(command)
    return click.option("--policy", metavar="POLICY", help="Only runs of this policy.  [default: all]")(command)


def _selection(policy: str | None, purpose: Literal["serve", "train", "eval"]) -> FinishedSelection:
    from streams.tools.query.finished import FinishedSelection

    return FinishedSelection(policy=policy, purpose=purpose, unfit=True)


@curate.command("run")
@_selecting
@output_option
@pass_call
def curate_run(
    call: AppContext, /, policy: str | None, purpose: Literal["serve", "train", "eval"], output: Output
) -> None:
    """Judge the runs that have ended, once.

    Each run gets one verdict by a rubric: gates first (improve.gates), then the judge (scoring.judge_url) on the runs
    that pass. A second `run` writes nothing twice. Runs whose keys are another curator's are left to it.
    """
    from plugins.improve.curation.curator import run_once
    from streams import output as show
    from streams.kafka import admin

    settings = call.settings_to_write
    with until_stopped() as stop:
        admin.check_topics(settings, patient=True)
        counts = run_once(settings, _selection(policy, purpose), stop=stop)
    names = ("promote", "reject", "needs_human", "elsewhere")
    show.record({name: counts[name] for name in names}, output)


@curate.command("follow")
@_selecting
@pass_call
def curate_follow(call: AppContext, /, policy: str | None, purpose: Literal["serve", "train", "eval"]) -> None:
    """Judge runs as they end.

    It has no state of its own: after a kill it continues from the log. Several share the runs. SIGTERM or Ctrl-C ends
    it.
    """
    from plugins.improve.curation import curator

    call.working = True
    with until_stopped() as stop:
        begin(call, "curate", "groups and responses")
        curator.follow(call.settings, _selection(policy, purpose), stop=stop)


add_routes(
    curate,
    "plugins.improve.rooms.run_verdicts:VerdictRoutes",
    {
        "queue": RouteCommand(
            "list_review_queue",
            """Print the runs that wait for a person, the oldest first.

            The judge's view is not shown, so that your verdict is your own. `improve curate show` prints a run.
            """,
            columns="run policy agent_id scenario created_at cut",
        ),
    },
)


@curate.command("show")
@click.argument("run", metavar="RUN")
@output_option
@pass_call
def curate_show(call: AppContext, /, run: str, output: Output) -> None:
    """Print a run as its judge sees it.

    Its gates and the verdicts of people follow; the judge's is printed once a person has decided. RUN is an id, or the
    beginning of one that has a verdict.
    """
    from plugins.improve.curation import curation_view
    from plugins.improve.curation.curation_log import CurationLog
    from streams import output as show

    log = CurationLog(call.settings)
    answer_id = log.full_id(run)
    verdicts = log.of_run(answer_id)
    ended = _ended_run(call.settings, answer_id)
    placed = list(verdicts.by_person.values())
    if placed and verdicts.machine is not None:
        placed.append(verdicts.machine)
    rows = [curation_view.verdict(verdict) for verdict in placed]
    if output == "jsonl":
        print(show.json_line({"run": answer_id, "transcript": ended.transcript.lines, "verdicts": rows}))
        return
    for line in ended.transcript.text.splitlines():
        print(show.printable(line))
    print()
    gates = [
        {"gate": gate.gate, "value": gate.value, "bound": gate.bound, "passed": gate.passed} for gate in ended.gates
    ]
    show.rows(gates, [show.Column(name, name) for name in ("gate", "value", "bound", "passed")], "table")
    if rows:
        print()
        show.rows(rows, [show.Column(name, name) for name in ("verdict", "labeller", "actor", "rationale")], "table")


@curate.command("decide")
@click.argument("run", metavar="RUN")
@click.argument("verdict", type=click.Choice(["promote", "reject", "needs_human"]))
@click.option("--reason", required=True, help="Reason to record.")
@actor_option
@output_option
@pass_call
def curate_decide(
    call: AppContext,
    /,
    run: str,
    verdict: Literal["promote", "reject", "needs_human"],
    reason: str,
    actor: str | None,
    output: Output,
) -> None:
    """Write your verdict on a run.

    It stands above a machine's, whenever that comes; neither overwrites the other. Of two people the newest counts.
    RUN is an id, or the beginning of one that has a verdict.
    """
    from plugins.improve.curation import curation_view
    from plugins.improve.curation.curation_log import CurationLog, PersonDecision
    from streams import output as show

    settings = call.settings_to_write
    log = CurationLog(settings)
    ended = _ended_run(settings, log.full_id(run))
    placed = log.decide(ended, PersonDecision(verdict=verdict, actor=actor or user_name(), reason=reason))
    row = curation_view.verdict(placed)
    if output == "table":
        row = {name: row[name] for name in ("run", "verdict", "actor", "rationale", "supersedes", "recorded_at")}
    show.record(row, output)


def _ended_run(settings: Settings, answer_id: str) -> EndedRun:
    from plugins.improve.curation.run_lookup import find_run
    from streams.tools.archive import history

    with _snapshot(settings) as log:
        return find_run(log, history.of(settings), answer_id)


@contextmanager
def _snapshot(settings: Settings) -> Iterator[Any]:
    from streams.tools.views.log_view import LogView

    with closing(LogView(settings)) as view, view.snapshot() as snapshot:
        yield snapshot


@curate.command("agreement")
@output_option
@pass_call
def curate_agreement(call: AppContext, /, output: Output) -> None:
    """Print how well each judge agrees with people.

    A judge promotes alone once it has decided improve.min_runs runs that people decided, too, and the lower end of the
    interval of Cohen's kappa is improve.min_kappa or more.
    """
    from plugins.improve.curation import curation_view
    from plugins.improve.curation.curation_log import CurationLog
    from plugins.improve.settings import Improve
    from streams import output as show

    measured = CurationLog(call.settings).agreements()
    columns = [
        *show.columns("judge=model, >runs"),
        show.Column("kappa", lambda row: f"{row['kappa']:.2f} ({row['kappa_low']:.2f} to {row['kappa_high']:.2f})"),
        show.Column("AC1", lambda row: f"{row['ac1']:.2f}", right=True),
        show.Column("promoted by people", lambda row: _percent(row["prevalence"]), right=True),
        show.Column("false promotions", lambda row: _percent(row["false_promotions"]), right=True),
        show.Column("false rejections", lambda row: _percent(row["false_rejections"]), right=True),
        show.Column("coverage", lambda row: _percent(row["coverage"]), right=True),
        show.Column("disputed", "disputed", right=True),
        show.Column("promotes alone", lambda row: "yes" if row["promotes_alone"] else "no"),
        show.Column("reason", "reason"),
    ]
    rows = [curation_view.agreement(agreement, call.settings.of_plugin(Improve)) for agreement in measured.values()]
    show.rows(rows, columns, output)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"
