"""Decide about dead letters: redrive the original record to its topic, or drop it; each once.

    letter ──► claim: a decision in dead-letters, acknowledged ──► read up to it: is it the first? ──► the original,
                                                                    └─ no: another process decided     with the claim's
                                                                                                       id in a header
A later retry finishes one that was killed between the claim and the record: it looks for the header from the offset in
the claim on, and if the record is missing makes the next attempt, of which again the first in the partition wins. It
does so only after `STALE_S`, because the first might still be writing; the writer of a claim gives up long before that.

The record gets a new offset and the present time: a deadline that has passed stays passed.

A writer to dead-letters could invent a record that was never on its topic. So a retry compares key and payload with the
source record, and the topic must be one that the dead letter's stage reads. Once retention has deleted the source, the
dead letter's copy is trusted only on request (`source_gone`).

Not covered: two operators whose clocks differ by more than a minute, and a process that is suspended for longer than
`STALE_S` between its last look at the clock and the write. Both can write a record twice, without a second effect,
since every event has an id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.events import Coordinates
from streams.errors import EventError, LogError, NotFoundError, RefusedError, StreamwardError
from streams.kafka import admin, times
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition, check_size, murmur2
from streams.kafka.topics import Topic, topics
from streams.settings.model import Settings
from streams.tools.dead_letters.letters import (
    Letter,
    LetterDecision,
    Letters,
    RedriveTarget,
    Verdict,
    decision,
    decision_id,
    go_on,
)
from streams.tools.dead_letters.originals import LetterSource, Original, forgery, hopeless, originals, sources

RETRY_HEADER = "streamward-retry"
"""Header of a redriven record: the id of the decision."""
STALE_S = 120
"""A claim this old is abandoned: its writer gives up after CLAIM_S, its producer GIVE_UP_S later."""
CLAIM_S = 30
"""Longest time from a claim to the write of its record."""
ROUND = 100
ROUND_BYTES = 32 * 1024 * 1024
"""This many dead letters, and bytes of payload, are decided at a time, in memory."""

Result = Literal["retried", "dropped", "already", "would retry", "would drop", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOrder:
    """What to decide, by whom, and why."""

    verdict: Verdict
    actor: str
    why: str = ""
    force: bool = False
    """Also redrive what cannot help, and what was dropped. Never what was redriven already."""
    source_gone: bool = False
    """Also redrive what retention has deleted from its topic, so that nothing can confirm the dead letter."""
    dry_run: bool = False

    @property
    def said(self) -> str:
        """The sentence of the decision."""
        what = "redriven" if self.verdict == "retried" else "dropped"
        return f"{what} by {self.actor}{': ' if self.why else ''}{self.why}"


class RedriveOutcome(NamedTuple):
    """What became of one dead letter."""

    letter: Letter
    result: Result
    at: Coordinates | None = None
    """The coordinates of the redriven record."""
    error: StreamwardError | None = None
    """Why nothing was done."""


@dataclass(slots=True)
class _Case:
    """One source record, and the chosen dead letters about it."""

    letters: list[Letter]
    holding: list[LetterDecision]
    original: Original | None = None
    target: RedriveTarget | None = None
    claimed_at: Coordinates | None = None

    @property
    def letter(self) -> Letter:
        return self.letters[0]

    @property
    def attempt(self) -> int:
        return len(self.holding) + 1


def decide(
    settings: Settings, letters: Letters, chosen: Sequence[Letter], order: RedriveOrder
) -> Iterator[RedriveOutcome]:
    """Decide about every chosen dead letter, and yield what became of it: one outcome for each source record.

    `letters` was loaded just before, and is read further.

    Raises LogError if the broker does not answer or refuses; what was claimed by then can be finished later.
    """
    by_source: dict[Coordinates, list[Letter]] = {}
    for letter in chosen:
        by_source.setdefault(letter.source, []).append(letter)
    cases = [_Case(about, letters.decisions(source)) for source, about in by_source.items()]
    if not cases:
        return
    asked_ms = times.now_ms()  # before the topics are read: what is missing there was missing at this time
    there = _redriven(settings, [found for case in cases for found in case.holding if found.verdict == "retried"])
    with Producer(settings) as producer:
        run = _RedriveRun(settings, letters, order, producer, asked_ms, there)
        for some in _rounds(cases):
            yield from run.round(some)


def _rounds(cases: list[_Case]) -> Iterator[list[_Case]]:
    some: list[_Case] = []
    size = 0
    for case in cases:
        more = case.letter.payload_bytes or 0
        if some and (len(some) == ROUND or size + more > ROUND_BYTES):
            yield some
            some, size = [], 0
        some.append(case)
        size += more
    yield some


@dataclass(frozen=True, slots=True)
class _There:
    """What was found in the source topics."""

    records: Mapping[str, Coordinates] = field(default_factory=dict)
    """Redriven records, by the id of the decision."""
    first: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offset of each partition of this deployment's topics."""


def _redriven(settings: Settings, claims: list[LetterDecision]) -> _There:
    """Find the records that belong to these claims, from the offsets in them on."""
    labels = {topic.name: label for label, topic in topics(settings.topics).items()}
    starts: dict[TopicPartition, int] = {}
    for claim in claims:
        if claim.source.topic in labels:
            tp = (claim.source.topic, claim.partition)
            starts[tp] = min(claim.end, starts.get(tp, claim.end))
    if not starts:
        return _There()
    bounds = admin.offsets(settings, {labels[name] for name, _ in starts})
    starts = {tp: max(start, bounds[tp][0]) for tp, start in starts.items() if tp in bounds}
    ends = {tp: bounds[tp][1] for tp, start in starts.items() if start < bounds[tp][1]}
    ids = {claim.decision_id.encode(): claim.decision_id for claim in claims}
    found: dict[str, Coordinates] = {}
    for record in read(settings, {tp: starts[tp] for tp in ends}, ends):
        for name, value in record.headers:
            if name == RETRY_HEADER and value in ids:
                found.setdefault(ids[value], record.at)
    return _There(found, {tp: low for tp, (low, _) in bounds.items()})


@dataclass(slots=True)
class _RedriveRun:
    """One run of `decide`."""

    settings: Settings
    letters: Letters
    order: RedriveOrder
    producer: Producer
    now_ms: int
    there: _There

    def round(self, cases: list[_Case]) -> Iterator[RedriveOutcome]:
        """Decide about some cases: all claims are written and read together, then all records."""
        ready: list[_Case] = []
        for case in cases:
            outcome = self._decided(case)
            if outcome is None:
                ready.append(case)
            else:
                yield outcome
        if self.order.verdict == "retried":
            ready, refused = self._prepared(ready)
            yield from refused
        if self.order.dry_run:
            would: Result = "would retry" if self.order.verdict == "retried" else "would drop"
            yield from (RedriveOutcome(case.letter, would) for case in ready)
        elif ready:
            yield from self._carry_out(ready)

    def _decided(self, case: _Case) -> RedriveOutcome | None:
        """Return the outcome that earlier decisions leave, or None if there is something to decide."""
        if not case.holding:
            return None
        letter, last = case.letter, case.holding[-1]
        back = next(
            (self.there.records[d.decision_id] for d in case.holding if d.decision_id in self.there.records), None
        )
        if self.order.verdict == last.verdict and (back is not None or last.verdict == "dropped"):
            return RedriveOutcome(letter, "already", back)
        if back is not None:
            why = f"it was redriven already, to {back}; if that fails as well, drop the dead letter about it"
        elif last.verdict == "dropped":
            if self.order.force:
                return None
            why = f"it was {last.said} ({last.at}). Give --force to redrive it nevertheless"
        else:
            found = self._hindrance(last)
            if found is None:
                return None
            why = found
        return RedriveOutcome(letter, "refused", error=RefusedError(f"{letter.source}: {why}"))

    def _hindrance(self, claim: LetterDecision) -> str | None:
        """Return why an unfinished retry may not be finished, or None if it may."""
        age_s = (self.now_ms - claim.written_ms) / 1000
        if age_s < STALE_S:
            return (
                f"a retry is running: {claim.said} ({claim.at}), {age_s:.0f} s ago, and the record is not written yet. "
                f"If that was interrupted, the same command finishes it {STALE_S} s after the claim"
            )
        low = self.there.first.get((claim.source.topic, claim.partition), 0)
        if low > claim.end and not self.order.force:
            return (
                f"{claim.said} ({claim.at}), and whether the record was written is unknown by now: retention has "
                f"deleted {claim.source.topic}[{claim.partition}] up to {low}, expected to read it from {claim.end}. "
                f"Give "
                "--force if you know that it was not"
            )
        return None

    # --- retry: may it be redriven, and where to --------------------------------------------------------------------

    def _prepared(self, cases: list[_Case]) -> tuple[list[_Case], list[RedriveOutcome]]:
        """Return the cases that can be redriven, with their targets; and the outcomes of the others."""
        named = {topic.name: topic for topic in topics(self.settings.topics).values()}
        labels = {named[c.letter.source.topic].label for c in cases if c.letter.source.topic in named}
        bounds = admin.offsets(self.settings, sorted(labels))
        ready, refused = [], []
        there = sources(self.settings, [case.letter.source for case in cases])
        found = originals(self.settings, [case.letter for case in cases])
        for case, (letter, original) in zip(cases, found, strict=True):
            error = self._unfit(case, named.get(letter.source.topic), original, bounds)
            error = error or self._unconfirmed(case, there[letter.source])
            if error is None:
                ready.append(case)
            else:
                refused.append(RedriveOutcome(case.letter, "refused", error=error))
        return ready, refused

    def _unfit(
        self,
        case: _Case,
        topic: Topic | None,
        original: Original | EventError,
        bounds: Mapping[TopicPartition, tuple[int, int]],
    ) -> StreamwardError | None:
        """Return why the original cannot be redriven, or None once the case has its target."""
        source = case.letter.source
        if isinstance(original, EventError):
            return original
        if topic is None:
            return NotFoundError(
                f"{source}: topic {source.topic} is not of this deployment, whose topics.prefix is "
                f"{self.settings.topics.prefix!r}; run the command with the settings of the other one"
            )
        try:
            check_size(topic, original.key, original.payload)
        except EventError as exc:
            return EventError(f"{source}: {exc}", reason=exc.reason)
        partition = home(original.key, source, sum(name == topic.name for name, _ in bounds))
        if (topic.name, partition) not in bounds:
            return NotFoundError(f"{source}: topic {topic.name} does not have this partition any more")
        if not self.order.force:
            reasons = [hopeless(letter, topic, original) for letter in case.letters]
            if all(reasons):
                return RefusedError(
                    f"{source}: {reasons[0]}. `streamward admin dlq drop` closes the dead letter; --force retries"
                )
        case.original, case.target = original, RedriveTarget(partition, bounds[topic.name, partition][1])
        return None

    def _unconfirmed(self, case: _Case, source: LetterSource) -> StreamwardError | None:
        """Return why the record at the source does not confirm the dead letters about it."""
        assert case.original is not None  # noqa: S101 - _unfit found nothing wrong
        at = case.letter.source
        why = forgery(self.settings, case.letters, case.original, source)
        if why is not None:
            return RefusedError(
                f"{at}: {why}. `streamward admin dlq drop` closes it; who else may write to dead-letters?"
            )
        if source.record is None and not self.order.source_gone:
            return RefusedError(
                f"{at}: retention has deleted it, so nothing confirms what its dead letter says. Look at that with "
                "`streamward admin dlq show`, then give --source-gone"
            )
        return None

    # --- claim, look, write -----------------------------------------------------------------------------------------

    def _carry_out(self, cases: list[_Case]) -> list[RedriveOutcome]:
        """Do all of it before anything is printed: the reader of our output may be slow, or leave."""
        begun = time.monotonic()
        try:
            self._claim(cases)
            won = [case for case in cases if self._holds(case)]
            if self.order.verdict == "dropped":
                outcomes = [RedriveOutcome(case.letter, "dropped") for case in won]
            else:
                outcomes = self._write(won, begun)
        except LogError as exc:
            if self.order.verdict == "dropped":
                raise
            raise LogError(
                f"{exc}. {len(cases)} dead letters may be claimed already without their records being written: "
                f"`streamward admin dlq retry --all-matching --unfinished` finishes that, {STALE_S} s from now"
            ) from exc
        return outcomes + [self._lost(case) for case in cases if not self._holds(case)]

    def _lost(self, case: _Case) -> RedriveOutcome:
        first = self.letters.decisions(case.letter.source)[case.attempt - 1]
        why = f"another process was faster: {first.said} ({first.at}). Nothing was done here"
        return RedriveOutcome(case.letter, "refused", error=RefusedError(f"{case.letter.source}: {why}"))

    def _claim(self, cases: list[_Case]) -> None:
        """Write the decisions, and read the topic up to them."""
        now_ms = times.now_ms()
        for case in cases:
            claim = decision(
                case.letter, self.order.verdict, case.attempt, self.order.said,
                now_ms=now_ms, target=case.target,
            )  # fmt: skip

            def acknowledged(at: Coordinates, case: _Case = case) -> None:
                case.claimed_at = at

            self.producer.send(claim, on_ack=acknowledged)
        self.producer.flush()
        ends: dict[TopicPartition, int] = {}
        for at in (case.claimed_at for case in cases):
            assert at is not None  # noqa: S101 - flush returned
            ends[at.topic, at.partition] = max(at.offset + 1, ends.get((at.topic, at.partition), 0))
        go_on(self.settings, self.letters, ends)

    def _holds(self, case: _Case) -> bool:
        return any(found.at == case.claimed_at for found in self.letters.decisions(case.letter.source))

    def _write(self, cases: list[_Case], begun: float) -> list[RedriveOutcome]:
        """Write the originals, as long as no other process may take their claims for abandoned."""
        back: dict[Coordinates, Coordinates] = {}
        for case in cases:
            if time.monotonic() - begun > CLAIM_S:
                break
            assert case.original is not None and case.target is not None  # noqa: S101 - _prepared found them
            source = case.letter.source

            def acknowledged(at: Coordinates, source: Coordinates = source) -> None:
                back[source] = at

            self.producer.send_bytes(
                (source.topic, case.target.partition),
                case.original.key,
                case.original.payload,
                headers=case.original.headers | {RETRY_HEADER: decision_id(source, case.attempt).encode()},
                on_ack=acknowledged,
            )
        self.producer.flush()
        why = f"claimed, but after {CLAIM_S} s it was too late to write it; the same command does so in {STALE_S} s"
        return [
            RedriveOutcome(case.letter, "retried", back[case.letter.source])
            if case.letter.source in back
            else RedriveOutcome(case.letter, "refused", error=LogError(f"{case.letter.source}: {why}"))
            for case in cases
        ]


def home(key: bytes | None, source: Coordinates, partitions: int) -> int:
    """Return the partition of a record: that of its key; without a key, the one it was in."""
    return source.partition if key is None else (murmur2(key) & 0x7FFFFFFF) % max(partitions, 1)
