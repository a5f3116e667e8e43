"""Recount the training calls of each model: each has one result, in order, and each save is a version.

    training-calls, training-results of one key ──► the first call of an id, the first result of a call ──► findings
    adapters: trained, with origin ──► the call that saved it is there, and says the same version

A result records the place of its call; if the call is not there, the result was forged or the call is lost. A second,
equal result, from a worker that did not know that it had been replaced, is only counted. A call that waits for another
with a smaller number waits for its client: it counts as in flight even in a settled log.

Not covered: whether the tensors are right; `reproduce` checks that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from schemas.events import Coordinates, TrainingCall, TrainingResult
from streams.kafka.record import Record
from streams.tools.audit.facts import AdapterFact, Category, RecountOutcome
from streams.tools.audit.record_digests import digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

LINE_KINDS = (
    *("forward", "forward_backward", "optim_step", "load_weights"),
    *("save_weights", "save_weights_for_sampler", "refused"),
)
"""Kinds of training calls that a model takes in order."""
OTHER_ANSWERED = ("create_model", "sample", "unload_model")
"""Further kinds that get a result."""


class CallFact(NamedTuple):
    """A training call."""

    at: Coordinates
    call_id: str
    place: int | None
    """Its number among the calls of its model; None: none."""
    is_answered: bool
    """Whether it gets a result."""


class CallResultFact(NamedTuple):
    """What became of a training call."""

    at: Coordinates
    call_id: str
    source_offset: int
    """Of its call."""
    version: int | None
    content: int
    """A digest over what two results of one call must agree in."""


class CallRecount(KeyedRecount[CallFact | CallResultFact]):
    """The recount of training calls and their results."""

    labels = ("training-calls", "training-results")
    sums = (
        RecountSum(
            "training calls",
            ("calls",),
            {"with a result": "calls with a result", "without one": "calls lost", "open": "calls open"},
            shown_with="calls",
        ),
    )

    def take(self, record: Record, event: TrainingCall | TrainingResult) -> None:
        """Take in a call or a result; the versions that a model saved are of a policy of its name."""
        policy = event.model.replace(":", "-")
        if isinstance(event, TrainingCall):
            creates, in_line = event.call_id == event.model, event.kind in LINE_KINDS
            place = 0 if creates else event.seq_id if in_line else None
            call = CallFact(record.at, event.call_id, place, in_line or event.kind in OTHER_ANSWERED)
            self.keep(event.model, call, policy)
            return
        outputs = event.outputs_sha256 or sha256(event.outputs.data).hexdigest()
        content = digest(event.error, event.version, event.uri, event.state_sha256, event.response, outputs)
        result = CallResultFact(record.at, event.call_id, event.source_offset, event.version, content)
        self.keep(event.model, result, policy)

    def recount(self, facts: KeyFacts[CallFact | CallResultFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with the calls of one model."""
        outcome, versions = RecountOutcome(), view.versions(facts.policy)
        answers = [fact for fact in facts.events if isinstance(fact, CallResultFact)]
        calls: dict[str, CallFact] = {}
        for call in (fact for fact in facts.events if isinstance(fact, CallFact)):
            if call.call_id in calls:
                outcome.counts["calls sent again"] += 1
            calls.setdefault(call.call_id, call)
        results = _first_results(answers, calls, view, outcome)
        for call in calls.values():
            if call.is_answered:
                outcome.counts["calls"] += 1
                outcome.counts["calls with a result"] += call.call_id in results
        for at, problem in _order_problems(calls.values(), results):
            outcome.find("out_of_order", at, problem)
        _recount_open(calls.values(), results, view, outcome)
        for result in results.values():
            if (wrong := _version_problem(result, versions)) is not None:
                outcome.find(wrong[0], result.at, wrong[1])
        for version in versions.values():
            if (wrong := _origin_problem(version, calls, view)) is not None:
                outcome.find(wrong[0], version.at, wrong[1])
        return outcome


def _first_results(
    results: Iterable[CallResultFact], calls: Mapping[str, CallFact], view: AuditView, outcome: RecountOutcome
) -> dict[str, CallResultFact]:
    """Return the first result of each call, and find those of no call, and those that contradict the first."""
    first: dict[str, CallResultFact] = {}
    for result in results:
        source = Coordinates(view.names["training-calls"], result.at.partition, result.source_offset)
        call = calls.get(result.call_id)
        if call is None:
            if source.offset >= view.reach.begins.get((source.topic, source.partition), 0):
                problem = f"it is of call {result.call_id}, which is not in the log"
                outcome.find("phantom", result.at, problem)
        elif call.at != source and result.call_id not in first:
            problem = f"it says that its call is at {source}, and that is at {call.at}"
            outcome.find("contradictory", result.at, problem)
        before = first.setdefault(result.call_id, result)
        if before is result:
            continue
        if before.content == result.content:
            outcome.find("repeated", result.at, "the call has this result already", accounted=True)
        else:
            problem = f"it says otherwise than the result of the same call at {before.at}, which counts"
            outcome.find("contradictory", result.at, problem)
    return first


def _order_problems(
    calls: Iterable[CallFact], results: Mapping[str, CallResultFact]
) -> Iterator[tuple[Coordinates, str]]:
    """Yield the results of a model that came before that of a call with a smaller number."""
    latest: CallFact | None = None
    for call in sorted((call for call in calls if call.place is not None), key=lambda call: call.place or 0):
        result = results.get(call.call_id)
        if result is None:
            latest = latest or call
        elif latest is not None and (before := results.get(latest.call_id)) is None:
            yield result.at, f"it is of call {call.place}, and call {latest.place} before it has no result"
        elif latest is not None and before is not None and before.at.offset > result.at.offset:
            yield result.at, f"it is of call {call.place}, and stands before the result of call {latest.place}"
        if result is not None and (latest is None or latest.call_id in results):
            latest = call


def _recount_open(
    calls: Iterable[CallFact], results: Mapping[str, CallResultFact], view: AuditView, outcome: RecountOutcome
) -> None:
    """Count the calls without a result: those that wait for others, and those that are overdue once all is settled."""
    numbered = {call.place: call for call in calls if call.place is not None}
    done = -1
    while (following := numbered.get(done + 1)) is not None and following.call_id in results:
        done += 1
    for call in calls:
        if not call.is_answered or call.call_id in results:
            continue
        if view.reach.settled and (call.place is None or call.place == done + 1):
            outcome.counts["calls lost"] += 1
            outcome.find("lost", call.at, f"call {call.call_id} has no result")
        else:
            outcome.counts["calls open"] += 1
            outcome.in_flight["calls"] += 1


def _version_problem(result: CallResultFact, versions: Mapping[int, AdapterFact]) -> tuple[Category, str] | None:
    """Return what is wrong with the version that a result says its call has saved."""
    if result.version is None:
        return None
    version = versions.get(result.version)
    if version is None:
        return "phantom", f"it says that its call saved version {result.version}, which is not in the log"
    if version.origin != result.call_id:
        return (
            "contradictory",
            f"it says that its call saved version {result.version}, of which {version.at} says other",
        )
    return None


def _origin_problem(
    version: AdapterFact, calls: Mapping[str, CallFact], view: AuditView
) -> tuple[Category, str] | None:
    """Return what is wrong with the origin of a version."""
    if version.origin is None or version.origin in calls:
        return None
    if any(view.is_cut("training-calls", partition) for partition in {call.at.partition for call in calls.values()}):
        return None  # retention has deleted calls
    return "phantom", f"it says that call {version.origin} saved it, which is not in the log"


RECOUNTS = (CallRecount,)
