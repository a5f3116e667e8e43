"""What Faust and its client may log: warnings, and none of them over and over.

    faust, mode, aiokafka loggers ──► level WARNING ──► once per template and period ──► the process's own handlers

A broker that is away makes aiokafka print dozens of lines a second; one of each kind tells the same.

Not covered: the text of a line that was left out. Its level, logger and template are those of the one that was printed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

REPEAT_AFTER_S = 30.0
SERVICES = ("streams.worker.app", "streams.worker.table", "streams.worker.faust.watchdog")
"""Where mode logs for our own services, since it names loggers by module; what we say goes to `streamward.*`."""


def quieten() -> None:
    """Let only warnings of faust, mode and aiokafka through, and each of those at most every REPEAT_AFTER_S."""
    for name in ("faust", "mode", "aiokafka", "asyncio", *SERVICES):
        logging.getLogger(name).setLevel(logging.WARNING)
    limit = RepeatLimit()
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("faust", "mode", "aiokafka"):
            logging.getLogger(name).addFilter(limit)


class RepeatLimit(logging.Filter):
    """Passes one record per message template and period; the next one says how many were left out."""

    def __init__(self, period_s: float = REPEAT_AFTER_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._period_s, self._clock = period_s, clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to pass `record`."""
        key = (record.name, record.levelno, str(record.msg)[:80])
        last, left_out = self._seen.get(key, (float("-inf"), 0))
        now = self._clock()
        if now - last < self._period_s:
            self._seen[key] = (last, left_out + 1)
            return False
        self._seen[key] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} like this were left out)"
        return True
