"""Notice that the loop stands still, and end it so that its supervisor starts a fresh one.

    step ──► beat                     none for `frozen_s`: where it is, exit 75
    each second: Sight ──► StallDetector     no progress for `stuck_s`: what waits, exit 75

An unreachable broker is no reason: waiting for it beats, too.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

from streams.errors import EXIT_RESTART
from streams.kafka.retry import BrokerOutage
from streams.observability.metrics import Meter
from streams.settings.model import Kafka

LOOK_EVERY_S = 1.0
FROZEN_S = 60.0
STUCK_S = 60.0


class LoopWatch:
    """Looks at the thread that made it."""

    def __init__(self) -> None:
        self._frozen_s, self._missed = FROZEN_S, 0
        self._ended = threading.Event()
        self._watched = threading.get_ident()
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        """The loop makes progress, or waits for its broker."""
        self._missed = 0

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):  # counted, not timed: a suspended process is not stuck
            self._missed += 1
            if self._missed * LOOK_EVERY_S <= self._frozen_s:
                continue
            stack = "".join(traceback.format_stack(sys._current_frames().get(self._watched)))
            why = f"the loop has made no step for {self._frozen_s:g} s. It is at\n{stack}"
            os.write(2, f"{why}Ending this process with exit code {EXIT_RESTART}\n".encode())  # no lock of logging's
            os._exit(EXIT_RESTART)


class WatchedOutage(BrokerOutage):
    """A BrokerOutage that tells a watch that it waits."""

    def __init__(self, kafka: Kafka, stop: threading.Event, meter: Meter, watch: LoopWatch) -> None:
        super().__init__(kafka, stop, meter)
        self._watch = watch
        self.reachable = True

    def answered(self) -> None:
        """Take note that the broker answered."""
        self._watch.beat()
        self.reachable = True
        super().answered()

    def silent(self, wanted: str) -> None:
        """Take note that `wanted` did not come. Raises as BrokerOutage."""
        self._watch.beat()
        self.reachable = False
        super().silent(wanted)
