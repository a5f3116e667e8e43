"""Fault 20: what puts samples into a queue is killed or superseded, and the node under it is killed.

    tests/support/verl/queue_writer.py ──► puts, clears ──► samples, queues          beside the whole loop
                   │ SIGKILL · SIGSTOP while another opens the queue · its broker is away
                   └──► started again: what was acknowledged is there, what was cleared is not, byte for byte

A writer says what it begins and what is acknowledged; each next one says what it has found. A writer that was frozen
while another took the queue is thawed: it is refused, and nothing that it wrote since counts. At the end the audit
recounts the queue.

Not covered: TransferQueue and Ray above it (`make test-verl` has those).
"""

from __future__ import annotations

import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from streams.settings.load import to_env
from tests.chaos.faults.brokers import AWAY
from tests.chaos.load import Load
from tests.chaos.matrix import fault, healed
from tests.chaos.world import World, plain_environment
from tests.support.verl.queue_accounts import QueueAccounts

KILLS = 20
FROZEN_EVERY = 5
"""Of so many writers one is frozen instead, and superseded."""
OUTAGES = 3
LINE_S = 90.0
"""How long a writer may say nothing."""
SETTLED_S = 0.5
"""A process that is frozen has said all that it will after so long."""
RECORD_BYTES = 16 * 1024
"""A writer cuts what is larger, so some of its puts have several records."""
SIZE: dict[str, Any] = {"rate": 6, "most": 400}


class QueueWriter:
    """A process that writes to the queue."""

    def __init__(self, world: World, seed: str) -> None:
        settings = world.direct
        topics = settings.topics.model_copy(update={"max_record_bytes": RECORD_BYTES})
        environment = {**plain_environment(world.repo), **to_env(settings.model_copy(update={"topics": topics}))}
        with (world.folder / "queue-writer.log").open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.support.verl.queue_writer", "load", seed],
                env=environment, cwd=world.folder, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._has_ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):  # a kill may tear the last one
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def line(self) -> dict[str, Any] | None:
        """Return the next line; None once it has ended. Raises TimeoutError."""
        try:
            line = None if self._has_ended else self._lines.get(timeout=LINE_S)
        except queue.Empty:
            raise TimeoutError(f"the queue's writer said nothing for {LINE_S:g} s") from None
        self._has_ended = line is None
        return line

    def freeze(self) -> list[dict[str, Any]]:
        """Stop it where it stands, and return what it has said by then."""
        self.popen.send_signal(signal.SIGSTOP)
        lines: list[dict[str, Any]] = []
        with suppress(queue.Empty):
            while (line := self._lines.get(timeout=SETTLED_S)) is not None:
                lines.append(line)
        return lines

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has said until it ended."""
        return list(iter(self.line, None))

    def kill(self) -> None:
        """Kill it."""
        self.popen.kill()
        self.popen.wait()


class QueueWorld(World):
    """A World in which a queue is written to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.accounts = QueueAccounts()
        self.complaints: list[str] = []
        self.writers: list[QueueWriter] = []

    def __exit__(self, *error: object) -> None:
        for writer in self.writers:
            writer.kill()
        super().__exit__(*error)

    def open_queue(self, draw: random.Random) -> tuple[QueueWriter, set[str]]:
        """Start a writer, and return it with what it has found. Raises RuntimeError if it ends before."""
        writer = QueueWriter(self, str(draw.randrange(10**6)))
        self.writers.append(writer)
        if (first := writer.line()) is None:
            raise RuntimeError((self.folder / "queue-writer.log").read_text()[-2000:])
        restored = set(first["restored"])
        self.complaints += self.accounts.check(restored)
        if not first["whole"]:
            self.complaints.append("a sample came back with other bytes")
        return writer, restored

    def write(self, writer: QueueWriter, lines: int) -> bool:
        """Let a writer write so many lines; False if it ended."""
        for _ in range(lines):
            if (line := writer.line()) is None:
                return False
            self.accounts.take(line)
        return True

    def end(self, writer: QueueWriter) -> None:
        """Kill a writer, and take in what it said before."""
        writer.kill()
        for line in writer.lines():
            self.accounts.take(line)

    def supersede(self, writer: QueueWriter, draw: random.Random) -> QueueWriter:
        """Freeze a writer, let another take the queue, thaw the first, and return the other."""
        for line in writer.freeze():
            self.accounts.take(line)
        successor, restored = self.open_queue(draw)
        with healed(lambda: writer.popen.send_signal(signal.SIGCONT)):
            self.write(successor, draw.randrange(1, 10))
        for line in writer.lines():
            self.complaints += self.accounts.check_late(line, restored)
        if writer.popen.wait(LINE_S) == 0:
            self.complaints.append("a superseded writer was not refused")
        return successor

    def findings(self) -> list[str]:
        """Return what was wrong with any restore."""
        self.notes.append(f"{self.accounts.puts} samples put, {len(self.accounts.live)} in the queue at the end")
        return self.complaints


def _last_look(world: QueueWorld, draw: random.Random) -> None:
    """Open the queue once more, and leave it."""
    world.end(world.open_queue(draw)[0])


@fault(
    20,
    "the writer of a queue of samples is killed",
    "SIGKILL after 1 to 60 lines, 20 times; each fifth is frozen and superseded instead, and thawed",
    place=QueueWorld,
    **SIZE,
)
def kill_sample_queue(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, QueueWorld)
    for kill in range(1, KILLS + 1):
        writer, _ = world.open_queue(draw)
        if not world.write(writer, draw.randrange(1, 60)):
            world.complaints.append("a writer ended by itself")
        if kill % FROZEN_EVERY == 0:
            writer = world.supersede(writer, draw)
        world.end(writer)
    _last_look(world, draw)


@fault(
    20,
    "the broker is killed under a queue of samples",
    "SIGKILL to the node three times while samples are put, down for 1 to 8 s each",
    place=QueueWorld,
    codes=AWAY,
    **SIZE,
)
def broker_kill_sample_queue(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, QueueWorld)
    for _ in range(OUTAGES):
        writer, _ = world.open_queue(draw)
        world.write(writer, draw.randrange(10, 60))
        with healed(world.restart_broker):
            world.signal_broker(signal.SIGKILL)
            time.sleep(draw.uniform(1, 8))
        goes_on = world.write(writer, 40)
        world.notes.append(f"the writer {'went on' if goes_on else 'ended'}")
        world.end(writer)
    _last_look(world, draw)
