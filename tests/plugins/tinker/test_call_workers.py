"""Several workers of training calls share the models: whatever becomes of one, each call has its effect once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from plugins.tinker.calls.call_names import model_name, policy_of
from plugins.tinker.calls.call_state import ANSWERED
from plugins.tinker.worker.call_worker import calls_group
from plugins.tinker.worker.worker_settings import Tinker
from schemas.events import TrainingCall, TrainingResult
from streams.adapters.decisions import read_history
from streams.engines.base_model import Base
from streams.kafka.client import client_config
from streams.kafka.record import partition_of
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.plugins.tinker.session_calls import SESSION, begin_session, create_model, numbered
from tests.plugins.tinker.test_call_worker import examples, work, write
from tests.support.models.tiny_log import settings_in
from tests.support.processes import read, spawn, until

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before"), pytest.mark.kills]

MODELS, STEPS = 4, 6


def loop_of(number: int) -> list[TrainingCall]:
    """Return the calls of a model: steps, and a save in the middle and at the end."""
    model, calls = model_name(SESSION, number), [create_model(number)]
    for step in range(STEPS):
        data = examples(step + number)
        calls.append(numbered("forward_backward", len(calls), model, examples=2, tokens=12, data=data))
        calls.append(numbered("optim_step", len(calls), model))
        if step in (STEPS // 2, STEPS - 1):
            calls.append(numbered("save_weights", len(calls), model, path=f"step{step}"))
    return calls


RUN = [begin_session(), *(call for number in range(MODELS) for call in loop_of(number))]
COUNT = sum(call.kind in ANSWERED for call in RUN)


def first_results(settings: Settings) -> dict[str, TrainingResult]:
    """Return the result that counts of each call."""
    first: dict[str, TrainingResult] = {}
    for _, result in read(settings, TrainingResult):
        first.setdefault(result.call_id, result)
    return first


def contents(settings: Settings) -> dict[str, Any]:
    """Return what counts of results and versions, without times."""
    made: dict[str, Any] = {
        name: (result.outputs, result.state_sha256, result.error, result.version)
        for name, result in first_results(settings).items()
    }
    for number in range(MODELS):
        policy = policy_of(model_name(SESSION, number))
        made[policy] = [event.files for _, event in read_history(settings, policy).trained.values()]
    return made


@pytest.fixture(scope="module")
def expected(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> dict[str, Any]:
    """What the run gives one worker that nothing disturbs."""
    whole = settings_in(tmp_path_factory.mktemp("whole"), kafka_bootstrap, base)
    write(whole, *RUN)
    work(whole, COUNT)
    return contents(whole)


@contextmanager
def worker(settings: Settings, folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "streamward", "calls"]
        process = spawn(command, env=os.environ | to_env(settings), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def shares(settings: Settings) -> list[int]:
    """Return how many partitions each worker has."""
    client = AdminClient(client_config(settings.kafka))
    name = f"{settings.topics.prefix}{calls_group(settings.fleet)}"
    members = client.describe_consumer_groups([name])[name].result().members
    return [len(member.assignment.topic_partitions) for member in members if member.assignment]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_two_workers_of_which_one_dies_apply_no_call_twice_and_lose_none(
    kafka_bootstrap: str, tmp_path: Path, base: Base, expected: dict[str, Any], how: str
) -> None:
    """Each has models when one is killed, or is stopped for so long that the other has its models, and goes on."""
    settings = settings_in(tmp_path, kafka_bootstrap, base)
    kafka = settings.kafka.model_copy(update={"session_timeout_s": 6.0})
    settings = settings.model_copy(update={"kafka": kafka, "tinker": Tinker(checkpoint_s=0.0)})
    partitions = {partition_of(model_name(SESSION, number), 2) for number in range(MODELS)}
    assert partitions == {0, 1}, "each worker has models"
    half = [call for call in RUN if call.seq_id is None or call.seq_id <= STEPS or call.kind == "create_model"]
    with worker(settings, tmp_path, "first") as first, worker(settings, tmp_path, "second"):
        until(lambda: shares(settings) == [1, 1], "each worker to have a partition", folder=tmp_path)
        write(settings, *half)
        until(lambda: len(first_results(settings)) >= MODELS, "the first results", folder=tmp_path)
        first.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        write(settings, *RUN)  # those that are there are known by their ids
        until(lambda: len(first_results(settings)) == COUNT, "a result of each call", folder=tmp_path)
        if how == "stopped":
            first.send_signal(signal.SIGCONT)
            first.send_signal(signal.SIGTERM)
            assert first.wait(300) == 0
    assert contents(settings) == expected
    if how == "killed":
        assert len(read(settings, TrainingResult)) == COUNT


def test_a_model_with_many_calls_does_not_make_another_wait(kafka_bootstrap: str, tmp_path: Path, base: Base) -> None:
    """Both have one partition: of two, a worker may serve the first before it has read the other."""
    settings = settings_in(tmp_path, kafka_bootstrap, base)
    numbers = [number for number in range(MODELS) if partition_of(model_name(SESSION, number), 2) == 0]
    long, short = loop_of(numbers[0]), loop_of(numbers[1])[:4]
    write(settings, begin_session(), *long, *short)
    work(settings, 2 * len(short) + 1)
    done = {result.call_id for _, result in read(settings, TrainingResult)}
    assert {call.call_id for call in short} <= done and len(done) == 2 * len(short) + 1
