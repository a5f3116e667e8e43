"""Which batches and groups taught a behaviour, by the advantages of the answers that show it.

    lineage: responses of each version's step, with advantages ──► taught, by group and batch, the most first

    taught of a group = sum_i A_i b_i / n      b_i: 1 if response i shows it, else 0; n: its responses
    taught of a batch = mean over its groups

An advantage weights the gradient of a response's log-probability (GRPO, arXiv:2402.03300), so the sum says how strongly
a step pushed towards answers with the behaviour; below 0 it pushed away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plugins.bisect.behaviour import GroupPlace, TaughtResponse
from schemas.events import Coordinates


@dataclass(frozen=True, slots=True)
class TaughtGroup:
    """A group, and what it taught."""

    place: GroupPlace
    showing: int
    """Responses that show the behaviour."""
    responses: int
    taught: float

    def coordinates(self, topic: str) -> Coordinates:
        """Return its coordinates."""
        return Coordinates(topic, self.place.partition, self.place.offset)


@dataclass(frozen=True, slots=True)
class TaughtBatch:
    """A batch, and what it taught."""

    version: int
    batch: int
    groups: int
    showing: int
    responses: int
    taught: float


def rank_groups(responses: Iterable[TaughtResponse], shows: Mapping[str, bool]) -> list[TaughtGroup]:
    """Return the groups of these responses, the one that taught most first.

    `shows` has the behaviour by response id; a response whose record is gone counts as one without it.
    """
    members = defaultdict[GroupPlace, list[tuple[float, bool]]](list)
    for response in responses:
        place = response.place
        members[place].append((response.advantage, shows.get(response.response_id, False)))
    groups = [
        TaughtGroup(
            place,
            sum(showing for _, showing in answers),
            len(answers),
            sum(advantage for advantage, showing in answers if showing) / len(answers),
        )
        for place, answers in members.items()
    ]
    return sorted(groups, key=lambda group: (-group.taught, group.place))


def by_batch(groups: Iterable[TaughtGroup]) -> list[TaughtBatch]:
    """Return what each batch taught, in the order of the versions."""
    of_batch = defaultdict[tuple[int, int], list[TaughtGroup]](list)
    for group in groups:
        of_batch[group.place.version, group.place.batch].append(group)
    return [
        TaughtBatch(
            version,
            batch,
            len(members),
            sum(group.showing for group in members),
            sum(group.responses for group in members),
            sum(group.taught for group in members) / len(members),
        )
        for (version, batch), members in sorted(of_batch.items())
    ]


def most_taught(groups: Iterable[TaughtGroup], turning: tuple[int, int], limit: int) -> list[TaughtGroup]:
    """Return at most so many groups that taught the behaviour on the way to the turning versions, ends included."""
    first, last = turning
    return [group for group in groups if group.taught > 0 and first <= group.place.version <= last][:limit]
