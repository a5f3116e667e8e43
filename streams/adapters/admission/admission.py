"""Limit the train tasks that may be sampled before the trainer has caught up.

    groups, batches of one policy ──► the batch of a new group ──► room for more, or wait

A group sampled by a version that has taken v batches, and that lands in batch s, has lag s - v, and the batch stage
drops it as stale beyond `batches.max_policy_lag`. So an agent must not start tasks that would land too late. AReaL
states it (arXiv:2505.24298, section 5.1) as floor((N - 1) / B) <= i + eta, N counting everything ever generated.
Restarts, drops and batches that were cut early make N hard to know, so the same inequality is used with the outstanding
work in the log:

    S + floor((P + F) / B) <= v + L      the batch that one more group would land in

    S  batches cut so far (the next sequence)          B  batches.groups
    P  groups beyond those batches that take a place  L  batches.max_policy_lag
    F  samplings whose group is not on `groups` yet    v  batches taken by the version that would sample

which is P + F < (v + L + 1 - S) * B. With v that of the newest version, S - v batches wait for the trainer, and it says
that at most (L + 1) * B groups are between sampling and training; a version that is trained but not yet served counts
for nothing, as it samples nothing.

It cannot deadlock. Every F becomes a group, or lacks a score that its scorer gave up on: then its place is free at once
(`give_up`), and its group counts if it comes after all. A group that takes no place in a batch (dropped, stale,
doubled, and zero variance unless `batches.zero_variance` is keep) leaves at once, by the batch stage's own rule. The
rest either fills the next batch, so S and then v advance, or is less than B, and then a served v = S has room.

A group can still become stale: if its scores take so long that groups sampled later fill its batch. Waiting for it
would let one slow scorer stop everything. Each agent knows only its own F, so n agents may overshoot by what the other
n - 1 have in flight. And with `advantages.deadline_s` 0, a task that no scoring agent reads holds its place for ever.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from schemas.events import AdvantagedGroup, Batch
from streams.settings.model import Batches

REMEMBERED_TASKS = 100_000
"""Number of tasks that `RecentTasks` remembers, in 8 bytes each."""


class RecentTasks:
    """The newest REMEMBERED_TASKS task ids, so that a task delivered again is not sampled in vain."""

    def __init__(self, task_ids: Iterable[str] = ()) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        for task_id in task_ids:
            self.add(task_id)

    def __contains__(self, task_id: str) -> bool:
        return _digest(task_id) in self._digests

    def add(self, task_id: str) -> None:
        """Remember a task."""
        self._digests[_digest(task_id)] = None
        if len(self._digests) > REMEMBERED_TASKS:
            self._digests.popitem(last=False)


class Admission:
    """The fold of one policy's `groups` and `batches`, and of this agent's tasks in flight. No clock, no I/O."""

    def __init__(self, rule: Batches, unscored: RecentTasks | None = None) -> None:
        """`unscored`: tasks with an answer that its scorer gave up on; the caller adds to it, and calls `give_up`."""
        self._rule = rule
        self._unscored = RecentTasks() if unscored is None else unscored
        self.sequence = 0
        """Batches cut so far, by the `batches` topic: the sequence of the next one."""
        self._settled = -1  # offset on `groups` of the last group those batches hold
        self._pending: dict[int, int] = {}  # offset on `groups` -> batches of its version, beyond `_settled`
        self._seen: dict[str, int] = {}  # group_id -> batches of its version, as long as a double would not be stale
        self._in_flight: dict[str, int | None] = {}  # task_id -> when to give up waiting for its group, ms
        self._out = RecentTasks()

    @property
    def in_flight(self) -> int:
        """Samplings whose group is not on `groups` yet."""
        return len(self._in_flight)

    @property
    def pending(self) -> int:
        """Groups that take a place and are not in a batch yet."""
        sequence, pending = self.sequence, 0
        for batches in self._pending.values():
            if not 0 <= sequence - batches <= self._rule.max_policy_lag:
                continue  # the batch stage drops it: stale, or of a version it does not know
            pending += 1
            if pending % self._rule.groups == 0:
                sequence += 1
        return pending

    def batch(self, batch: Batch) -> None:
        """Take in a batch: its groups, and all groups before them, are settled."""
        if batch.sequence < self.sequence:
            return  # a repeated batch
        self.sequence = batch.sequence + 1
        self._settled = max(self._settled, *batch.groups_offsets, *(dropped.offset for dropped in batch.dropped), -1)
        self._pending = {offset: batches for offset, batches in self._pending.items() if offset > self._settled}
        oldest = self.sequence - self._rule.max_policy_lag
        self._seen = {group_id: batches for group_id, batches in self._seen.items() if batches >= oldest}

    def group(self, group: AdvantagedGroup, offset: int) -> None:
        """Take in a group: its task is no longer in flight, and it waits for a batch if it takes a place."""
        self._in_flight.pop(group.task_id, None)
        self._out.add(group.task_id)
        if group.purpose != "train":
            return
        doubled = group.group_id in self._seen
        self._seen[group.group_id] = group.batches
        counts = self._rule.zero_variance == "keep" or not group.flat
        usable = group.dropped_reason is None and not group.is_outside
        if not doubled and usable and counts and offset > self._settled:
            self._pending[offset] = group.batches

    def start(self, task_id: str, *, give_up_ms: int | None) -> None:
        """Count a task as in flight until its group is seen, or until `give_up_ms` (see `expire`)."""
        if not self.is_out(task_id) and task_id not in self._unscored:
            self._in_flight[task_id] = give_up_ms

    def give_up(self, task_id: str) -> None:
        """Stop counting a task of `unscored`: its group may come late or never."""
        self._in_flight.pop(task_id, None)

    def expire(self, now_ms: int) -> list[str]:
        """Stop counting tasks with overdue groups, and return them.

        The advantages stage closes every group soon after its deadline. A missing group was closed before this agent
        read `groups`; it must not hold a place for ever.
        """
        late = [task_id for task_id, limit in self._in_flight.items() if limit is not None and limit < now_ms]
        for task_id in late:
            del self._in_flight[task_id]
        return late

    def is_out(self, task_id: str) -> bool:
        """Whether the group of this task is on `groups`: another answer to it would come too late."""
        return task_id in self._out

    def room(self, batches: int) -> int:
        """Return how many more train tasks a version that has taken this many batches may start now; 0 or less:
        none."""
        allowed = (batches + self._rule.max_policy_lag + 1 - self.sequence) * self._rule.groups
        return allowed - self.pending - len(self._in_flight)

    def hopeless(self, batches: int) -> bool:
        """Whether no future batch may hold a group of a version that has taken this many batches: waiting is
        useless."""
        return batches + self._rule.max_policy_lag < self.sequence


def _digest(task_id: str) -> bytes:
    return hashlib.blake2b(task_id.encode(), digest_size=8).digest()
