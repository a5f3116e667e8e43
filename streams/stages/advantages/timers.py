"""When to write control records, which close and evict groups as time passes.

state of a task ──► note ──► due(now) ──► expire: the group is closed as it is
                                      └─► evict: the closed group is forgotten

A train task that is held back for the trainer has no deadline yet. It expires when its own record has left the log
(`topics.retention_days`): it cannot be answered any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from schemas.conventions import EARLIEST_MS
from schemas.events import ControlKind, GroupControl, derive_id
from streams.kafka.record import partition_of
from streams.kafka.topics import DAY_MS
from streams.settings.model import Settings
from streams.stages.advantages.state import ClosedGroup, GroupState, OpenGroup


class Due(NamedTuple):
    """A future control record: its time and its reason."""

    when_ms: int
    kind: ControlKind
    reason: str


class DeadlineTimers:
    """The future control records, in memory. They are rebuilt from the table.

    Timers are stopped while there is a backlog: after an outage of an hour, responses that came in time are in the log,
    and closing their groups before they are read would throw them away. A record older than BACKLOG_S is a sign of a
    backlog; it is over when none came for QUIET_S. So a group can leave later than its deadline plus grace.
    """

    BACKLOG_S = 30
    QUIET_S = 5

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.advantages
        self._partitions = settings.topics.partitions
        self.owned: set[int] = set()
        self._kept_ms = int(settings.topics.retention_days * DAY_MS)
        self._due: dict[str, Due] = {}
        self._quiet_from_ms = 0

    def record_read(self, timestamp_ms: int, now_ms: int) -> None:
        """Record that a record with this time was read now."""
        if EARLIEST_MS <= timestamp_ms < now_ms - self.BACKLOG_S * 1000:
            self._quiet_from_ms = now_ms + self.QUIET_S * 1000

    def rebuild(self, owned: set[int], states: Iterable[tuple[str, GroupState]], now_ms: int) -> None:
        """Start over from the states of the tasks in the partitions that are owned now."""
        self.owned, self._due = owned, {}
        self._quiet_from_ms = now_ms + self.QUIET_S * 1000
        for task_id, state in states:
            if partition_of(task_id, self._partitions) in owned:
                self.note(task_id, state)

    def note(self, task_id: str, state: GroupState) -> None:
        """Remember when this state wants a control record, if ever."""
        self._due.pop(task_id, None)
        if isinstance(state, OpenGroup) and (due := self._expires(state)) is not None:
            self._due[task_id] = due._replace(when_ms=due.when_ms + int(self._rule.grace_s * 1000))
        elif isinstance(state, ClosedGroup):
            self.note_closed(task_id, state.closed_ms)

    def note_closed(self, task_id: str, closed_ms: int) -> None:
        """Remember when a group that closed at this time is to be forgotten, if ever."""
        if self._rule.evict_after_s:
            when_ms = closed_ms + int(self._rule.evict_after_s * 1000)
            self._due[task_id] = Due(when_ms, "evict", "remembered long enough")

    def due(self, now_ms: int) -> list[GroupControl]:
        """Return the control records whose time has come, each once; none while there is a backlog."""
        if now_ms < self._quiet_from_ms:
            return []
        ready = {task_id: due for task_id, due in self._due.items() if due.when_ms <= now_ms}
        for task_id in ready:
            del self._due[task_id]
        return [
            GroupControl(
                control_id=derive_id(task_id, due.kind),
                task_id=task_id,
                created_at=now_ms,
                kind=due.kind,
                reason=due.reason,
            )
            for task_id, due in ready.items()
        ]

    def _expires(self, group: OpenGroup) -> Due | None:
        """Return when this group must be closed, not counting the grace; None if it may wait for ever."""
        task, wait_ms = group.task, int(self._rule.deadline_s * 1000)
        if task is not None and task.deadline_ms is not None:
            return Due(task.deadline_ms, "expire", "deadline passed")
        if not wait_ms:
            return None
        if task is None:
            return Due(group.first_seen_ms + wait_ms, "expire", "deadline passed")
        if not self._kept_ms:
            return None
        return Due(task.timestamp_ms + self._kept_ms, "expire", "never sampled, and its record has left the log")
