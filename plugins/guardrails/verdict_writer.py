"""Write verdicts that no turn follows: on calls of tools, and on texts that a route was asked about.

verdicts ──► write ──► Producer, opened with the first ──► acknowledged
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Self

from schemas.events import GuardrailVerdict
from streams.kafka.producer import Producer
from streams.settings.model import Settings


class VerdictWriter:
    """Writes verdicts. Threads may use it together. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock, self._stack = settings, threading.Lock(), ExitStack()
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, *verdicts: GuardrailVerdict) -> None:
        """Write verdicts; it returns once the log has them. Raises LogError."""
        if not verdicts:
            return
        with self._lock:
            if self._producer is None:
                self._producer = self._stack.enter_context(Producer(self._settings, linger_ms=0))
            for verdict in verdicts:
                self._producer.send(verdict)
            self._producer.flush()

    def close(self) -> None:
        """Wait until all are in the log. Raises LogError."""
        self._stack.close()
