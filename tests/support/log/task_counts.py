"""What became of every task of a log, counted from the topics without the program's own audit.

    tasks ─ one each ─ groups ─ whole, of their own answers, with their own rewards
                         └─ per policy ─ batches, without gaps ─ one version each

Not covered: groups that may be dropped, answers and scores that may fail: here everything has to come off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, DeadLetter, Event, Response, Reward, Task
from schemas.serde import Poison
from streams.kafka import admin, reader
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings

E = TypeVar("E", bound=Event)


class Log:
    """What the topics say. Each look reads on where the one before ended."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._labels = {topic.event: label for label, topic in topics(settings.topics).items()}
        self._known: dict[str, list[tuple[Record, Any]]] = {}
        self._next: dict[TopicPartition, int] = {}

    def read(self, kind: type[E]) -> list[tuple[Record, E]]:
        """Return every event of a kind with its record; in order, as far as they are of one partition."""
        label = self._labels[kind]
        known, bounds = self._known.setdefault(label, []), admin.offsets(self._settings, [label])
        ends = {tp: end for tp, (_, end) in bounds.items()}
        for record in reader.read(self._settings, {tp: self._next.get(tp, 0) for tp in ends}, ends):
            event = record.decode(kind)
            assert not isinstance(event, Poison), event.error
            known.append((record, event))
        self._next |= ends
        return known

    def trained(self) -> list[int]:
        """Return the versions that were trained, as often as that is said."""
        return [event.version for _, event in self.read(AdapterEvent) if event.kind == "trained"]

    def served(self) -> int:
        """Return the newest version that answered."""
        return max((response.adapter_version for _, response in self.read(Response)), default=0)

    def groups(self, policy: str) -> dict[str, int]:
        """Return the offset of a policy's group, by task: the first, which counts."""
        found: dict[str, int] = {}
        for record, group in self.read(AdvantagedGroup):
            if group.policy == policy:
                found.setdefault(group.task_id, record.at.offset)
        return found

    def batches(self, policy: str) -> list[Batch]:
        """Return the batches of a policy, as often as they were written."""
        return [batch for _, batch in self.read(Batch) if batch.policy == policy]

    def check(self, task_ids: Iterable[str]) -> None:
        """Fail unless these are the tasks, and each has one group, whole and of its own."""
        sent = Counter(task_ids)
        groups: dict[str, tuple[Record, AdvantagedGroup]] = {}
        for record, group in self.read(AdvantagedGroup):
            first, _ = groups.setdefault(group.task_id, (record, group))
            again = f"{group.task_id}: a worker that takes over may write its group again, with the same bytes"
            assert record.payload == first.payload, again
        assert Counter(task.task_id for _, task in self.read(Task)) == sent
        grouped = Counter(groups.keys())
        assert grouped == sent, f"without a group: {sent - grouped}; of no task: {grouped - sent}"
        answers = {(record.at.partition, record.at.offset): one for record, one in self.read(Response)}
        rewards = {reward.response_id: reward.value for _, reward in self.read(Reward)}
        for _, group in groups.values():
            assert group.complete and group.dropped_reason is None and not group.left_out, group.task_id
            assert len(group.responses) == group.group_size
            for slot, member in enumerate(group.responses):
                answer = answers[member.partition, member.offset]
                by = (answer.task_id, answer.sampling_id, answer.adapter_version, answer.slot, answer.policy)
                assert by == (group.task_id, group.sampling_id, group.adapter_version, slot, group.policy)
                assert (answer.response_id, answer.error) == (member.response_id, None)
                assert (answer.completion_token_ids, answer.logprobs) == (member.completion_token_ids, member.logprobs)
                assert member.reward == rewards[answer.response_id]
        # a task may be sampled twice when agents change over; the first whole sampling wins, and the rest is told of
        wrong = [one.error for _, one in self.read(DeadLetter) if one.reason not in ("superseded", "late")]
        assert not wrong

    def check_line(self, policy: str) -> None:
        """Fail unless each group of a policy is in one batch, named by one, or younger, and each batch is a version."""
        batches = self.batches(policy)
        assert [batch.sequence for batch in batches] == list(range(len(batches)))
        assert sorted(self.trained()) == list(range(1, len(batches) + 1))
        passed = [offset for batch in batches for offset in batch.groups_offsets]
        passed += [dropped.offset for batch in batches for dropped in batch.dropped]
        offsets = [record.at.offset for record, group in self.read(AdvantagedGroup) if group.policy == policy]
        assert sorted(passed) == [offset for offset in sorted(offsets) if offset <= max(passed)]
