"""Schedules: every period, or daily at a time.

    1h ──► 00:00, 01:00, …        daily 03:00 ──► 03:00 of each day        the newest that is not after now ──► due_at

Ticks are in UTC, at multiples of the period since 1970, so they do not depend on when a process started. Two schedulers
name the same tick, and of the ticks missed while all were down only the newest is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DAY_MS: Final = 86_400_000
UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_PERIOD = re.compile(r"([1-9]\d{0,5})([smhdw])")
_DAILY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class TickSchedule:
    """Ticks at `offset_ms` and every `period_ms` after it."""

    period_ms: int
    offset_ms: int = 0

    @classmethod
    def parse(cls, every: str | None, daily: str | None) -> TickSchedule | None:
        """Return the schedule of a rule; None if it has none. Raises ValueError.

        >>> TickSchedule.parse("6h", None), TickSchedule.parse(None, "03:30")
        (TickSchedule(period_ms=21600000, offset_ms=0), TickSchedule(period_ms=86400000, offset_ms=12600000))
        """
        if every is not None and daily is not None:
            raise ValueError(f"every is {every} and daily {daily}; a rule has one schedule: leave one of them out")
        if every is not None:
            if (parts := _PERIOD.fullmatch(every)) is None:
                raise ValueError(f"every is {every!r}; expected a period, e.g. 30m, 6h or 1d")
            return cls(int(parts[1]) * UNIT_MS[parts[2]])
        if daily is None:
            return None
        if (parts := _DAILY.fullmatch(daily)) is None:
            raise ValueError(f"daily is {daily!r}; expected a time of day in UTC, e.g. 03:00")
        return cls(DAY_MS, int(parts[1]) * UNIT_MS["h"] + int(parts[2]) * UNIT_MS["m"])

    def newest(self, now_ms: int) -> int:
        """Return the newest tick that is not after `now_ms`.

        >>> TickSchedule(1000).newest(5999), TickSchedule(1000, 300).newest(5000)
        (5000, 4300)
        """
        return (now_ms - self.offset_ms) // self.period_ms * self.period_ms + self.offset_ms
