"""A release is upgraded to this one and rolled back, process by process, while tasks keep coming.

    the release before: chart and program of its commit ──► helm install   ┐
    this one ──► helm upgrade: the hook, then Pod by Pod                   ├ after each a version is trained and served
    the release before ──► helm rollback: Pod by Pod                       ┘
    at the end ──► a count of the topics by hand, and this program's audit: every task has one whole group of its own
                   this program's reproduce: every version, whoever trained it, comes out again byte for byte

Which release is before? The last commit that had another `version` in helm/Chart.yaml, since nobody installs what lies
between two versions; or the first that has the table rows and records of this program, if that is later, since each
refuses others (tests/support/deploy/previous_release.py). Its processes run as its own chart renders them, with its own
sources. What they leave to those of this release, and take over from them, is what they would there: topics, consumer
groups, the changelogs of the tables, adapters and checkpoints. Every other task has a trace, so that rows hold what is
optional.

The model is the tiny one. That runs with `make test-deploy`, in two to four minutes.

Not covered: another Python or other packages than those installed here; releases further back; a change of settings in
the same step; what tests/support/deploy/kubernetes_rollout.py does not do for a cluster.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.events import AdvantagedGroup, Message, Response, Sampling, Task
from streams.kafka.producer import Producer
from streams.settings.model import Batches, Kafka, Settings, Topics
from tests import skips
from tests.deploy.test_cluster import OPT_IN
from tests.deploy.test_rendered import LENGTH
from tests.support.deploy.container import Host
from tests.support.deploy.kubernetes_rollout import Cluster, rendered
from tests.support.deploy.previous_release import previous
from tests.support.deploy.rendered_chart import ROOT, Object, needs_helm
from tests.support.factories import response, task
from tests.support.log.task_counts import Log
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment

pytestmark = [pytest.mark.kafka, needs_helm]

MODEL = "/models/tiny"
TASKS_PER_S = 3.0
TRACE = "00-{:032x}-00f067aa0ba902b7-01"


def values(tag: str, settings: Settings) -> Object:
    """Return values that both charts take; `tag` is that of the images."""
    return {
        "images": {"streams": {"tag": tag}, "model": {"tag": tag}},
        "kafka": {"bootstrap": "kafka.test:9092"},
        "settings": {
            "topics": settings.topics.model_dump(include={"prefix", "partitions", "policy_partitions"}),
            "model": {"base": MODEL},
            "batches": {"groups": settings.batches.groups},
        },
    }


def numbered(number: int) -> Task:
    """Return one task; every other one has a trace."""
    return task(
        task_id=f"t{number}",
        created_at=int(time.time() * 1000),
        messages=(Message(role="user", content=f"{number % 50} 7"),),
        reward_sources=(LENGTH,),
        sampling=Sampling(max_tokens=8),
        traceparent=TRACE.format(number) if number % 2 else None,
    )


class Load:
    """Tasks at a steady rate, as long as it runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.sent: list[Task] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while the block runs; all is acknowledged when it ends."""
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _send(self) -> None:
        with Producer(self._settings) as producer:
            while not self._stop.wait(1 / TASKS_PER_S):
                self.sent.append(numbered(len(self.sent) + 1))
                producer.send(self.sent[-1])


class Elsewhere:
    """An agent of another policy, which answers half of a task at once and the other half when it is told to.

    So a task is open, and a window half full, across whatever happens in between.
    """

    POLICY = "elsewhere"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def begins(self, *task_ids: str) -> None:
        """Write these tasks, and the first of two answers to each."""
        with Producer(self._settings) as producer:
            for number, task_id in enumerate(task_ids, start=1):
                producer.send(
                    replace(numbered(number), task_id=task_id, policy=self.POLICY, group_size=2),
                    headers={"traceparent": TRACE.format(number).encode()},
                )
                producer.send(self._answer(task_id, 0))

    def ends(self, *task_ids: str) -> None:
        """Write the other answer to each."""
        with Producer(self._settings) as producer:
            for task_id in task_ids:
                producer.send(self._answer(task_id, 1))

    def _answer(self, task_id: str, slot: int) -> Response:
        whole = response(task_id=task_id, policy=self.POLICY, sampling_id=f"of {task_id}", slot=slot, group_size=2)
        return replace(whole, created_at=int(time.time() * 1000), text="one" if slot else "eleven")


@pytest.fixture
def settings(kafka_bootstrap: str) -> Settings:
    """What all agree on."""
    return Settings(
        kafka=Kafka(bootstrap=kafka_bootstrap),
        topics=Topics(prefix="upgraded.", partitions=2, policy_partitions=1),
        batches=Batches(groups=4),
    )


def go_on(pods: Cluster, log: Log, program: Path) -> None:
    """Return once every Pod runs this program, and a version was trained from then on and has answered."""
    pods.until_rolled_out()
    where = "import schemas, streams, trainer; print(*schemas.__path__, *streams.__path__, *trainer.__path__)"
    for pod in pods.pods:
        found = pod.process.execute("python", "-c", where).stdout.split()
        assert found == [str(program / name) for name in ("schemas", "streams", "trainer")]
    newest = max(log.trained(), default=0)
    pods.until(lambda: log.served() > newest, f"an answer of a version after {newest}")


@pytest.mark.skipif(os.environ.get(OPT_IN) != "1", reason=skips.ASKED_FOR)
def test_a_release_is_upgraded_under_load_and_rolled_back_and_every_task_has_one_group(
    settings: Settings, tmp_path: Path
) -> None:
    before = rendered(values("before", settings), previous(tmp_path / "before"))
    now = rendered(values("now", settings), ROOT)
    host = Host(tmp_path, {"kafka.test:9092": settings.kafka.bootstrap}, {MODEL: save_tiny(tmp_path / "tiny")})
    pods, load, log, elsewhere = Cluster(host), Load(settings), Log(settings), Elsewhere(settings)
    with pods.running():
        pods.apply(before, "install")
        with load.running():
            go_on(pods, log, before.program)
            elsewhere.begins("old", "old to new")
            elsewhere.ends("old")
            pods.until(lambda: "old" in log.groups(elsewhere.POLICY), "a group in the window")
            pods.apply(now, "upgrade")
            go_on(pods, log, now.program)
            elsewhere.ends("old to new")
            elsewhere.begins("new to old")
            pods.until(lambda: "old to new" in log.groups(elsewhere.POLICY), "another group in the window")
            pods.apply(before, "rollback")
            go_on(pods, log, before.program)
            elsewhere.begins("old again")
            elsewhere.ends("new to old", "old again")
        tasks = [*(task.task_id for task in load.sent), "old", "old to new", "new to old", "old again"]
        pods.until(
            lambda: (
                {group.task_id for _, group in log.read(AdvantagedGroup)} >= {*tasks}
                and len(log.trained()) >= len(log.batches("default"))
            ),
            "a group of every task, and a version of every batch",
        )
    log.check(tasks)
    log.check_line("default")
    (batch,) = log.batches(elsewhere.POLICY)
    assert sorted(batch.groups_offsets) == sorted(log.groups(elsewhere.POLICY).values())
    for told in (("audit", "--settled", "--output", "json"), ("reproduce", "--output", "json")):
        done = subprocess.run(command(*told), env=environment(settings), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{told}: {done.stdout}{done.stderr}"
