"""A trainer in two processes against a real log: the same bytes, also when one of them falls silent.

Not covered: a process that is killed. The others are ended at once (tests/unit/test_launch.py), as here.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from streams.engines.base_model import Base
from streams.errors import EXIT_RESTART
from streams.kafka import admin
from streams.settings.model import Metrics, Model, Settings
from streams.tools.archive import history
from tests.support.log.secured_node import free_ports
from tests.support.models.tiny_log import manifests, settings_in, trained, write
from tests.support.processes import command, environment, running, said, until
from trainer import fleet
from trainer.reproduce import retrain

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before"), pytest.mark.kills]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def in_two(settings: Settings, base: Base, **trainer: Any) -> Settings:
    """The settings of a trainer in two processes, of which neither may be silent for long; its topics exist."""
    changes = {
        "model": Model(base=base.model.config._name_or_path),
        "trainer": settings.trainer.model_copy(update={"processes": 2, **trainer}),
        "metrics": Metrics(stuck_s=2.0),
    }
    two = settings.model_copy(update=changes)
    admin.apply_topics(two)
    return two


@pytest.fixture(scope="module")
def expected(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> list[tuple[int, Any]]:
    """The manifests of versions 1 to 3, by one process that computes both shares."""
    alone = in_two(settings_in(tmp_path_factory.mktemp("alone"), kafka_bootstrap, base), base)
    write(alone, base, range(3))
    fleet.run(alone, steps=3, stop=threading.Event())
    return manifests(alone)


def torchrun(machine: int, port: int, settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    """Two more steps, as one of two machines that have one rank each and meet at `port`."""
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meet]
    env = environment(settings) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / f"machine-{machine}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "-m", "streamward", "train", "--steps", "2"], env=env, cwd=folder, stdout=log, stderr=log
        )


def ends_when_rank_1_gets(sign: signal.Signals, settings: Settings, base: Base, folder: Path) -> int:
    """Train version 1, send `sign` to rank 1, write the next batch, and return the exit code; no rank is left."""
    write(settings, base, range(1))
    with (folder / "first.log").open("wb") as log:
        process = subprocess.Popen(command("train"), env=environment(settings), cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: len(trained(settings)) == 1, "the first version", folder=folder)
        ranks = psutil.Process(process.pid).children()
        (other,) = [rank for rank in ranks if rank.environ()["RANK"] == "1"]
        other.send_signal(sign)
        write(settings, base, range(1, 2))
        code = process.wait(300)
        assert psutil.wait_procs(ranks, timeout=10)[1] == []
        return code
    finally:
        process.kill()
        process.wait()


def test_a_rank_that_says_nothing_more_ends_all_and_two_others_go_on_with_what_one_process_reproduces(
    settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    two = in_two(settings, base)
    assert ends_when_rank_1_gets(signal.SIGSTOP, two, base, tmp_path) == EXIT_RESTART
    assert "rank 1 is lost or does not answer" in (tmp_path / "first.log").read_text()
    assert manifests(two) == expected[:1]
    write(two, base, range(2, 3))
    with running(two, tmp_path, "train"):  # they end with 0 when they are told to
        until(lambda: len(trained(two)) == 3, "the second and the third version", folder=tmp_path)
    assert manifests(two) == expected
    assert {event.recipe["trainer.processes"] for event in trained(two)} == {"2"}
    kept = history.of(two, "log")
    made = list(retrain.run(retrain.plan(two, "default", None, kept), two, kept))
    assert [(one.version, one.equal, one.other_recipe) for one in made] == [(n, True, ()) for n in (1, 2, 3)]


def test_a_base_in_parts_on_two_machines_of_torchrun_gives_the_same_bytes_after_a_rank_died(
    settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    parts = in_two(settings, base, shard_base=True)
    assert ends_when_rank_1_gets(signal.SIGKILL, parts, base, tmp_path) == EXIT_RESTART
    write(parts, base, range(2, 3))
    (port,) = free_ports(1)
    machines = [torchrun(machine, port, parts, tmp_path) for machine in range(2)]
    try:
        assert [machine.wait(300) for machine in machines] == [0, 0], said(tmp_path)
    finally:
        for machine in machines:
            machine.terminate()  # a torchrun that is killed leaves its children
            machine.wait()
    assert manifests(parts) == expected
