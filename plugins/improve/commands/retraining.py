"""The commands of retraining rules: improve retrain follow, check, list.

retrain.toml ──► the log's evidence ──► a crossing ──► a job
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, begin, output_option, pass_call, until_stopped

if TYPE_CHECKING:
    from plugins.improve.triggers.evidence import RuleEvidence
    from plugins.improve.triggers.rule import RetrainRule
    from plugins.improve.triggers.rule_state import RuleState
    from plugins.jobs.log.job_log import JobLog
    from schemas.events import TriggerEvent
    from streams.output import Output

rule_option = click.option(
    "--rule",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.toml",
    help="The rule: what is a reason to retrain, and what is done then (docs/improve.md).",
)


@click.group()
def retrain() -> None:
    """Start a retraining when there is a reason to."""


@retrain.command("follow")
@rule_option
@pass_call
def retrain_follow(call: AppContext, /, file: Path) -> None:
    """Follow a rule, and start its jobs.

    A reason is so many newly promoted runs, a fall of reward, feedback or success, or a time. Each starts one job, and
    its event in the topic triggers has the evidence. The process keeps nothing: after a kill it continues from the
    log, and two that follow one rule start one job. SIGTERM or Ctrl-C ends it.
    """
    from plugins.improve.triggers import retrain_controller
    from plugins.improve.triggers.rule import read_rule

    rule = read_rule(file)
    call.working = True
    with until_stopped() as stop:
        begin(call, "retrain", "groups and curation")
        retrain_controller.run(call.settings_to_write, rule, stop=stop)


@retrain.command("check")
@rule_option
@output_option
@pass_call
def retrain_check(call: AppContext, /, file: Path, output: Output) -> None:
    """Print how far each signal of a rule is from a crossing. Nothing is written."""
    from plugins.improve.triggers.retrain_controller import RetrainController
    from plugins.improve.triggers.rule import read_rule
    from plugins.improve.triggers.trigger_log import TriggerLog
    from plugins.jobs.log.job_log import JobLog
    from streams import output as show

    rule = read_rule(file)
    with (
        TriggerLog(call.settings) as trigger_log,
        JobLog(call.settings) as job_log,
        RetrainController(call.settings, rule, trigger_log, job_log) as controller,
    ):
        evidence = controller.catch_up()
        rows = _signals(rule, controller.state, evidence)
        if controller.job_runs:
            click.echo("the job of the last crossing has not ended: there is no other before", err=True)
    columns = [show.Column(name, name) for name in ("signal", "now", "needed", "due", "evidence")]
    show.rows(rows, columns, output)


def _signals(rule: RetrainRule, state: RuleState, evidence: RuleEvidence) -> list[dict[str, Any]]:
    """Return a row for each signal of a rule."""
    from plugins.improve.triggers.detector import THRESHOLD
    from plugins.improve.triggers.retrain_reducer import is_due, reason_of
    from streams.kafka.times import now_ms
    from streams.output import moment

    rows: list[dict[str, Any]] = []
    for signal, detector in evidence.detectors.items():
        words = reason_of(rule, state, evidence, signal) if detector.has_reference else "the reference is not complete"
        progress = f"{detector.peak:.3g}" if detector.has_reference else f"{detector.reference_count} values"
        needed = f"{THRESHOLD:g}" if detector.has_reference else f"{detector.window} values"
        rows.append({"signal": signal, "now": progress, "needed": needed, "evidence": words})
    if (count := rule.when.promotable) is not None:
        words = f"{evidence.runs} runs since the last crossing"
        rows.append(
            {"signal": "promotable", "now": str(len(evidence.promoted)), "needed": str(count), "evidence": words}
        )
    if (schedule := rule.when.schedule) is not None:
        following = moment(schedule.newest(now_ms()) + schedule.period_ms)
        last = "none yet" if state.tick is None else moment(state.last_tick_ms)
        rows.append({"signal": "schedule", "now": last, "needed": following, "evidence": f"{state.ticks} ticks"})
    return [row | {"due": "yes" if is_due(rule, state, evidence, row["signal"]) else "no"} for row in rows]


@retrain.command("list")
@click.option("--rule", "name", metavar="NAME", help="Only events of this rule.")
@click.option("--ticks", is_flag=True, help="Print ticks, too.")
@output_option
@pass_call
def retrain_list(call: AppContext, /, name: str | None, ticks: bool, output: Output) -> None:
    """Print what started jobs, oldest first, with each job."""
    from plugins.improve.triggers.trigger_log import TriggerLog
    from plugins.jobs.log.job_log import JobLog
    from streams import output as show

    with TriggerLog(call.settings) as trigger_log, JobLog(call.settings, with_months=False) as job_log:
        events = [event for event in trigger_log.events(name) if ticks or event.kind == "crossed"]
        rows = [_row(event, job_log) for event in events]
    columns = [
        show.Column("time", "created_at"),
        *(show.Column(column, column) for column in ("rule", "signal", "action")),
        show.Column("job", lambda row: None if row["job_id"] is None else row["job_id"][:8]),
        *show.columns("status, reason"),
    ]
    show.rows(rows, columns, output)


def _row(event: TriggerEvent, job_log: JobLog) -> dict[str, Any]:
    from streams.output import moment

    job = None if event.job_id is None else job_log.find(event.job_id)
    return {
        "created_at": moment(event.created_at),
        "rule": event.rule,
        "kind": event.kind,
        "sequence": event.sequence,
        "signal": event.signal,
        "action": event.action,
        "due_at": event.due_at,
        "job_id": event.job_id,
        "status": None if job is None else job.status,
        "reason": event.reason,
        "evidence": event.evidence,
        "rule_digest": event.rule_digest,
    }
