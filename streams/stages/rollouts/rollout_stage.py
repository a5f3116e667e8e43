"""Decide which adapter version serves, and record how well each one did on held-out tasks.

    adapters (trained, evaluated, judged, ...) ──► by rollouts.mode ──────────► adapters (judged, canary_started,
    groups of candidate and primary            ──► the canary's evidence ─────►           canary_advanced, promoted,
    groups of pinned eval tasks                ──► the suite is complete ─────►           rejected, evaluated)
    adapters (trained)                         ──► the guard's suite is due ──► tasks (eval)
    all keyed by policy, except the tasks

    direct   the newest trained version is promoted guarded  each version answers guard.suite; once it and the primary
    have a result, the guard judges, and its verdict is applied (guard.decide) canary   a version that passes the guard,
    or any without a suite, answers a growing share of the tasks, one version
             at a time, the newest next; streams/stages/rollouts/canary.py decides what follows
    manual   nothing is decided; the suite is still evaluated

A promotion names the primary it replaces (compare and swap). So this stage has at most one event of its own pending:
versions trained meanwhile are decided once that event is read back, against the primary then in force. If a person was
faster, every reader refuses the event, including this stage, which then decides again. A version older than one with a
decision (promoted, rejected, tried) is skipped.

The canary's evidence waits until `adapters` is read up to the time of each group, so a group's canary follows from the
record times of both topics, at any speed of reading. If a worker reads groups after their canary was decided, it counts
fewer groups and decides nothing.

The row of a policy keeps one short entry per version and per decision, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from schemas.events import AdapterEvent, AdvantagedGroup, Task, derive_id
from schemas.serde import Poison, decode, encode
from streams.adapters.serving import DECISIONS, SWAPS, newest, refusal, step
from streams.adapters.versions import Version
from streams.errors import EventError
from streams.evaluation import results as suite_results, suite_tasks as evaluation
from streams.evaluation.results import short
from streams.kafka.topics import topics
from streams.observability import trace_context
from streams.stages.rollouts import canary, guard
from streams.stages.rollouts.state import (
    DIRECT,
    RolloutRule,
    RolloutState,
    dump,
    load,
    prices_of,
    rule_of,
    waiting,
)

if TYPE_CHECKING:
    from streams.evaluation.suite import Suite
    from streams.kafka.record import Record
    from streams.observability.tracing.tracer import Trace
    from streams.worker.driver import Driver, EventOutlet, TableRows

STAGE = "rollouts"
Results = Callable[[int], AdapterEvent | None]
"""The `evaluated` event of a version on the guard's suite, if there is one."""


# --- the reducer ------------------------------------------------------------------------------------------------------


def _no_results(_: int) -> AdapterEvent | None:
    return None


def reduce(
    state: RolloutState,
    event: AdapterEvent,
    rule: RolloutRule = DIRECT,
    results: Results = _no_results,
    *,
    at_ms: int | None = None,
) -> tuple[RolloutState, Sequence[AdapterEvent | Task]]:
    """Return the state after `event`, recorded at `at_ms` (created_at if not given), and the events to write."""
    if rule.suite is not None and state.suite != rule.suite.name:
        state = replace(state, suite=rule.suite.name, evaluating=frozenset(), judged={})
    if event.kind in DECISIONS:
        if short(event.event_id) in state.decided:
            return state, ()
        state = replace(state, decided=state.decided | {short(event.event_id)})
        if event.event_id == state.pending:
            state = replace(state, pending=None)
    tasks: list[Task] = []
    if refusal(event, state.serving) is None:
        state = _after(state, event, event.created_at if at_ms is None else at_ms)
        tasks = list(_evaluations(state, event, rule, results))
        state = replace(state, evaluating=state.evaluating | {task.adapter_version or 0 for task in tasks})
    decision = None if state.pending is not None else _decision(state, event, rule, results)
    if decision is None or short(decision.event_id) in state.decided:
        return state, tasks
    return replace(state, pending=decision.event_id), (*tasks, decision)


def _after(state: RolloutState, event: AdapterEvent, at_ms: int) -> RolloutState:
    """Return the state after an event that takes effect."""
    serving = step(state.serving, event)
    state = replace(state, serving=serving, canary=canary.followed(state.canary, event, serving.candidate, at_ms))
    if event.kind == "trained":
        models = {} if event.outside is None else {event.version: event.outside}
        return replace(state, newest_at=event.created_at, outside={**state.outside, **models})
    judged = dict(state.judged)
    if event.kind == "judged" and event.suite == state.suite and event.verdict and event.expected_version is not None:
        judged[event.version, event.expected_version] = event.verdict
    open_to = {version for version, status in serving.statuses.items() if status in ("trained", "canary")}
    judged = {key: verdict for key, verdict in judged.items() if key[0] in open_to}
    return replace(state, judged=judged, swaps=state.swaps + (event.kind in SWAPS))


# --- evaluations ------------------------------------------------------------------------------------------------------


def _evaluations(state: RolloutState, event: AdapterEvent, rule: RolloutRule, results: Results) -> Iterator[Task]:
    """Yield the guard's suite for a version that is due, and for the primary that it will be compared with."""
    waits = event.kind in SWAPS and any(version in state.evaluating for version in waiting(state))
    if rule.suite is None or not (waits or evaluation.is_due(event, rule.guard)):
        return
    primary = state.serving.primary
    # a user may have evaluated one of them
    known = {version for version in (event.version, primary) if results(version) is not None}
    yield from evaluation.tasks_for(rule.suite, event, primary=primary, evaluated=state.evaluating | known)


# --- decisions --------------------------------------------------------------------------------------------------------


def _decision(state: RolloutState, event: AdapterEvent, rule: RolloutRule, results: Results) -> AdapterEvent | None:
    """Return the decision that follows from the state after `event`, if any."""
    match rule.mode:
        case "direct":
            return _newest_promoted(state, event.policy)
        case "manual":
            return None
        case _:
            return _next_version(state, event, rule) or _judgement(state, event.policy, rule, results)


def _newest_promoted(state: RolloutState, policy: str) -> AdapterEvent | None:
    """Return the promotion of the newest version: a function of the state, so a second one is the same event."""
    serving, version = state.serving, newest(state.serving)
    if version <= serving.primary or serving.statuses[version] != "trained":
        return None
    return AdapterEvent(
        # the expected version is part of the id: after a refusal the next attempt is another fact
        event_id=derive_id(policy, version, "promoted", serving.primary),
        policy=policy,
        created_at=state.newest_at,
        version=version,
        kind="promoted",
        actor=STAGE,
        reason="direct: newest trained version",
        expected_version=serving.primary,
    )


def _next_version(state: RolloutState, event: AdapterEvent, rule: RolloutRule) -> AdapterEvent | None:
    """Return the promotion, canary or rejection of the newest version that waits; None to keep waiting."""
    if rule.mode == "canary" and state.serving.candidate is not None:
        return None
    versions, primary = waiting(state), state.serving.primary
    if not rule.waits_for_guard:
        return _move(state, event, versions[0], "canary_started", rule) if versions else None
    version = next((one for one in versions if (one, primary) in state.judged), None)
    if version is None or rule.guard.decide != "auto":
        return None
    match state.judged[version, primary]:
        case "promote":
            return _move(state, event, version, "promoted" if rule.mode == "guarded" else "canary_started", rule)
        case "reject":
            return _move(state, event, version, "rejected", rule)
        case _:
            return None


def _move(
    state: RolloutState,
    event: AdapterEvent,
    version: int,
    kind: Literal["promoted", "canary_started", "rejected"],
    rule: RolloutRule,
) -> AdapterEvent:
    primary, suite = state.serving.primary, rule.suite
    gate = {}
    if suite is not None and rule.waits_for_guard:
        gate = guard.effective(rule.guard, suite.thresholds, rule.prices)
    basis = f"the guard's verdict on suite {suite.name}" if suite is not None and gate else "newest trained version"
    if kind == "canary_started":
        gate |= canary.gate(rule.canary)
    return AdapterEvent(
        event_id=derive_id(event.policy, version, kind, primary, state.swaps),
        policy=event.policy,
        created_at=event.created_at,
        version=version,
        kind=kind,
        actor=STAGE,
        reason=f"{rule.mode}: {basis}",
        expected_version=primary,
        suite=suite.name if suite is not None and kind != "canary_started" else None,
        share=rule.canary.shares[0] if kind == "canary_started" else None,
        gate=gate,
    )


def _judgement(state: RolloutState, policy: str, rule: RolloutRule, results: Results) -> AdapterEvent | None:
    """Return the guard's verdict on the newest waiting version with a result, unless it has one."""
    suite, primary = rule.suite, state.serving.primary
    if suite is None or (against := results(primary)) is None:
        return None
    for version in waiting(state):
        if (version, primary) in state.judged:
            return None
        if (shown := results(version)) is not None:
            candidate, incumbent = _shown(shown, state), _shown(against, state)
            judgement = guard.judge(candidate, incumbent, rule.guard, suite.name, suite.thresholds, rule.prices)
            judgement = guard.with_objections(judgement, shown.outcomes, rule.gates)
            at = max(shown.created_at, against.created_at)
            return guard.event(
                judgement, policy=policy, version=version, against=primary, suite=suite.name, created_at=at
            )
    return None


def _shown(result: AdapterEvent, state: RolloutState) -> Version:
    suite = result.suite or ""
    return Version(
        version=result.version,
        status="trained",
        evaluated={suite: result.metrics},
        outcomes={suite: result.outcomes},
        outside=state.outside.get(result.version),
    )


# --- the wiring -------------------------------------------------------------------------------------------------------


def register(driver: Driver, suite: Suite | None) -> None:
    """Drive the reducers; `suite` is the guard's. Each table is written by only one agent, so no row has two
    writers."""
    settings, rule = driver.settings, rule_of(driver.settings, suite)
    named, outlet = topics(settings.topics), driver.outlet(STAGE)
    partitions = settings.topics.policy_partitions
    states, results = driver.table("rollouts-states", partitions), driver.table("rollouts-results", partitions)
    suites = driver.table("rollouts-suites", partitions)
    guarded_by = None if rule.suite is None else rule.suite.name

    async def on_adapter(record: Record) -> None:
        event = record.decode_placed(AdapterEvent, partitions)
        if isinstance(event, Poison):
            raise EventError(event.error, reason=event.reason)
        key = event.policy.encode()

        def result(version: int) -> AdapterEvent | None:
            row = results.get(_result_key(event.policy, guarded_by, version))
            found = None if row is None else decode(row, AdapterEvent)
            return None if isinstance(found, Poison) else found

        if event.kind == "evaluated":  # of any suite: it may become the guard's
            own = _result_key(event.policy, event.suite, event.version)
            if results.get(own) is None:  # the first result counts, as in every fold
                results[own] = encode(event)
        state, made = reduce(load(states.get(key)), event, rule, result, at_ms=record.timestamp_ms)
        cause = trace_context.of_headers(record.headers)
        for one in made:
            if isinstance(one, Task):  # many tasks, each with a trace of its own
                trace = driver.traces.joins(cause, one.task_id, one.created_at, [cause])
            else:
                trace = driver.traces.follows(cause, one.event_id)
            await outlet.emit_traced(one, trace, began_ms=record.timestamp_ms)
        states[key] = dump(state)

    async def on_group(record: Record) -> None:
        group = record.decode_placed(AdvantagedGroup, partitions)
        if isinstance(group, Poison):
            return  # the batch stage reads the same record and writes its dead letter
        key = suite_results.suite_key(group)
        if key is None:
            return
        suite, made = suite_results.count(suite_results.load(suites.get(key)), group)
        for result in made:
            await outlet.emit_traced(result, _of_many(driver, result, record), began_ms=record.timestamp_ms)
        suites[key] = suite_results.dump(suite)

    driver.agent(named["adapters"], on_adapter, STAGE)
    driver.agent(named["groups"], on_group, STAGE, name=f"{STAGE}.suites")
    if rule.mode == "canary":
        _register_canary(driver, states, outlet, rule)


def _of_many(driver: Driver, event: AdapterEvent, last: Record) -> Trace | None:
    """Return the trace of an event caused by many groups, linked to the last of them."""
    cause = trace_context.of_headers(last.headers)
    return driver.traces.joins(cause, event.event_id, event.created_at, [cause])


def _result_key(policy: str, suite: str | None, version: int) -> bytes:
    return "\x1f".join((policy, suite or "", str(version))).encode()


def _register_canary(driver: Driver, states: TableRows, outlet: EventOutlet, rule: RolloutRule) -> None:
    """Drive the canary's evidence from `groups`. Every group is remembered, so that none counts twice."""
    named, partitions = topics(driver.settings.topics), driver.settings.topics.policy_partitions
    evidence, counted = driver.table("rollouts-canaries", partitions), driver.table("rollouts-counted", partitions)

    async def on_evidence(record: Record) -> None:
        group = record.decode_placed(AdvantagedGroup, partitions)
        if isinstance(group, Poison):
            return
        key, group_key, row = group.policy.encode(), group.group_id.encode(), str(record.at.offset).encode()
        state = load(states.get(key))
        trial = state.canary
        if trial is None or canary.arm_of(group, trial) is None or counted.get(group_key) not in (None, row):
            return
        found = canary.count(canary.load(evidence.get(key)), trial, group, record.at.offset)
        prices: canary.ArmPrices = {
            "candidate": prices_of(state, rule, trial.version),
            "primary": prices_of(state, rule, trial.primary),
        }
        at_ms = group.created_at
        found, event = canary.decide(found, trial, rule.canary, policy=group.policy, at_ms=at_ms, prices=prices)
        if event is not None:
            await outlet.emit_traced(event, _of_many(driver, event, record), began_ms=record.timestamp_ms)
        evidence[key] = canary.dump(found)
        counted[group_key] = row

    driver.agent(named["groups"], on_evidence, STAGE, name=f"{STAGE}.canary", after=[named["adapters"]])
