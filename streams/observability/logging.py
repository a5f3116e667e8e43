"""What a process says while it works: log lines on stderr, with coordinates, and without floods.

    logging.getLogger(__name__).warning("...", extra={"at": record.at})
        ──► 11:47:38 warning streams.stages.scoring.agent: streamward.rewards[3]@1041: ...

Our own loggers speak from the chosen level up; libraries only from warning up, even though mode sets the root logger
to DEBUG when Faust starts. The same sentence (logger, level, template) is printed BURST times in WINDOW_S seconds; the
rest is counted, and the count is printed with the next one, or at the end. At level debug nothing is held back.

Not covered: metrics and traces.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

OURS = ("streams", "trainer", "schemas", "streamward")
"""Loggers whose name begins so are ours."""
BURST = 10
LIBRARY_BURST = 3
"""Libraries repeat themselves while a broker is away, and one template may carry all they say."""
WINDOW_S = 10.0
LEVELS = ("debug", "info", "warning", "error")


@dataclass
class _Suppressed:
    """Records that were not printed: how many, and the last of them."""

    count: int = 0
    last: logging.LogRecord | None = None

    def append(self, record: logging.LogRecord) -> None:
        self.count, self.last = self.count + 1, record


@dataclass
class _Burst:
    """What one sentence did lately."""

    began: float
    printed: int = 0
    held: _Suppressed = field(default_factory=_Suppressed)


class StderrLog(logging.Handler):
    """Writes to whatever `sys.stderr` is at the time, so that a test that replaces it sees the lines."""

    def __init__(self, level: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(level)
        self._clock = clock
        self._windows: dict[tuple[str, int, str], _Burst] = {}
        self.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is printed; one that is printed after held ones says how many those were."""
        ours = record.name.partition(".")[0] in OURS
        if record.levelno < logging.WARNING and not ours:
            return False
        if record.name == "librdkafka" and self.level > logging.DEBUG and record.getMessage().endswith(": retrying"):
            return False  # it mends that by itself; what it cannot mend comes back as an error
        return self.level <= logging.DEBUG or self._fits(record, BURST if ours else LIBRARY_BURST)

    def _fits(self, record: logging.LogRecord, burst: int) -> bool:
        window = self._windows.setdefault((record.name, record.levelno, str(record.msg)), _Burst(self._clock()))
        if self._clock() - window.began < WINDOW_S:
            window.printed += 1
            if window.printed <= burst:
                return True
            window.held.append(record)
            return False
        window.began, window.printed = self._clock(), 1
        record.held_back, window.held = window.held.count, _Suppressed()
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. A stderr that is gone is no reason to fail."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Say what is still held back."""
        for window in self._windows.values():
            if window.held.last is not None:
                window.held.last.held_back = window.held.count - 1
                self.emit(window.held.last)
        self._windows.clear()
        super().close()


class _LineFormatter(logging.Formatter):
    """Lower-case levels; coordinates before the message; the held-back count after it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)
        shown.levelname = record.levelname.lower()
        if (at := getattr(record, "at", None)) is not None:
            shown.message = f"{at}: {record.message}"
        if held := getattr(record, "held_back", 0):
            shown.message = f"{shown.message} (and {held} more like this)"
        return super().formatMessage(shown)


def set_up(level: str) -> None:
    """Send log lines of this process to stderr from `level` up (one of LEVELS). Calling it again replaces the first."""
    number: int = getattr(logging, level.upper())
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, StderrLog)]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(StderrLog(number))
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(number)
