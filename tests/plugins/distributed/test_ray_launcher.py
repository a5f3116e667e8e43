"""The trainer's ranks, and agents, on a real Ray cluster of two nodes: the same bytes, also after a node vanished.

The nodes are on one machine and its loopback device. Runs with `make test-ray`, in some minutes. Not covered: several
machines, GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.distributed.settings import Distributed
from schemas.events import Response, Reward, RewardSource
from streams.engines.base_model import Base, load_base
from streams.errors import EXIT_RESTART
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Metrics, Model, Policy, Settings
from tests import skips
from tests.plugins.distributed.ray_nodes import PYTHON, ROOT, Nodes, nodes
from tests.support import factories
from tests.support.models.tiny import save_tiny
from tests.support.models.tiny_log import manifests, settings_in, trained, write
from tests.support.processes import environment, read, said, until
from trainer import fleet

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.ray,
    pytest.mark.skipif(os.environ.get("TEST_RAY") != "1" or not PYTHON.exists(), reason=skips.RAY),
    pytest.mark.usefixtures("torch_as_before"),
    pytest.mark.timeout(1800),
]
LENGTH = RewardSource(name="length", settings=json.dumps({"unit": "characters", "limit": 60}))
START_S = 420.0
"""For what waits until Ray has started processes of Python that load torch; on two cores that takes a minute."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model."""
    return load_base(Model(base=str(save_tiny(tmp_path_factory.mktemp("tiny")))))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes with one CPU each."""
    with nodes(1, 1) as found:
        yield found


def in_two(settings: Settings, base: Base, **ray: Any) -> Settings:
    """Settings of a trainer of two processes; its topics exist."""
    changes = {
        "model": Model(base=base.model.config._name_or_path),
        "trainer": settings.trainer.model_copy(update={"processes": 2}),
        "metrics": Metrics(stuck_s=20.0),
        "distributed": Distributed(**{"wait_s": 120.0, **ray}),
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


@contextmanager
def command(
    cluster: Nodes, settings: Settings, folder: Path, *words: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A command on Ray, whose output is in a log in `folder`; what still runs at the end of the block is killed."""
    env = {**environment(settings), **cluster.variables(), **variables}
    with (folder / f"{words[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(PYTHON), "-m", "streams.cli", *words], env=env, cwd=folder, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def fails(cluster: Nodes, settings: Settings, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Return exit code and last line of a command that cannot begin."""
    with command(cluster, settings, folder, *words, **variables) as process:
        code = process.wait(START_S)
    return code, (folder / f"{words[0]}.log").read_text().strip().splitlines()[-1]


def ours() -> list[psutil.Process]:
    """Return the processes of the program that Ray's workers have started."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = process.info["cmdline"] or []
        if "streams.cli" in words and "--log-level" in words and words[0].startswith(str(PYTHON.parent)):
            found.append(process)
    return found


# --- the trainer ------------------------------------------------------------------------------------------------------


def test_ranks_on_two_nodes_train_the_bytes_of_one_process_and_go_on_with_them_when_a_node_vanished(
    cluster: Nodes, settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    two = in_two(settings, base)
    write(two, base, range(1))
    with command(cluster, two, tmp_path, "train", "--launcher", "ray") as train:
        until(lambda: len(trained(two)) == 1, "the first version", folder=tmp_path, timeout_s=START_S)
        lost = ours()
        assert len(lost) == 2
        cluster.kill(1)
        assert psutil.wait_procs(lost, timeout=300)[1] == [], "Ray ends the other rank, too"
        write(two, base, range(1, 2))
        cluster.add(1)
        until(lambda: len(trained(two)) == 2, "the second version", folder=tmp_path, timeout_s=START_S)
        write(two, base, range(2, 3))
        until(lambda: len(trained(two)) == 3, "the third version", folder=tmp_path, timeout_s=START_S)
        train.send_signal(signal.SIGTERM)
        assert train.wait(300) == 0, said(tmp_path)
    assert manifests(two) == expected
    assert {event.recipe["trainer.processes"] for event in trained(two)} == {"2"}
    assert ours() == []


def test_without_restarts_a_rank_that_is_lost_ends_all_with_75_and_the_same_command_resumes(
    cluster: Nodes, settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    two = in_two(settings, base, restarts=0)
    write(two, base, range(1))
    with command(cluster, two, tmp_path, "train", "--launcher", "ray") as train:
        until(lambda: len(trained(two)) == 1, "the first version", folder=tmp_path, timeout_s=START_S)
        (other,) = [rank for rank in ours() if rank.environ()["RANK"] == "1"]
        other.kill()
        assert train.wait(300) == EXIT_RESTART, said(tmp_path)
    assert "rank 1 of 2 ended with signal SIGKILL" in (tmp_path / "train.log").read_text()
    write(two, base, range(1, 3))
    with command(cluster, two, tmp_path, "train", "--launcher", "ray", "--steps", "2") as train:
        assert train.wait(START_S) == 0, said(tmp_path)
    assert manifests(two) == expected


def test_ranks_that_wait_for_another_node_hear_that_they_are_to_stop(
    cluster: Nodes, settings: Settings, base: Base, tmp_path: Path
) -> None:
    two = in_two(settings, base, wait_s=3600.0)
    write(two, base, range(1))
    number = cluster.add(1)
    many = two.model_copy(update={"trainer": two.trainer.model_copy(update={"processes": 3})})
    with command(cluster, many, tmp_path, "train", "--launcher", "ray") as train:
        until(lambda: len(trained(many)) == 1, "the first version", folder=tmp_path, timeout_s=START_S)
        ranks = ours()
        cluster.kill(number)
        assert psutil.wait_procs(ranks, timeout=300)[1] == []
        train.send_signal(signal.SIGTERM)
        assert train.wait(300) == 0, said(tmp_path)
    assert ours() == []


def test_a_rank_that_is_refused_ends_all_with_its_exit_code(
    cluster: Nodes, settings: Settings, base: Base, tmp_path: Path
) -> None:
    two = in_two(settings, base)
    two = two.model_copy(update={"trainer": two.trainer.model_copy(update={"lora_targets": "no_such_module"})})
    with command(cluster, two, tmp_path, "train", "--launcher", "ray") as train:
        assert train.wait(START_S) == 2, said(tmp_path)
    assert "trainer.lora_targets=no_such_module" in (tmp_path / "train.log").read_text()
    assert trained(two) == [] and ours() == []


def test_more_ranks_than_the_cluster_has_room_for_are_refused_and_not_waited_for(
    cluster: Nodes, settings: Settings, base: Base, tmp_path: Path
) -> None:
    many = in_two(settings, base, wait_s=2.0)
    many = many.model_copy(update={"trainer": many.trainer.model_copy(update={"processes": 3})})
    code, line = fails(cluster, many, tmp_path, "train", "--launcher", "ray")
    assert code == 5
    assert "Ray has no room for 3 processes of CPU 1 each, also not after 2 s: its 3 nodes have CPU 2, of which" in line


def test_a_node_with_another_version_is_refused_before_any_rank_is_started(
    cluster: Nodes, settings: Settings, base: Base, tmp_path: Path
) -> None:
    (old := tmp_path / "old" / "streamward-0.0.1.dist-info").mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: streamward\nVersion: 0.0.1\n")
    three = in_two(settings, base)
    three = three.model_copy(update={"trainer": three.trainer.model_copy(update={"processes": 3})})
    number = cluster.add(1, PYTHONPATH=f"{old.parent}:{ROOT}")
    try:
        code, line = fails(cluster, three, tmp_path, "train", "--launcher", "ray")
    finally:
        cluster.kill(number)
    assert code == 2 and "has streamward 0.0.1, and this one 0.2.0; all nodes need the same" in line


def test_a_node_without_the_packages_is_refused(cluster: Nodes, settings: Settings, base: Base, tmp_path: Path) -> None:
    three = in_two(settings, base)
    three = three.model_copy(update={"trainer": three.trainer.model_copy(update={"processes": 3})})
    number = cluster.add(1, PYTHONPATH="")
    try:
        code, line = fails(cluster, three, tmp_path, "train", "--launcher", "ray")
    finally:
        cluster.kill(number)
    assert code == 2 and "has no streamward, and this one 0.2.0" in line


@pytest.mark.parametrize(
    ("address", "said", "exit_code"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: Connection refused. Start one with `ray start --head`", 5),
        ("ray://127.0.0.1:10001", "submit this command as a job", 2),
        ("somewhere", "RAY_ADDRESS=somewhere: expected host:port", 2),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(
    cluster: Nodes, settings: Settings, base: Base, tmp_path: Path, address: str, said: str, exit_code: int
) -> None:
    code, line = fails(cluster, in_two(settings, base), tmp_path, "train", "--launcher", "ray", RAY_ADDRESS=address)
    assert code == exit_code and said in line


# --- agents -----------------------------------------------------------------------------------------------------------


def test_agents_on_ray_answer_and_score_every_task_though_one_of_them_and_a_node_are_lost(
    cluster: Nodes, made: Settings, tmp_path: Path
) -> None:
    loop = made.model_copy(
        update={
            "policy": Policy(engine="scripted", script='{"answers": "echo"}'),
            "distributed": Distributed(wait_s=120.0),
        }
    )
    number = cluster.add(1)

    def submit(first: int, count: int) -> None:
        with Producer(loop) as producer:
            for at in range(first, first + count):
                producer.send(factories.task(task_id=f"t{at}", purpose="serve", reward_sources=(LENGTH,)))

    def answered() -> set[str]:
        return {event.task_id for _, event in read(loop, Response)}

    with (
        command(cluster, loop, tmp_path, "policy", "--on", "ray", "--replicas", "2") as policy,
        command(cluster, loop, tmp_path, "scoring", "--on", "ray") as scoring,
    ):
        submit(0, 8)
        until(lambda: len(answered()) == 8, "the first answers", folder=tmp_path, timeout_s=START_S)
        until(lambda: len(ours()) == 3, "all agents", folder=tmp_path, timeout_s=START_S)
        ours()[0].kill()
        cluster.kill(number)
        cluster.add(1)
        submit(8, 8)
        until(lambda: len(answered()) == 16, "the other answers", folder=tmp_path, timeout_s=START_S)
        until(
            lambda: {event.task_id for _, event in read(loop, Reward)} == answered(),
            "a score for each",
            folder=tmp_path,
            timeout_s=START_S,
        )
        for process in (policy, scoring):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(300) for process in (policy, scoring)] == [0, 0], said(tmp_path)
    assert ours() == []


def test_a_command_that_is_killed_leaves_no_process_behind(cluster: Nodes, made: Settings, tmp_path: Path) -> None:
    loop = made.model_copy(
        update={
            "policy": Policy(engine="scripted", script='{"answers": "echo"}'),
            "distributed": Distributed(wait_s=120.0),
        }
    )
    with command(cluster, loop, tmp_path, "policy", "--on", "ray") as policy:
        until(lambda: len(ours()) == 1, "an agent", folder=tmp_path, timeout_s=START_S)
        policy.kill()
        until(lambda: ours() == [], "its end", folder=tmp_path)


def test_a_command_that_waits_for_room_hears_that_it_is_to_stop(cluster: Nodes, made: Settings, tmp_path: Path) -> None:
    loop = made.model_copy(
        update={
            "policy": Policy(engine="scripted", script='{"answers": "echo"}'),
            "distributed": Distributed(wait_s=3600.0),
        }
    )
    with command(cluster, loop, tmp_path, "policy", "--on", "ray", "--replicas", "9") as policy:
        until(lambda: "starts, reads tasks" in said(tmp_path), "its beginning", folder=tmp_path, timeout_s=START_S)
        policy.send_signal(signal.SIGTERM)
        assert policy.wait(300) == 0, said(tmp_path)
    assert ours() == []


def test_an_agent_that_is_refused_ends_all_with_its_exit_code(cluster: Nodes, made: Settings, tmp_path: Path) -> None:
    bad = made.model_copy(update={"policy": Policy(engine="scripted", script="{")})
    with command(cluster, bad, tmp_path, "policy", "--on", "ray") as policy:
        assert policy.wait(START_S) == 2, said(tmp_path)
    assert "agent 0 of 1 ended with exit code 2" in (tmp_path / "policy.log").read_text()
