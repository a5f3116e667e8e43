"""Decide which adapter version serves, and say how well each one did on held-out tasks.

    adapters (trained, evaluated, judged, ...) ──► by rollouts.mode ──────────► adapters (judged, canary_started,
    groups of candidate and primary            ──► the canary's evidence ─────►           canary_advanced, promoted,
    groups of pinned eval tasks                ──► the whole suite is in ─────►           rejected, evaluated)
    adapters (trained)                         ──► the guard's suite is due ──► tasks (eval)
    all keyed by policy, but for the tasks

    direct   the newest trained version is promoted
    guarded  each version is asked guard.suite; once it and the primary have a result, the guard judges, and its verdict
             is carried out (guard.decide)
    canary   a version that the guard lets pass, or any without a suite, answers a growing share of the tasks, one
             version at a time, the newest next; what follows is decided by streams/stages/rollouts/canary.py
    manual   nothing, but for the suite that is asked

A promotion names the primary it replaces (compare and swap). So this stage has at most one event of its own on the way:
what is trained meanwhile is decided when that one was read back, against the primary that was then in force. If a
person was faster, the event is refused by every reader alike, this stage included, and it decides again. A version that
is older than one that had its turn (was promoted, rejected, tried) is passed over.

The canary's evidence waits until `adapters` is read up to the time of each group, so which canary a group belongs to
follows from the record times of both topics, at any speed of reading.

Not covered: the row of a policy keeps one short entry per version and per decision, and never forgets one. A worker
that comes late to the groups may find their canary decided already: it then counts less, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from schemas.events import AdapterEvent, AdvantagedGroup, Task, derive_id
from schemas.serde import Poison, decode, encode
from streams.adapters.serving import DECISIONS, SWAPS, refusal, step
from streams.adapters.versions import Version
from streams.errors import EventError
from streams.evaluation import results as outcomes, run as evaluate
from streams.evaluation.results import short
from streams.kafka.topics import topics
from streams.observability.tracing import context
from streams.settings.model import Canary
from streams.stages.rollouts import canary, guard
from streams.stages.rollouts.state import DIRECT, RolloutRule, RolloutState, dump, load_line, rule_of, waiting

if TYPE_CHECKING:
    from streams.evaluation.suites import Suite
    from streams.kafka.record import Record
    from streams.observability.tracing.tracer import Trace
    from streams.worker.app import App, Outlet

STAGE = "rollouts"
Results = Callable[[int], AdapterEvent | None]
"""The `evaluated` event of a version on the guard's suite, if it is in."""


# --- the reducer ------------------------------------------------------------------------------------------------------


def _no_results(_: int) -> AdapterEvent | None:
    return None


def reduce(
    line: RolloutState,
    event: AdapterEvent,
    rule: RolloutRule = DIRECT,
    results: Results = _no_results,
    *,
    at_ms: int | None = None,
) -> tuple[RolloutState, Sequence[AdapterEvent | Task]]:
    """Return the line after `event`, recorded at `at_ms` (created_at if not given), and what it calls for."""
    if rule.suite is not None and line.suite != rule.suite.name:
        line = replace(line, suite=rule.suite.name, evaluating=frozenset(), judged={})
    if event.kind in DECISIONS:
        if short(event.event_id) in line.decided:
            return line, ()
        line = replace(line, decided=line.decided | {short(event.event_id)})
        if event.event_id == line.asked:
            line = replace(line, asked=None)
    tasks: list[Task] = []
    if refusal(event, line.serving) is None:
        line = _after(line, event, rule, event.created_at if at_ms is None else at_ms)
        tasks = list(_questions(line, event, rule, results))
        line = replace(line, evaluating=line.evaluating | {task.adapter_version or 0 for task in tasks})
    decision = None if line.asked is not None else _decision(line, event, rule, results)
    if decision is None or short(decision.event_id) in line.decided:
        return line, tasks
    return replace(line, asked=decision.event_id), (*tasks, decision)


def _after(line: RolloutState, event: AdapterEvent, rule: RolloutRule, at_ms: int) -> RolloutState:
    """Return the line after an event that takes effect."""
    serving = step(line.serving, event)
    line = replace(line, serving=serving, canary=canary.followed(line.canary, event, serving.candidate, at_ms))
    if event.kind == "trained" and event.version > line.newest:
        return replace(line, newest=event.version, newest_at=event.created_at)
    judged = dict(line.judged)
    if event.kind == "judged" and event.suite == line.suite and event.verdict and event.expected_version is not None:
        judged[event.version, event.expected_version] = event.verdict
    open_to = {version for version, status in serving.statuses.items() if status in ("trained", "canary")}
    judged = {key: verdict for key, verdict in judged.items() if key[0] in open_to}
    return replace(line, judged=judged, swaps=line.swaps + (event.kind in SWAPS))


# --- what is asked ----------------------------------------------------------------------------------------------------


def _questions(line: RolloutState, event: AdapterEvent, rule: RolloutRule, results: Results) -> Iterator[Task]:
    """Yield the guard's suite for a version that is due, and for the primary that it will be compared with."""
    waits = event.kind in SWAPS and any(version in line.evaluating for version in waiting(line))
    if rule.suite is None or not (waits or evaluate.is_due(event, rule.guard)):
        return
    primary = line.serving.primary
    known = {version for version in (event.version, primary) if results(version) is not None}  # asked by somebody else
    yield from evaluate.tasks_for(rule.suite, event, primary=primary, asked=line.evaluating | known)


# --- what is decided --------------------------------------------------------------------------------------------------


def _decision(line: RolloutState, event: AdapterEvent, rule: RolloutRule, results: Results) -> AdapterEvent | None:
    """Return what the state of things calls for; `event` is what brought it about."""
    match rule.mode:
        case "direct":
            return _newest_promoted(line, event.policy)
        case "manual":
            return None
        case _:
            return _turn(line, event, rule) or _judgement(line, event.policy, rule, results)


def _newest_promoted(line: RolloutState, policy: str) -> AdapterEvent | None:
    """Return the promotion of the newest version: a function of the line, so a second one is no other."""
    serving = line.serving
    if line.newest <= serving.primary or serving.statuses[line.newest] != "trained":
        return None
    return AdapterEvent(
        # the expected version is part of the id: after a refusal the next attempt is another fact
        event_id=derive_id(policy, line.newest, "promoted", serving.primary),
        policy=policy,
        created_at=line.newest_at,
        version=line.newest,
        kind="promoted",
        actor=STAGE,
        reason="direct: newest trained version",
        expected_version=serving.primary,
    )


def _turn(line: RolloutState, event: AdapterEvent, rule: RolloutRule) -> AdapterEvent | None:
    """Return what the newest version that waits is in for: promotion, canary, rejection; None to go on waiting."""
    if rule.mode == "canary" and line.serving.candidate is not None:
        return None
    versions, primary = waiting(line), line.serving.primary
    if not rule.waits_for_guard:
        return _moved(line, event, versions[0], "canary_started", rule) if versions else None
    version = next((one for one in versions if (one, primary) in line.judged), None)
    if version is None or rule.guard.decide != "auto":
        return None
    match line.judged[version, primary]:
        case "promote":
            return _moved(line, event, version, "promoted" if rule.mode == "guarded" else "canary_started", rule)
        case "reject":
            return _moved(line, event, version, "rejected", rule)
        case _:
            return None


def _moved(
    line: RolloutState,
    event: AdapterEvent,
    version: int,
    kind: Literal["promoted", "canary_started", "rejected"],
    rule: RolloutRule,
) -> AdapterEvent:
    primary, suite = line.serving.primary, rule.suite
    gate = guard.effective(rule.guard, suite.thresholds) if suite is not None and rule.waits_for_guard else {}
    spoke = f"the guard's verdict on suite {suite.name}" if suite is not None and gate else "newest trained version"
    if kind == "canary_started":
        gate |= canary.gate(rule.canary)
    return AdapterEvent(
        event_id=derive_id(event.policy, version, kind, primary, line.swaps),
        policy=event.policy,
        created_at=event.created_at,
        version=version,
        kind=kind,
        actor=STAGE,
        reason=f"{rule.mode}: {spoke}",
        expected_version=primary,
        suite=suite.name if suite is not None and kind != "canary_started" else None,
        share=rule.canary.shares[0] if kind == "canary_started" else None,
        gate=gate,
    )


def _judgement(line: RolloutState, policy: str, rule: RolloutRule, results: Results) -> AdapterEvent | None:
    """Return the guard's verdict on the newest version that waits and has a result, if there is none yet."""
    suite, primary = rule.suite, line.serving.primary
    if suite is None or (against := results(primary)) is None:
        return None
    for version in waiting(line):
        if (version, primary) in line.judged:
            return None
        if (shown := results(version)) is not None:
            judgement = guard.judge(_shown(shown), _shown(against), rule.guard, suite.name, suite.thresholds)
            at = max(shown.created_at, against.created_at)
            return guard.event(
                judgement, policy=policy, version=version, against=primary, suite=suite.name, created_at=at
            )
    return None


def _shown(result: AdapterEvent) -> Version:
    suite = result.suite or ""
    return Version(
        version=result.version,
        status="trained",
        evaluated={suite: result.metrics},
        outcomes={suite: result.outcomes},
    )


# --- the wiring -------------------------------------------------------------------------------------------------------


def register(app: App, suite: Suite | None) -> None:
    """Drive the reducers; `suite` is the guard's. Each table is written by one agent, so no row has two writers."""
    from streams.worker.agent import agent
    from streams.worker.app import Outlet, record_of, table

    settings, rule = app.settings, rule_of(app.settings, suite)
    named, outlet = topics(settings.topics), Outlet(app, STAGE)
    partitions = settings.topics.policy_partitions
    lines, results = table(app, "rollouts-lines", partitions), table(app, "rollouts-results", partitions)
    suites = table(app, "rollouts-suites", partitions)
    guarded_by = None if rule.suite is None else rule.suite.name

    async def on_adapter(faust_event: Any) -> None:
        record = record_of(faust_event)
        event = record.decode(AdapterEvent)
        if isinstance(event, Poison):
            raise EventError(event.error, reason=event.reason)
        key = event.policy.encode()

        def result(version: int) -> AdapterEvent | None:
            row = results.get(_result_key(event.policy, guarded_by, version))
            found = None if row is None else decode(row, AdapterEvent)
            return None if isinstance(found, Poison) else found

        if event.kind == "evaluated":  # of any suite: it may become the guard's
            own = _result_key(event.policy, event.suite, event.version)
            if results.get(own) is None:  # the first result stands, as in every fold
                results[own] = encode(event)
        line, made = reduce(load_line(lines.get(key)), event, rule, result, at_ms=record.timestamp_ms)
        came = context.of_headers(record.headers)
        for one in made:
            if isinstance(one, Task):  # many questions, each with a trace of its own
                trace = app.traces.joins(came, one.task_id, one.created_at, [came])
            else:
                trace = app.traces.follows(came, one.event_id)
            await outlet.emit_traced(one, trace, began_ms=record.timestamp_ms)
        lines[key] = dump(line)

    async def on_group(faust_event: Any) -> None:
        record = record_of(faust_event)
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison):
            return  # the batch stage reads the same record and writes its dead letter
        key = outcomes.suite_key(group)
        if key is None:
            return
        suite, made = outcomes.count(outcomes.load(suites.get(key)), group)
        for result in made:
            await outlet.emit_traced(result, _of_many(app, result, record), began_ms=record.timestamp_ms)
        suites[key] = outcomes.dump(suite)

    dead_letters = outlet.dead_letters()
    agent(app, named["adapters"], on_adapter, dead_letters, name=STAGE)
    agent(app, named["groups"], on_group, dead_letters, name=f"{STAGE}.suites")
    if rule.mode == "canary":
        _weigh_canaries(app, lines, outlet, rule.canary)


def _of_many(app: App, event: AdapterEvent, last: Record) -> Trace | None:
    """Return the trace of an event that many groups brought about, linked to the last of them."""
    came = context.of_headers(last.headers)
    return app.traces.joins(came, event.event_id, event.created_at, [came])


def _result_key(policy: str, suite: str | None, version: int) -> bytes:
    return "\x1f".join((policy, suite or "", str(version))).encode()


def _weigh_canaries(app: App, lines: Any, outlet: Outlet, rule: Canary) -> None:
    """Drive the canary's evidence from `groups`. Every group is remembered, so that none counts twice."""
    from streams.worker.agent import agent
    from streams.worker.app import record_of, table

    named, partitions = topics(app.settings.topics), app.settings.topics.policy_partitions
    evidence, counted = table(app, "rollouts-canaries", partitions), table(app, "rollouts-counted", partitions)

    async def on_evidence(faust_event: Any) -> None:
        record = record_of(faust_event)
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison):
            return
        key, group_key, row = group.policy.encode(), group.group_id.encode(), str(record.at.offset).encode()
        trial = load_line(lines.get(key)).canary
        if trial is None or canary.arm_of(group, trial) is None or counted.get(group_key) not in (None, row):
            return
        found = canary.count(canary.load(evidence.get(key)), trial, group, record.at.offset)
        found, event = canary.decide(found, trial, rule, policy=group.policy, at_ms=group.created_at)
        if event is not None:
            await outlet.emit_traced(event, _of_many(app, event, record), began_ms=record.timestamp_ms)
        evidence[key] = canary.dump(found)
        counted[group_key] = row

    dead_letters = outlet.dead_letters()
    agent(app, named["groups"], on_evidence, dead_letters, name=f"{STAGE}.canary", after=[named["adapters"]])
