"""Recount one run of an agent: its turns match the count in its end and the names in its response.

    started, turns, ended of one trajectory ──► numbers without gaps, parents before children, ──► findings, open
                                                as many tokens as each prompt had
    its response ─────────────────────────────► each turn of it, as it is in the log

Turns are numbered in the order in which they were recorded, so a number that is missing below another is a lost turn.
`ended` is written when all turns are acknowledged, with their number: a turn missing below it is lost, and one with a
higher number is late, which is not a finding. The turn that it names as the answer is one of them.

A response names its turns and their number: each with its parent, as many tokens as were sampled, and the same
observation before it.

Not covered: whether a task's trajectory has its response, whether a turn without a successor belongs in it, and whether
its tokens are those of its turns. A response without its run in the log, such as one in an experiment, is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from schemas.events import Coordinates, Response, TrajectoryEvent, Turn
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.subject import RecountSum, SubjectRecount
from streams.tools.audit.view import AuditView


class TurnFact(NamedTuple):
    """One model call of an agent."""

    at: Coordinates
    event_id: str
    content: int
    policy: str
    number: int
    parent_id: str | None
    prompt_tokens: int
    sent: int
    """Tokens of its prompt after its parent's."""
    said: int
    """Tokens of its completion."""
    shown: str | None
    """Digest of what its environment had shown before."""


class TrajectoryFact(NamedTuple):
    """That a trajectory began or ended."""

    at: Coordinates
    event_id: str
    content: int
    policy: str
    kind: str
    turns: int | None
    of_task: bool
    answer: str | None
    """The turn that its end says is its answer."""


class ResponseTurns(NamedTuple):
    """The turns that a response says it is made of."""

    at: Coordinates
    failed: bool
    calls: int | None
    """How many model calls it says it is made of."""
    turns: tuple[tuple[int, int, str | None], ...]
    """Of each of them: its number, its tokens, and what had been shown before."""


F = TypeVar("F", TurnFact, TrajectoryFact)


@dataclass(slots=True)
class AuditedTrajectory:
    """What the log says about one trajectory."""

    partition: int
    turns: list[TurnFact] = field(default_factory=list)
    events: list[TrajectoryFact] = field(default_factory=list)

    @property
    def policy(self) -> str:
        """The policy of the trajectory."""
        facts: list[TurnFact | TrajectoryFact] = [*self.events, *self.turns]
        return facts[0].policy


def recount_run(audited: AuditedTrajectory, view: AuditView, responses: Iterable[ResponseTurns] = ()) -> RecountOutcome:
    """Return what is wrong with one trajectory, and whether it is still open; `responses`: what was made of it."""
    outcome = RecountOutcome()
    if view.is_cut("turns", audited.partition) or view.is_cut("trajectories", audited.partition):
        outcome.counts["outside"] += 1
        return outcome
    turns = list(_first_of_each(audited.turns, outcome))
    events = list(_first_of_each(audited.events, outcome))
    ended = next((event for event in events if event.kind == "ended"), None)
    started = next((event for event in events if event.kind == "started"), None)
    outcome.counts.update({"turns": len(turns), "trajectories": 1})
    outcome.counts["trajectories ended" if ended else "trajectories open"] += 1
    findings = outcome.findings
    findings += _numbers(turns, ended)
    findings += _parents(turns)
    if ended is not None and ended.answer is not None and ended.answer not in {turn.event_id for turn in turns}:
        findings.append(AuditFinding("phantom", ended.at, f"its answer is turn {ended.answer}, which is not in turns"))
    for response in responses:
        findings += _turns_of(response, turns)
    if started is None and (ended is not None or view.reach.settled):
        at = turns[0].at if turns else events[0].at
        findings.append(AuditFinding("lost", at, "the beginning of its trajectory is not in trajectories"))
    if ended is None and started is not None:
        if view.reach.settled and started.of_task:
            findings.append(AuditFinding("lost", started.at, "the end of this trajectory is not in trajectories"))
        else:
            outcome.in_flight["trajectories"] += 1
    return outcome


def _first_of_each(facts: list[F], outcome: RecountOutcome) -> Iterator[F]:
    """Yield the first fact of each id; repeated ids are findings."""
    known: dict[str, F] = {}
    for fact in facts:
        first = known.setdefault(fact.event_id, fact)
        if first is fact:
            yield fact
        elif first.content == fact.content:
            outcome.find("repeated", fact.at, f"it repeats {first.at}", accounted=True)
        else:
            outcome.findings.append(
                AuditFinding("contradictory", fact.at, f"it has the id of {first.at}, and is another")
            )


def _numbers(turns: list[TurnFact], ended: TrajectoryFact | None) -> Iterator[AuditFinding]:
    """Find numbers that are missing, that are there twice, and that came after the end."""
    count = None if ended is None else ended.turns
    counted = [turn for turn in turns if count is None or turn.number < count]
    for turn in turns:
        if count is not None and turn.number >= count:
            yield AuditFinding("late", turn.at, f"turn {turn.number} of a trajectory that ended with {count}", True)
    times = Counter(turn.number for turn in counted)
    for number, turn in sorted({turn.number: turn for turn in counted}.items()):
        if times[number] > 1:
            yield AuditFinding("doubled", turn.at, f"its trajectory has {times[number]} turns with number {number}")
    if count is not None and ended is not None:
        top, at = count, ended.at
    elif counted:
        last = max(counted, key=lambda turn: turn.number)
        top, at = last.number, last.at
    else:
        return
    for number in range(top):
        if number not in times:
            yield AuditFinding("lost", at, f"turn {number} of this trajectory is not in turns")


def _parents(turns: list[TurnFact]) -> Iterator[AuditFinding]:
    """Find turns without an earlier parent, and those with a prompt of another length than their parents add up to."""
    lengths: dict[str, int] = {}
    for turn in turns:
        before = 0 if turn.parent_id is None else lengths.get(turn.parent_id)
        if before is None:
            yield AuditFinding("phantom", turn.at, f"it continues turn {turn.parent_id}, which is not before it")
            before = turn.prompt_tokens - turn.sent
        elif before + turn.sent != turn.prompt_tokens:
            what = f"its prompt had {turn.prompt_tokens} tokens, and the log has {before + turn.sent}"
            yield AuditFinding("contradictory", turn.at, what)
        lengths[turn.event_id] = turn.prompt_tokens + turn.said


def _turns_of(response: ResponseTurns, turns: list[TurnFact]) -> Iterator[AuditFinding]:
    """Find turns of a response that are not in the log, or not as it says."""
    by_number = {turn.number: turn for turn in reversed(turns)}  # of two with one number, which is found, the first
    by_id = {turn.event_id: turn for turn in turns}
    times = Counter(number for number, _, _ in response.turns)
    if response.calls is not None and not response.failed and response.calls != len(response.turns):
        what = f"it is made of {response.calls} model calls, and has {len(response.turns)} turns"
        yield AuditFinding("contradictory", response.at, what)
    for number, said, shown in dict.fromkeys(response.turns):
        turn = by_number.get(number)
        if times[number] > 1:
            yield AuditFinding("doubled", response.at, f"it has turn {number} {times[number]} times")
        elif turn is None:
            yield AuditFinding("phantom", response.at, f"turn {number} of it is not in turns")
        elif said != turn.said:
            what = f"turn {number} of it has {said} tokens, and {turn.said} in the log"
            yield AuditFinding("contradictory", response.at, what)
        elif shown != turn.shown:
            what = f"turn {number} of it was shown {shown}, and {turn.shown} in the log"
            yield AuditFinding("contradictory", response.at, what)
        elif turn.parent_id in by_id and (parent := by_id[turn.parent_id].number) not in times:
            yield AuditFinding(
                "lost", response.at, f"it has turn {number}, and not turn {parent}, which that continues"
            )


# --- all of them ------------------------------------------------------------------------------------------------------


class TrajectoryRecount(SubjectRecount):
    """The recount of trajectories, with the responses that are made of them."""

    labels, counts = ("turns", "trajectories", "responses"), ("turns", "trajectories")
    sums = (
        RecountSum("trajectories", ("trajectories",), {"ended": "trajectories ended", "open": "trajectories open"}),
    )

    def __init__(self) -> None:
        self._runs: dict[tuple[int, str], AuditedTrajectory] = {}
        self._responses: dict[tuple[int, str], list[ResponseTurns]] = {}
        """By partition and id, which their trajectory has, too."""

    def take(self, record: Record, event: Turn | TrajectoryEvent | Response) -> None:
        """Take in a turn, that a trajectory began or ended, or what was made of one."""
        partition = record.at.partition
        if isinstance(event, Response):
            if event.turns:
                turns = tuple((turn.number, turn.end - turn.start, turn.observation) for turn in event.turns)
                fact = ResponseTurns(record.at, event.error is not None, event.steps, turns)
                self._responses.setdefault((partition, event.response_id), []).append(fact)
            return
        audited = self._runs.setdefault((partition, event.trajectory_id), AuditedTrajectory(partition))
        if isinstance(event, Turn):
            audited.turns.append(_turn_fact(record, event))
        else:
            audited.events.append(_run_fact(record, event))

    def policies(self) -> set[str]:
        """Return the policies of the trajectories."""
        return {run.policy for run in self._runs.values()}

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every trajectory."""
        outcome = RecountOutcome()
        for key, run in self._runs.items():
            if policy in (None, run.policy):
                outcome.add(recount_run(run, view, self._responses.get(key, ())))
        return outcome


def _turn_fact(record: Record, turn: Turn) -> TurnFact:
    return TurnFact(
        at=record.at,
        event_id=turn.turn_id,
        content=content_digest(turn, "created_at", "traceparent"),
        policy=turn.policy,
        number=turn.number,
        parent_id=turn.parent_id,
        prompt_tokens=turn.prompt_tokens,
        sent=len(turn.prompt_token_ids),
        said=len(turn.completion_token_ids),
        shown=None if turn.observed is None else turn.observed.digest,
    )


def _run_fact(record: Record, event: TrajectoryEvent) -> TrajectoryFact:
    return TrajectoryFact(
        at=record.at,
        event_id=event.event_id,
        content=content_digest(event, "created_at", "traceparent"),
        policy=event.policy,
        kind=event.kind,
        turns=event.turns,
        of_task=event.sampling_id is not None,
        answer=event.answer_turn,
    )
