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

from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.support.fork_server import spawn
from tests.support.log.shared_node import own_topics
from tests.support.verl.queue_accounts import QueueAccounts

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

KILLS = int(os.environ.get("QUEUE_KILLS", "4"))
"""`QUEUE_KILLS=20 QUEUE_SEEDS=1,2,3` is the long run."""
SEEDS = [int(seed) for seed in os.environ.get("QUEUE_SEEDS", "1").split(",")]


@pytest.fixture
def settings(kafka_bootstrap: str) -> Settings:
    return own_topics(kafka_bootstrap, {"max_record_bytes": 16 * 1024})


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield json.loads(line)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_writer_that_is_killed_again_and_again_loses_nothing_and_clears_for_good(
    settings: Settings, seed: int
) -> None:
    draw, accounts = random.Random(seed), QueueAccounts()
    environment = {**os.environ, **to_env(settings)}
    for kill in range(KILLS + 1):
        process = spawn(
            [sys.executable, "-m", "tests.support.verl.queue_writer", "load", f"{seed}{kill}"],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said = lines(process)
            first = next(said)
            assert first["whole"], "a sample came back with other bytes"
            assert accounts.check(set(first["restored"])) == []
            for _ in range(draw.randrange(1, 60)):
                accounts.take(next(said))
        finally:
            process.send_signal(signal.SIGKILL)
            for line in lines(process):  # written before the kill, and not read yet
                accounts.take(line)
            process.communicate()
    assert accounts.live
