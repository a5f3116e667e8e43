"""Put and get of TransferQueue on the log, acknowledged by all replicas, beside its own memory: samples of 4 KiB.

    python -m tests.benchmarks samples        needs .venv-verl (make setup-verl)

    .venv-verl: a program for each backend, by turns ──► samples a second ──► ratio of the medians

Not covered: several nodes. Client, controller, storage and broker share this machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from typing import Any

from streams.settings.model import Settings
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import by_turns, line
from tests.support.verl.environment import PYTHON, ROOT, queue_environment

ROWS, ROUNDS = 512, 8
WANTED = 0.5
"""Of the rate of TransferQueue's own memory."""
MEMORY = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 2}}


def run() -> Iterator[dict[str, Any]]:
    """Yield a line for put and one for get."""
    with node() as settings:
        log = {"kafka.bootstrap": settings.kafka.bootstrap, "topics.prefix": settings.topics.prefix}
        ours = {"storage_backend": "Streamward", "Streamward": {"queue": "bench", "restore": "empty", "settings": log}}
        runs = {"ours": lambda: rates(settings, ours), "peer": lambda: rates(settings, MEMORY)}
        measured = by_turns(runs, rounds=3, warm=False)
    for operation in ("put", "get"):
        own, peer = (statistics.median(answer[operation] for _, answer in measured[name]) for name in ("ours", "peer"))
        yield line(
            "samples",
            f"{operation} {ROWS} samples of 4 KiB",
            ours=own,
            peer=peer,
            unit="samples/s",
            ratio=own / peer,
            target=WANTED,
            peer_is="TransferQueue's SimpleStorage, in memory",
        )


def rates(settings: Settings, backend: dict[str, Any]) -> dict[str, float]:
    """Return samples a second for put and get, as a program of its own measures them."""
    order = {
        "conf": {"controller": {"polling_mode": True}, "backend": backend},
        "rows": ROWS,
        "rounds": ROUNDS,
    }
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-m", "queue_rate"], cwd=ROOT,
        env=queue_environment(settings), input=json.dumps(order), capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer: dict[str, float] = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    return answer
