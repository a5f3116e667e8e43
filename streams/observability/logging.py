"""The log lines of a process on stderr, as text or JSON, with coordinates and a rate limit.

    logging.getLogger(__name__).warning("...", extra=record.log_extra)
        ──► 11:47:38 warning streams.stages.scoring.scoring_agent: streamward.rewards[3]@1041: ...
        ──► {"time": "2026-11-22T11:47:38.120Z", "level": "warning", "logger": "streams.stages.scoring.scoring_agent",
             "message": "...", "topic": "streamward.rewards", "partition": 3, "offset": 1041, "trace_id": "4bf9..."}

Our own loggers print from the chosen level up; libraries only from warning up, even though mode sets the root logger
to DEBUG when Faust starts. A message (logger, level, template) is printed a few times per window; the rest is counted,
and the count is printed with the next one, or at the end. A message with `extra={"once": True}` is about the log, and
every command that reads it would repeat it: it is printed once. At level debug nothing is held back.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from schemas import json_text
from streams.observability.trace_context import Context

OWN_LOGGERS = ("gateway", "plugins", "schemas", "streams", "streamward", "trainer")
"""First parts of the names of our loggers."""
FAUST = ("faust", "mode", "aiokafka")
FAUST_SERVICES = (
    "streams.worker.faust.faust_app",
    "streams.worker.faust.faust_table",
    "streams.worker.faust.stall_watch",
)
"""Mode's loggers for our own services, since it names loggers by module; our own lines go to `streamward.*`."""
LEVELS = ("debug", "info", "warning", "error")

Format = Literal["text", "json"]


class Burst(NamedTuple):
    """How often one message is printed: `lines` times per `window_s`."""

    lines: int
    window_s: float


OUR_BURST = Burst(10, 10.0)
LIBRARY_BURST = Burst(3, 10.0)
"""Libraries repeat themselves while a broker is unreachable, and one template may carry all their messages."""
FAUST_BURST = Burst(1, 30.0)
"""Without a broker, aiokafka prints dozens of lines a second."""
ONCE = Burst(1, 3600.0)
"""A long-running process repeats it after an hour."""
_TEMPLATE_CHARS = 80
"""The beginning that identifies a message: some libraries log finished sentences instead of templates."""


def burst_of(record: logging.LogRecord) -> Burst:
    """Return how often a logger may print the same message."""
    if is_once(record):
        return ONCE
    package = record.name.partition(".")[0]
    return OUR_BURST if package in OWN_LOGGERS else FAUST_BURST if package in FAUST else LIBRARY_BURST


def is_once(record: logging.LogRecord) -> bool:
    """Return whether a message is printed once."""
    return bool(getattr(record, "once", False))


@dataclass
class _Window:
    """The recent prints of one message."""

    began: float
    printed: int = 0
    held_back: int = 0
    last: logging.LogRecord | None = None
    """The last one held back."""


class RateLimit:
    """Passes each message a few times per window, and counts the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether `record` is printed. `held_back` of a printed record counts those held back before it."""
        now, burst = self._clock(), burst_of(record)
        key = (record.name, record.levelno, str(record.msg)[:_TEMPLATE_CHARS])
        window = self._windows.setdefault(key, _Window(now))
        if now - window.began >= burst.window_s:
            record.held_back = window.held_back
            self._windows[key] = _Window(now, printed=1)
            return True
        window.printed += 1
        if window.printed <= burst.lines:
            return True
        window.held_back += 1
        window.last = None if is_once(record) else record
        return False

    def end(self) -> list[logging.LogRecord]:
        """Return the last of each message held back, with the number of the others, and forget them."""
        records = []
        for window in self._windows.values():
            if window.last is not None:
                window.last.held_back = window.held_back - 1
                records.append(window.last)
        self._windows.clear()
        return records


class StderrLog(logging.Handler):
    """Writes to the present `sys.stderr`, so that a test that replaces it sees the lines."""

    def __init__(self, level: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(level)
        self._limit = RateLimit(clock)
        self.setFormatter(_TextFormatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this record is printed."""
        if record.levelno < logging.WARNING and record.name.partition(".")[0] not in OWN_LOGGERS:
            return False
        if record.name == "librdkafka" and self.level > logging.DEBUG and record.getMessage().endswith(": retrying"):
            return False  # it recovers by itself; unrecoverable errors are raised
        return self.level <= logging.DEBUG or self._limit.passes(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. A closed stderr is no reason to fail."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Print the messages that are still held back."""
        for record in self._limit.end():
            self.emit(record)
        super().close()


class _TextFormatter(logging.Formatter):
    """Lower-case levels; coordinates before the message; the held-back count after it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(record.__dict__)
        line.levelname = record.levelname.lower()
        coordinates = getattr(record, "at", None)
        if coordinates is not None:
            line.message = f"{coordinates}: {record.message}"
        held_back = getattr(record, "held_back", 0)
        if held_back:
            line.message = f"{line.message} (and {held_back} more like this)"
        return super().formatMessage(line)


class _JsonFormatter(logging.Formatter):
    """One object per line; a key without a value is left out."""

    def format(self, record: logging.LogRecord) -> str:
        coordinates, trace = getattr(record, "at", None), getattr(record, "trace", None)
        created = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": created.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "topic": getattr(coordinates, "topic", None),
            "partition": getattr(coordinates, "partition", None),
            "offset": getattr(coordinates, "offset", None),
            "trace_id": trace.trace_id if isinstance(trace, Context) else None,
            "held_back": getattr(record, "held_back", 0) or None,
            "exception": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json_text.one_line({key: value for key, value in fields.items() if value is not None})


# --- setting it up ----------------------------------------------------------------------------------------------------


def set_up(level: str) -> None:
    """Print this process's log lines to stderr from `level` up (one of LEVELS), as text. Another call replaces it."""
    number: int = getattr(logging, level.upper())
    root = logging.getLogger()
    for handler in _handlers():
        root.removeHandler(handler)
        handler.close()
    root.addHandler(StderrLog(number))
    root.setLevel(logging.WARNING)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(number)


def use_format(format_: Format) -> None:
    """Print later lines in this format: logging.format, known once the settings are read."""
    for handler in _handlers():
        handler.setFormatter(_JsonFormatter() if format_ == "json" else _TextFormatter())


def is_json() -> bool:
    """Whether lines are printed as JSON."""
    return any(isinstance(handler.formatter, _JsonFormatter) for handler in _handlers())


def json_line(level: int, logger: str, message: str) -> str:
    """Return a line for places without a logger: a signal handler, and the end of the process."""
    return _JsonFormatter().format(logging.LogRecord(logger, level, "", 0, message, None, None))


def quieten_faust() -> None:
    """Let only warnings of Faust's packages through, before mode creates a record of each step."""
    for name in (*FAUST, "asyncio", *FAUST_SERVICES):
        logging.getLogger(name).setLevel(logging.WARNING)


def _handlers() -> list[StderrLog]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, StderrLog)]
