"""A queue under load whose writer is killed, again and again: nothing acknowledged is lost, nothing cleared returns."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from streams.kafka import admin
from streams.settings.load import to_env
from streams.settings.model import Kafka, Settings, Topics
from tests.support.log.shared_node import own_prefix

pytestmark = pytest.mark.kafka

KILLS = int(os.environ.get("QUEUE_KILLS", "4"))
"""`QUEUE_KILLS=20 QUEUE_SEEDS=1,2,3` is the long run."""
SEEDS = [int(seed) for seed in os.environ.get("QUEUE_SEEDS", "1").split(",")]


@pytest.fixture
def settings(kafka_bootstrap: str) -> Settings:
    made = Settings(
        kafka=Kafka(bootstrap=kafka_bootstrap),
        topics=Topics(prefix=own_prefix(), partitions=2, policy_partitions=2, max_record_bytes=16 * 1024),
    )
    admin.apply_topics(made)
    return made


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield json.loads(line)


class Known:
    """What the writers have said of their samples."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        """Put and acknowledged, and no clear was begun."""
        self.unsure: set[str] = set()
        """A put or clear of it was begun, and its writer was killed before it was acknowledged."""
        self.gone: set[str] = set()

    def take(self, line: dict[str, Any]) -> None:
        for kind, target in (
            ("putting", self.unsure),
            ("put", self.live),
            ("clearing", self.unsure),
            ("cleared", self.gone),
        ):
            if kind in line:
                for known in (self.live, self.unsure, self.gone):
                    known.difference_update(line[kind])
                target.update(line[kind])

    def check(self, restored: set[str]) -> None:
        """Compare with what a restore has found; after it, nothing is unsure."""
        assert self.live - restored == set(), "an acknowledged sample is lost"
        assert restored & self.gone == set(), "a cleared sample is back"
        assert restored - self.live - self.unsure == set()
        self.live, self.unsure, self.gone = set(restored), set(), self.gone | (self.unsure - restored)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_writer_that_is_killed_again_and_again_loses_nothing_and_clears_for_good(
    settings: Settings, seed: int
) -> None:
    draw, known = random.Random(seed), Known()
    environment = {**os.environ, **to_env(settings)}
    for kill in range(KILLS + 1):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.log.queue_writer", "load", f"{seed}{kill}"],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said = lines(process)
            first = next(said)
            assert first["whole"], "a sample came back with other bytes"
            known.check(set(first["restored"]))
            for _ in range(draw.randrange(1, 60)):
                known.take(next(said))
        finally:
            process.send_signal(signal.SIGKILL)
            for line in lines(process):  # written before the kill, and not read yet
                known.take(line)
            process.communicate()
    assert known.live
