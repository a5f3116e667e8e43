"""How long others wait for an answer while a suite runs: a thread asks for /healthz, again and again.

with probed(url) as probe:      each request on a connection of its own
    schemathesis(…)
probe.verdict                   IN_TIME, or the slowest answer
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

LATE_S = 1.0
IN_TIME = f"within {LATE_S:g} s"
PAUSE_S = 0.05
PATIENCE_S = 60.0


class Probe:
    """The answers to one client that asks for nothing that takes long."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/healthz"
        self._is_over = threading.Event()
        self.answers, self.slowest_s = 0, 0.0
        self.error = ""

    @property
    def verdict(self) -> str:
        """Whether others were answered in time."""
        if self.error or not self.answers:
            return self.error or "never asked"
        return IN_TIME if self.slowest_s <= LATE_S else f"{self.slowest_s:.1f} s late"

    def ask_until_told(self) -> None:
        """Ask until `stop`."""
        while not self._is_over.wait(PAUSE_S):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=PATIENCE_S) as answer:  # noqa: S310 - always http://
                    answer.read()
            except OSError as exc:
                self.error = str(exc)
            self.answers += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def stop(self) -> None:
        """Ask no more."""
        self._is_over.set()


@contextmanager
def probed(url: str) -> Iterator[Probe]:
    """Ask a server while the block runs."""
    probe = Probe(url)
    thread = threading.Thread(target=probe.ask_until_told, name="probe")
    thread.start()
    try:
        yield probe
    finally:
        probe.stop()
        thread.join()
        print(f"/healthz: {probe.answers} answers, the slowest after {probe.slowest_s:.2f} s", flush=True)
