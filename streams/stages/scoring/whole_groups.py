"""Find the response that completes its group, for scorers that compare all responses to a task.

    responses, as they are read ──► slots of each sampling ──► all there? ──► the last of them has the whole group
    a partition's records before it was ours ──► read back once, when its first such task comes ───────┘

A group is complete with the response that is last in the log, so every process finds the same response, and only that
one has the group scored. Nothing is kept for it: the others are finished, and a process that takes over a partition
reads its earlier records. If a process is killed before the last response is committed, the next one scores the group
again, with the same request and under the same ids.

Not covered: a group with responses more than LOOKBACK_S apart, if an agent started in between. If a response never
comes, its siblings get no reward from such a scorer, and the group says so (`unranked`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from schemas.events import Response
from schemas.serde import Poison
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.kafka.tracked import TakenRecord
from streams.settings.model import Settings

LOOKBACK_S = 24 * 3600.0
"""How far back a partition that another process owned is read; at least advantages.deadline_s."""
MAX_SAMPLINGS = 10_000
"""Maximum number of incomplete samplings; the oldest is forgotten."""

Group = tuple[Response, ...]
"""The responses of a sampling that did not fail, by slot; without their tokens."""


@dataclass(slots=True)
class OpenSampling:
    """The slots of a sampling read so far."""

    slots: dict[int, tuple[int, Response]] = field(default_factory=dict)
    """The first response of each, and its offset."""

    def add(self, offset: int, response: Response) -> None:
        """Add a response; of two of one slot the first in the log counts."""
        if response.slot not in self.slots or offset < self.slots[response.slot][0]:
            self.slots[response.slot] = offset, _without_tokens(response)

    def group(self, offset: int, response: Response) -> Group | None:
        """Return the group if it is complete, and `response`, at `offset`, is its last or was sent again; else None."""
        if len(self.slots) < response.group_size:
            return None
        was_sent_again = offset > self.slots[response.slot][0]
        if not was_sent_again and offset < max(place for place, _ in self.slots.values()):
            return None
        return tuple(other for _, (_, other) in sorted(self.slots.items()) if other.error is None)


class WholeGroups:
    """The samplings of which some slots were read; one thread calls it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = topics(settings.topics)["responses"].name
        self._samplings: OrderedDict[str, OpenSampling] = OrderedDict()
        self._first: dict[int, TakenRecord] = {}
        """First record read of each partition since it was assigned."""
        self._read_back: set[int] = set()
        """Partitions with everything before that record known."""

    def add(self, taken: TakenRecord, response: Response) -> None:
        """Add a response that was read."""
        partition = taken.record.at.partition
        if partition not in self._first or self._first[partition].tracker is not taken.tracker:
            self._first[partition] = taken
            self._read_back.discard(partition)
        self._add(taken.record.at.offset, response)

    def may_complete(self, taken: TakenRecord, response: Response) -> bool:
        """Whether a response may be the last of its group, without looking up its task."""
        if taken.record.at.partition not in self._read_back:
            return response.group_size > 1
        sampling = self._samplings.get(response.sampling_id)
        return sampling is not None and bool(sampling.group(taken.record.at.offset, response))

    def group_of(self, taken: TakenRecord, response: Response) -> Group | None:
        """Return the group that a response completes, if any, for a task that compares responses. The first call for a
        partition reads its records from before it was assigned. Raises LogError if the broker does not answer.
        """
        partition = taken.record.at.partition
        if partition not in self._read_back:
            self._read_back.add(partition)
            for offset, earlier in self._before(partition, self._first[partition].record.at.offset):
                self._add(offset, earlier)
        sampling = self._add(taken.record.at.offset, response)
        group = sampling.group(taken.record.at.offset, response)
        if group is not None:
            self.forget(response)
        return group

    def forget(self, response: Response) -> None:
        """Forget the sampling of a response, for a task that scores responses one by one."""
        self._samplings.pop(response.sampling_id, None)

    def _add(self, offset: int, response: Response) -> OpenSampling:
        sampling = self._samplings.setdefault(response.sampling_id, OpenSampling())
        sampling.add(offset, response)
        self._samplings.move_to_end(response.sampling_id)
        if len(self._samplings) > MAX_SAMPLINGS:
            self._samplings.popitem(last=False)
        return sampling

    def _before(self, partition: int, end: int) -> Iterator[tuple[int, Response]]:
        """Yield the responses of a partition before `end`, with their offsets."""
        tp = self._topic, partition
        lookback_s = max(LOOKBACK_S, self._settings.advantages.deadline_s)
        since = offsets_at(self._settings, ["responses"], now_ms() - round(lookback_s * 1000))[tp]
        first = offsets(self._settings, ["responses"])[tp][0]
        start = end if since < 0 else min(end, max(first, since))
        for record in read(self._settings, {tp: start}, {tp: end}):
            response = record.decode_placed(Response, self._settings.topics.partitions)
            if not isinstance(response, Poison):
                yield record.at.offset, response


def _without_tokens(response: Response) -> Response:
    """Return a response as scorers that compare need it: tokens are most of its bytes."""
    return replace(
        response,
        prompt_token_ids=TokenIds(),
        completion_token_ids=TokenIds(),
        logprobs=Logprobs(),
        loss_mask=LossMask(),
        branches=(),
        turns=(),
    )
