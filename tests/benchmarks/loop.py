"""A Kafka node and processes for one benchmark; nothing of it outlives the block.

    node() ──► settings of an embedded broker with empty topics          process(...) ──► a child, ended by its pid

Not covered: other brokers. The embedded one is on the same machine and shares its cores, as in the demo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.settings.load import to_env
from streams.settings.model import Broker, Kafka, Settings, Topics

REPO = Path(__file__).parents[2]


@contextmanager
def node() -> Iterator[Settings]:
    """Run an embedded broker with Streamward's topics; yields the settings that lead there."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, broker.embedded(Path(folder)) as running:
        settings = Settings(
            kafka=Kafka(bootstrap=running.bootstrap),
            topics=Topics(prefix="bench."),
            broker=Broker(data_dir=Path(folder)),
        )
        admin.apply_topics(settings)
        yield settings


@contextmanager
def process(*module_and_arguments: str, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m` with these arguments and settings, its words into a file; SIGTERM at the end of the block."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [sys.executable, "-m", *module_and_arguments],
            cwd=REPO,
            env={**env, **to_env(settings)},
            stdout=words,
            stderr=words,
        )
        try:
            yield child
            if child.poll() is not None:
                words.seek(0)
                raise RuntimeError(f"{' '.join(module_and_arguments)} ended: {words.read()[-2000:].decode()}")
        finally:
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
