"""Reports about a group that leaves: its trace, and the outcome of its task.

EmitGroup, its event ──► group_trace ──► header of its record
                     └─► count ──► metrics
"""

from __future__ import annotations

from schemas.events import AdvantagedGroup, derive_id
from streams.adapters.learning import facts_of
from streams.evaluation.diagnosis import CAUSES, likeliest_cause
from streams.observability import catalog, trace_context
from streams.observability.metrics import Meter
from streams.observability.tracing.tracer import Trace, Tracer
from streams.stages.advantages.state import Effect, EmitGroup

NUMBERED_TURNS = 8
"""Turns beyond this have one series of the metric together."""


def group_trace(tracer: Tracer, effect: Effect, group: AdvantagedGroup) -> Trace | None:
    """Return the trace of a group: its task's trace, with links to its rewards."""
    if not isinstance(effect, EmitGroup) or not effect.trace:
        return None
    trace = tracer.follows(trace_context.parse(effect.trace), group.group_id)
    if trace is None or not tracer.on:
        return trace
    ids = [
        derive_id(member.response_id, source) if source else member.response_id
        for member in effect.members
        for source in [name for name, _ in effect.task.sources] or [""]
    ]
    return trace._replace(links=tuple(trace_context.child(trace.context, link) for link in ids))


def count(meter: Meter, group: AdvantagedGroup, first_ms: int | None) -> None:
    """Count the outcome of a task that has its first record at `first_ms`, and the credit of each turn."""
    flat = group.flat
    meter.add(catalog.GROUPS, group.policy, group.dropped_reason or ("flat" if flat else "varied"))
    if flat and group.dropped_reason is None and meter.on:
        meter.add(catalog.FLAT_GROUPS, group.policy, CAUSES[likeliest_cause([facts_of(group)])])
    if first_ms:
        meter.observe(catalog.GROUP_SECONDS, max(0, group.created_at - first_ms) / 1000, group.policy)
    for response in group.responses:
        for number, span in enumerate(response.spans, start=1):
            turn = str(number) if number <= NUMBERED_TURNS else "later"
            meter.observe(catalog.TURN_CREDIT, abs(span.advantage), group.policy, turn)
