"""Decide what a rule does next, from the log alone.

    RuleState, RuleEvidence, now ──► due ──► ticked: a time has come │ crossed: a reason and its evidence │ nothing

`due` is a function: no clock, no I/O. An event has the number of those before it, so if two processes decide the same,
the first in the log counts. Each tick is written once; of several missed ticks only the newest is written. The first
tick of a rule records when its schedule began, and starts nothing.

Until the job of the last crossing has ended there is no other crossing; evidence is still folded. A crossing resets
every count and every reference, so a lasting fall starts one job, not one with every look.
"""

from __future__ import annotations

from plugins.improve.triggers.evidence import RuleEvidence
from plugins.improve.triggers.rule import SIGNALS, RetrainRule, Signal
from plugins.improve.triggers.rule_state import RuleState
from plugins.improve.triggers.tick_schedule import TickSchedule
from plugins.jobs.log.job_log import job_id_of
from schemas.events import TriggerEvent, derive_id
from streams.output import moment

STAGE = "retrain"
"""The actor of its events."""


def due(
    rule: RetrainRule, state: RuleState, evidence: RuleEvidence, now_ms: int, *, job_runs: bool
) -> TriggerEvent | None:
    """Return the next event of a rule, or None. `job_runs`: the job of its last crossing has not ended."""
    if (schedule := rule.when.schedule) is not None:
        tick = tick_event(state, schedule, now_ms, policy=rule.policy, tenant=rule.tenant, digest=rule.digest)
        if tick is not None:
            return tick
    if job_runs:
        return None
    signal = next((signal for signal in SIGNALS if is_due(rule, state, evidence, signal)), None)
    return None if signal is None else _crossing(rule, state, evidence, signal, now_ms)


def is_due(rule: RetrainRule, state: RuleState, evidence: RuleEvidence, signal: Signal) -> bool:
    """Return whether a signal is a reason now."""
    if signal == "promotable":
        return rule.when.promotable is not None and len(evidence.promoted) >= rule.when.promotable
    if signal == "schedule":
        return rule.when.schedule is not None and state.has_open_tick and state.ticks > 1
    detector = evidence.detectors.get(signal)
    return detector is not None and detector.has_fallen


def tick_event(
    state: RuleState, schedule: TickSchedule, now_ms: int, *, policy: str, tenant: str | None, digest: str
) -> TriggerEvent | None:
    """Return the newest tick of a rule if it is not in the log; None if it is, or a later one."""
    due_at = schedule.newest(now_ms)
    if due_at <= state.last_tick_ms:
        return None
    return TriggerEvent(
        event_id=derive_id(state.rule, "ticked", state.sequence),
        rule=state.rule,
        created_at=now_ms,
        kind="ticked",
        sequence=state.sequence,
        policy=policy,
        tenant=tenant,
        actor=STAGE,
        reason="the schedule begins" if state.ticks == 0 else f"it is {moment(due_at)}",
        rule_digest=digest,
        due_at=due_at,
    )


def _crossing(rule: RetrainRule, state: RuleState, evidence: RuleEvidence, signal: Signal, now_ms: int) -> TriggerEvent:
    event_id = derive_id(rule.name, "crossed", state.sequence)
    return TriggerEvent(
        event_id=event_id,
        rule=rule.name,
        created_at=now_ms,
        kind="crossed",
        sequence=state.sequence,
        policy=rule.policy,
        tenant=rule.tenant,
        actor=STAGE,
        reason=reason_of(rule, state, evidence, signal),
        rule_digest=rule.digest,
        due_at=state.last_tick_ms if signal == "schedule" else None,
        signal=signal,
        action=rule.actions[state.crossings % len(rule.actions)],
        job_id=job_id_of(rule.tenant, event_id),
        evidence=figures(evidence, signal),
        ranges=evidence.ranges(),
    )


def figures(evidence: RuleEvidence, signal: Signal) -> dict[str, float]:
    """Return the evidence of a crossing: that of its signal, and what was read."""
    counts = {"version": evidence.version, "runs": evidence.runs, "promoted": len(evidence.promoted)}
    detector = evidence.detectors.get(signal)
    return {name: float(count) for name, count in counts.items()} | ({} if detector is None else detector.figures())


def reason_of(rule: RetrainRule, state: RuleState, evidence: RuleEvidence, signal: Signal) -> str:
    """Return a signal and its evidence in words."""
    if signal == "promotable":
        return f"newly promoted runs: {len(evidence.promoted)}, of {rule.when.promotable} that are needed"
    if signal == "schedule":
        return f"its time was {moment(state.last_tick_ms)}"
    detector = evidence.detectors[signal]
    share = "the share of runs that end well" if signal == "failure" else f"the mean {signal}, of its range,"
    return (
        f"{share} was {detector.figures()['reference_mean']:.3f} over {detector.reference_count} and has been "
        f"{detector.figures()['mean']:.3f} over the {detector.count} since: e-value {detector.peak:.3g}"
    )
