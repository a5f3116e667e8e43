"""A broker that is killed or frozen: agents wait, say so, go on by themselves, and lose nothing."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from openai import APIConnectionError, InternalServerError, OpenAI

from gateway import server as serve
from schemas.events import AdvantagedGroup, Event, Response, Reward, Turn
from streams.errors import LogError
from streams.kafka import admin, retry as patience_module
from streams.kafka.consumer import GroupConsumer
from streams.kafka.node import process as broker
from streams.kafka.offsets import positions
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.settings.model import Broker, Kafka, Policy as PolicySettings, Serve, Settings, Topics
from streams.stages.policy import policy_agent as policy
from streams.stages.scoring import scoring_agent as scoring
from tests.support import processes
from tests.support.beside import running_beside
from tests.support.factories import reward
from tests.support.log.policy_agents import sum_task
from tests.support.log.shared_node import own_prefix
from tests.support.processes import command, environment, running, said, spawn, until

pytestmark = [pytest.mark.kafka, pytest.mark.kills]
LOST = "has lost its brokers"
PROPERTIES = {"group.min.session.timeout.ms": "1000", "broker.session.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.BrokerProcess]:
    """A node of these tests' own, to be ill-treated."""
    with broker.embedded(tmp_path_factory.mktemp("kafka"), properties=PROPERTIES) as running:
        yield running


@pytest.fixture
def settings(node: broker.BrokerProcess, tmp_path: Path) -> Settings:
    here = Settings(
        kafka=Kafka(bootstrap=node.bootstrap, session_timeout_s=3, request_timeout_s=5),
        topics=Topics(prefix=own_prefix(), partitions=2, policy_partitions=2),
        policy=PolicySettings(name="p", engine="scripted", round_tasks=1, script='{"latency_ms": 100}'),
        broker=Broker(data_dir=node.data_dir),
    )
    admin.apply_topics(here)
    return here


E = TypeVar("E", bound=Event)


def write(settings: Settings, *names: str) -> None:
    processes.write(settings, *(sum_task(name, group_size=2) for name in names))


def read(settings: Settings, label: str, kind: type[E]) -> list[E]:
    """Read a topic with more patience than the agents are given, since a broker that thaws is fenced for a while."""
    patient = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"request_timeout_s": 60.0})})
    return [event for r in admin.read_topic(patient, label) if isinstance(event := r.decode(kind), kind)]


def samplings(settings: Settings) -> dict[str, dict[str, int]]:
    """How many slots were written by task and sampling, in the order of the log."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for event in read(settings, "responses", Response):
        found[event.task_id][event.sampling_id] += 1
    return found


def scored(settings: Settings) -> set[str]:
    return {event.response_id for event in read(settings, "rewards", Reward)}


def lag(settings: Settings, group: str, label: str) -> int:
    """How many records of a topic the group has not committed. It looks from outside: a member would disturb them."""
    done = sum(at.committed for at in positions(settings) if at.group == group)
    return sum(end for _, end in admin.offsets(settings, [label]).values()) - done


@contextmanager
def working(settings: Settings) -> Iterator[None]:
    """Run a policy and a scoring agent beside the test. Leaving stops them, and raises what they raised.

    One whose client has lost its brokers begins again, as its supervisor would have it.
    """

    def supervised(run: Callable[..., None], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                run(settings, stop=stop)
            except LogError as exc:
                if LOST not in str(exc):
                    raise
                logging.getLogger("streamward.kafka").info("%s", exc)

    with running_beside(partial(supervised, policy.run), partial(supervised, scoring.run)):
        yield


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_agents_outlive_their_broker_say_so_and_lose_nothing(
    settings: Settings, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"t{n}" for n in range(12)]
    write(settings, *names)
    running = broker.status(settings.broker)
    assert running is not None

    def noticed() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "streamward.kafka"]

    with caplog.at_level(logging.INFO, logger="streamward.kafka"), working(settings):
        until(lambda: len(scored(settings)) >= 2, "the first rewards")
        os.kill(running.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        until(lambda: any(": waiting" in line for line in noticed()), "somebody to notice")
        if how == "killed":
            broker.start(settings.broker, properties=PROPERTIES)
        else:
            os.kill(running.pid, signal.SIGCONT)
        until(lambda: set(names) <= samplings(settings).keys(), "an answer to every task")
        until(lambda: len(scored(settings)) == len(read(settings, "responses", Response)), "every reward")
        until(lambda: lag(settings, "policy-p", "tasks") + lag(settings, "scoring", "responses") == 0, "every commit")
    for task_id, found in samplings(settings).items():
        assert set(found.values()) == {2}, f"{task_id}: a sampling is cut"
    assert scored(settings) == {event.response_id for event in read(settings, "responses", Response)}
    said_so = noticed()
    assert re.match(rf"Kafka at {settings.kafka.bootstrap} has not answered for \d+ s .*: waiting, 600 s", said_so[0])
    if not any(LOST in line for line in said_so):
        assert re.match(rf"Kafka at {settings.kafka.bootstrap} answers again, after \d+ s", said_so[-1])


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_loop_worker_outlives_its_broker_says_so_and_every_task_leaves_its_group(
    settings: Settings, how: str, tmp_path: Path
) -> None:
    names = [f"t{n}" for n in range(12)]
    write(settings, *names)
    node = broker.status(settings.broker)
    assert node is not None

    def left() -> set[str]:
        return {group.task_id for group in read(settings, "groups", AdvantagedGroup)}

    def committed() -> bool:
        found = [at for at in positions(settings) if at.group == "streams"]
        return bool(found) and sum(at.lag for at in found) == 0

    with running(settings, tmp_path, "streams --driver loop"), working(settings):
        until(lambda: len(left()) >= 2, "the first groups", folder=tmp_path)
        os.kill(node.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        until(lambda: ": waiting, 600 s" in said(tmp_path), "the worker to notice", folder=tmp_path)
        if how == "killed":
            broker.start(settings.broker, properties=PROPERTIES)
        else:
            os.kill(node.pid, signal.SIGCONT)
        until(lambda: left() == set(names), "every group", folder=tmp_path)
        until(committed, "every commit", folder=tmp_path)
    assert "answers again" in said(tmp_path)


def test_agents_that_are_told_to_stop_while_the_broker_is_away_end_with_0(settings: Settings, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(20)]
    write(settings, *names)
    running = broker.status(settings.broker)
    assert running is not None
    with (tmp_path / "agents.log").open("ab") as out:
        agents = [
            spawn(command(name), env=environment(settings), cwd=tmp_path, stdout=out, stderr=out)
            for name in ("policy", "scoring")
        ]
    try:
        until(lambda: len(scored(settings)) >= 2, "the first rewards", folder=tmp_path)
        os.kill(running.pid, signal.SIGSTOP)
        until(lambda: said(tmp_path).count(": waiting") == 2, "both to notice", folder=tmp_path)
        for agent in agents:
            agent.terminate()
        assert [agent.wait(300) for agent in agents] == [0, 0], said(tmp_path)
    finally:
        os.kill(running.pid, signal.SIGCONT)
        for agent in agents:
            agent.kill()
            agent.wait()
    broker.ensure(settings.broker)  # agents that start do not wait for it
    with working(settings):
        until(lambda: set(names) <= samplings(settings).keys(), "an answer to every task")
        until(lambda: len(scored(settings)) == len(read(settings, "responses", Response)), "every reward")


def test_members_whose_node_was_fenced_commit_again(settings: Settings, tmp_path: Path) -> None:
    """Each with records unread, which hold the connection that librdkafka has to end first.

    Without that poll, most runs of this leave one of twelve waiting for ever; not all, as a node that thaws is seen as
    fenced for a few milliseconds only.
    """
    (topic,) = {topic.name for label, topic in topics(settings.topics).items() if label == "rewards"}
    stop, commits = threading.Event(), [0.0] * 12
    running = broker.status(settings.broker)
    assert running is not None

    def writes() -> None:
        with Producer(settings, outage=BrokerOutage(settings.kafka, stop)) as producer:
            while not stop.wait(0.02):
                producer.send(reward())

    def follows(number: int) -> None:
        with GroupConsumer(settings, f"g{number}", ["rewards"], BrokerOutage(settings.kafka, stop)) as member:
            while not stop.is_set():
                for record in member.poll(1):
                    tp, offset = (topic, record.at.partition), record.at.offset + 1
                    member.commit({tp: offset})
                    if member.next_offsets([tp]) == {tp: offset - 1}:  # the last one is acknowledged
                        commits[number] = time.monotonic()

    threads = [threading.Thread(target=writes), *(threading.Thread(target=follows, args=(n,)) for n in range(12))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(commits), "a commit of each")
        os.kill(running.pid, signal.SIGSTOP)
        time.sleep(8)  # beyond the node's session, the members' sessions and the time limit of their requests
        os.kill(running.pid, signal.SIGCONT)
        thawed = time.monotonic()
        until(lambda: min(commits) > thawed + 2, "a commit of each again")
    finally:
        stop.set()
        for thread in threads:
            thread.join(300)
    assert not any(thread.is_alive() for thread in threads)


FREEZES_ITSELF = """
import os, signal
from streams.cli.runtime import until_stopped
from streams.settings.load import load
from streams.stages.policy import policy_agent
from streams.engines.scripted.scripted_engine import ScriptedEngine

class Freezes(ScriptedEngine):
    rounds = 0
    def sample(self, requests):
        self.rounds += 1
        answers = super().sample(requests)
        if self.rounds == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return answers

with until_stopped() as stop:
    policy_agent.run(load(), stop=stop, engine=Freezes())
"""


def test_a_call_that_cannot_be_recorded_gets_503_and_its_retry_the_one_answer(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        rule = Serve(port=free.getsockname()[1], acknowledge_s=1)
    settings = settings.model_copy(update={"serve": rule})
    running, stop = broker.status(settings.broker), threading.Event()
    assert running is not None
    server = threading.Thread(target=serve.run, args=(settings,), kwargs={"stop": stop})
    server.start()
    client = OpenAI(base_url=f"http://127.0.0.1:{rule.port}/v1", api_key="none", max_retries=0)

    def ask(**options: Any) -> Any:
        return client.chat.completions.create(model="p", messages=[{"role": "user", "content": "hi"}], **options)

    def answered(**options: Any) -> bool:
        with suppress(APIConnectionError, InternalServerError):
            return bool(ask(**options).choices[0].message.content == "hi")
        return False

    try:
        until(answered, "the server answers")
        os.kill(running.pid, signal.SIGSTOP)
        try:
            with pytest.raises(InternalServerError, match="not recorded within 1 s"):
                ask(seed=1)
        finally:
            os.kill(running.pid, signal.SIGCONT)
        until(lambda: answered(seed=1, extra_headers={"x-stainless-retry-count": "1"}), "the retry's answer")
    finally:
        stop.set()
        server.join(300)
    turns = [r.decode(Turn) for r in admin.read_topic(settings, "turns")]
    assert [turn.sampling.seed for turn in turns if isinstance(turn, Turn)].count(1) == 1


def test_an_agent_frozen_beyond_its_session_writes_a_second_sampling_and_commits_nothing_of_it(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, "t")
    with (tmp_path / "zombie.log").open("ab") as out:
        zombie = subprocess.Popen(
            [sys.executable, "-c", FREEZES_ITSELF], env=environment(settings), stdout=out, stderr=out
        )
    try:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED)  # it has sampled, and written nothing
        with working(settings):
            until(lambda: lag(settings, "policy-p", "tasks") == 0, "an answer by its successor")
            (first,) = samplings(settings)["t"]
            os.kill(zombie.pid, signal.SIGCONT)
            until(lambda: len(samplings(settings)["t"]) == 2, "the zombie's answer", folder=tmp_path)
            write(settings, "u", "v", "w")
            until(lambda: lag(settings, "policy-p", "tasks") == 0, "what came later", folder=tmp_path)
            zombie.terminate()
            assert zombie.wait(300) == 0, said(tmp_path)
    finally:
        zombie.kill()
        zombie.wait()
    found = samplings(settings)
    assert next(iter(found["t"])) == first, "the join takes the sampling that was whole first: the successor's"
    assert [list(found[name].values()) for name in ("t", "u", "v", "w")] == [[2, 2], [2], [2], [2]]


def test_an_outage_that_lasts_too_long_is_an_error_that_names_the_setting(
    nowhere: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience_module, "NOTICE_S", 0.5)
    hasty = nowhere.model_copy(update={"kafka": nowhere.kafka.model_copy(update={"outage_s": 1.0})})
    patience = BrokerOutage(hasty.kafka, threading.Event())
    with pytest.raises(LogError, match=r"127\.0\.0\.1:1 has not answered for \d s .* kafka\.outage_s is 1"):
        while True:
            patience.silent("anything")
            time.sleep(0.1)


def test_what_was_sent_when_the_process_should_stop_is_not_waited_for_long(
    nowhere: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience_module, "NOTICE_S", 0.5)
    stop = threading.Event()
    stop.set()
    with (
        pytest.raises(StoppedWaiting, match="to 1 records"),
        Producer(nowhere, outage=BrokerOutage(nowhere.kafka, stop)) as producer,
    ):
        producer.send(reward())
