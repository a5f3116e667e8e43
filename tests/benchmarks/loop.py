"""A Kafka node and processes for one benchmark; nothing of it outlives the block.

    node() ──► settings of an embedded broker with empty topics          process(...) ──► a child, ended by its pid

Not covered: other brokers. The embedded one is on the same machine and shares its cores, as in the demo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.settings.load import to_env
from streams.settings.model import Broker, Kafka, Settings, Topics

REPO = Path(__file__).parents[2]
LIMIT_S = 300.0
"""For groups to come."""
REQUEST_S = 60.0
"""For an answer of the broker: a machine that is busy takes its time until every new partition has a leader."""


@contextmanager
def node() -> Iterator[Settings]:
    """Run an embedded broker with Streamward's topics; yields the settings that lead there."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, broker.embedded(Path(folder)) as running:
        settings = Settings(
            kafka=Kafka(bootstrap=running.bootstrap, request_timeout_s=REQUEST_S),
            topics=Topics(prefix="bench."),
            broker=Broker(data_dir=Path(folder)),
        )
        admin.apply_topics(settings)
        yield settings


@contextmanager
def process(*module_and_arguments: str, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m` with these arguments and settings, as `child` does."""
    with child(sys.executable, "-m", *module_and_arguments, env=to_env(settings)) as running:
        yield running


@contextmanager
def child(*command: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with `env` added to the environment, its words into a file; SIGTERM at the end of the block.

    Raises RuntimeError if it has ended by then. This, and any that the block raises, gets its last words as a note.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    with tempfile.TemporaryFile() as words:
        running = subprocess.Popen(command, cwd=REPO, env={**own, **(env or {})}, stdout=words, stderr=words)
        try:
            yield running
            if running.poll() is not None:
                raise RuntimeError("a process has ended")
        except RuntimeError as exc:
            words.seek(0)
            exc.add_note(f"{' '.join(command)[-200:]} says: {words.read()[-2000:].decode(errors='replace')}")
            raise
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def await_groups(settings: Settings, workers: Sequence[subprocess.Popen[bytes]], groups: int) -> None:
    """Return once so many groups are in the log. Raises RuntimeError if a worker has ended, or after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while (made := sum(end for _, end in admin.offsets(settings, ["groups"]).values())) < groups:
        if any(worker.poll() is not None for worker in workers) or time.monotonic() > deadline:
            raise RuntimeError(f"the live workers made {made} of {groups} groups")
        time.sleep(0.02)
