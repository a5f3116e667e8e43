"""When to write which control record, so that time can act on groups.

state of a task ──► note ──► due(now) ──► expire: the group is closed as it is
                                      └─► evict: the closed group is forgotten
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from schemas.events import GroupControl, derive_id
from streams.kafka.record import partition_of
from streams.settings.model import Settings
from streams.stages.advantages.state import ClosedGroup, GroupState, OpenGroup


class DeadlineTimers:
    """The control records that are to come. Held in memory and rebuilt from the table, so never a fact.

    No time passes while there is a backlog: after an outage of an hour, responses that came in time are in the log, and
    closing their groups before they are read would throw them away. A record older than BACKLOG_S is a sign of a
    backlog; it is over when none came for QUIET_S. So a group can leave later than its deadline and grace say.
    """

    BACKLOG_S = 30
    QUIET_S = 5

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.advantages
        self._partitions = settings.topics.partitions
        self.owned: set[int] = set()
        self._due: dict[str, tuple[int, Literal["expire", "evict"]]] = {}
        self._quiet_from_ms = 0

    def record_read(self, timestamp_ms: int, now_ms: int) -> None:
        """Note that a record of this time was read now."""
        if timestamp_ms < now_ms - self.BACKLOG_S * 1000:
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
        if isinstance(state, OpenGroup) and (deadline_ms := self._deadline_ms(state)) is not None:
            self._due[task_id] = (deadline_ms + int(self._rule.grace_s * 1000), "expire")
        elif isinstance(state, ClosedGroup) and self._rule.evict_after_s:
            self._due[task_id] = (state.closed_ms + int(self._rule.evict_after_s * 1000), "evict")

    def due(self, now_ms: int) -> list[GroupControl]:
        """Return the control records whose time has come, each once; none while there is a backlog."""
        if now_ms < self._quiet_from_ms:
            return []
        ready = [(task_id, kind) for task_id, (when_ms, kind) in self._due.items() if when_ms <= now_ms]
        for task_id, _ in ready:
            del self._due[task_id]
        return [
            GroupControl(
                control_id=derive_id(task_id, kind),
                task_id=task_id,
                created_at=now_ms,
                kind=kind,
                reason="deadline passed" if kind == "expire" else "remembered long enough",
            )
            for task_id, kind in ready
        ]

    def _deadline_ms(self, group: OpenGroup) -> int | None:
        """Return when this group must be closed, in ms since the epoch; None if it may wait for ever."""
        if group.task is not None:
            return group.task.deadline_ms
        wait_ms = int(self._rule.deadline_s * 1000)
        return group.first_seen_ms + wait_ms if wait_ms else None
