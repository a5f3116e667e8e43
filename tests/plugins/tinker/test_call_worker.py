"""The worker of training calls against a real log: in order, once, and whatever kills it, the same bytes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from plugins.tinker.calls.call_names import policy_of
from plugins.tinker.sampling.prompt_sampler import PromptSampler
from plugins.tinker.worker import call_worker
from plugins.tinker.worker.called_model import CalledModel
from plugins.tinker.worker.worker_settings import Tinker
from schemas.events import TrainingCall, TrainingResult
from schemas.tokens import Octets
from streams.adapters.decisions import read_history
from streams.engines.base_model import Base
from streams.kafka.history import LogHistory
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.chaos.proxy import free_ports
from tests.plugins.tinker import training_client
from tests.plugins.tinker.session_calls import (
    MODEL,
    SESSION,
    begin_session,
    call,
    create_model,
    create_sampler,
    numbered,
    sample,
)
from tests.support.models.tiny_log import settings_in
from tests.support.models.tiny_settings import settings
from tests.support.processes import read, spawn, write
from trainer.reproduce import retrain

__all__ = ["settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


def examples(number: int) -> Octets:
    """Return two examples, other ones for each number."""
    tokens = np.arange(6, dtype=np.int32) + 5 + number
    arrays = {}
    for row in range(2):
        arrays[f"{row}.tokens"] = tokens + row
        arrays[f"{row}.target_tokens"] = (tokens + row + 1).astype(np.int64)
        arrays[f"{row}.weights"] = np.ones(6, np.float32)
    return Octets(save(arrays))


def steps(begin: int, count: int) -> list[TrainingCall]:
    """Return passes and steps from a number on: of two calls each."""
    calls = []
    for number in range(begin, begin + count):
        calls.append(numbered("forward_backward", 2 * number - 1, examples=2, tokens=12, data=examples(number)))
        calls.append(numbered("optim_step", 2 * number))
    return calls


def prompt(seq_id: int, **fields: Any) -> TrainingCall:
    data = Octets(save({"prompt": np.arange(5, 12, dtype=np.int32)}))
    request = '{"num_samples": 3, "sampling_params": {"max_tokens": 4}, "prompt_logprobs": true}'
    return sample(seq_id, data=data, tokens=7, request=request, **{"model": MODEL} | fields)


def work(settings: Settings, calls: int) -> None:
    call_worker.run(settings, stop=threading.Event(), calls=calls)


def results(settings: Settings) -> dict[str, TrainingResult]:
    """Return the results by call; each call has one."""
    events = [event for _, event in read(settings, TrainingResult)]
    assert len({event.call_id for event in events}) == len(events)
    return {event.call_id: event for event in events}


BEGIN = (begin_session(), create_model())
FOR_SAMPLER = numbered("save_weights_for_sampler", 5, sampling_session=f"{SESSION}:sample:0")
SAVE = numbered("save_weights", 6, path="last")


def test_a_loop_of_somebody_elses_becomes_versions_and_samples(settings: Settings) -> None:
    """Pass 2 comes before pass 1, as the SDK sends the pieces of one batch."""
    pieces = [numbered("forward_backward", seq, examples=2, data=examples(seq)) for seq in (2, 1)]
    write(settings, *BEGIN, *pieces)
    write(settings, numbered("optim_step", 3), numbered("forward", 4, examples=2, data=examples(1)))
    write(settings, FOR_SAMPLER, SAVE, prompt(0))
    work(settings, 8)
    made = results(settings)
    assert {result.error for result in made.values()} == {None}
    before, after = (load(made[f"{MODEL}:{seq}"].outputs.data)["0.logprobs"] for seq in (1, 4))
    assert before.shape == (6,) and after.sum() > before.sum()
    assert made[f"{MODEL}:1"].metrics["loss:sum"] > 0 and made[f"{MODEL}:1"].prompt_tokens == 12
    drawn = load(made[f"{SESSION}:sample:0:0"].outputs.data)
    assert sorted(name for name in drawn if name.startswith("2.")) == ["2.logprobs", "2.tokens"]
    assert np.isnan(drawn["prompt_logprobs"][0]) and drawn["prompt_logprobs"].shape == (7,)
    (event,) = [event for _, event in read_history(settings, policy_of(MODEL)).trained.values()]
    saved = made[SAVE.call_id]
    assert (event.version, event.uri, saved.version, saved.uri) == (1, saved.uri, 1, event.uri)
    assert event.origin is not None and event.origin.path == saved.path == f"tinker://{MODEL}/weights/last"
    assert {file.path for file in event.files} >= {"adapter_model.safetensors", "optimizer.safetensors"}


def test_a_call_that_cannot_be_done_says_whose_fault_it_is_and_leaves_the_model_as_it_was(settings: Settings) -> None:
    bad = numbered("forward_backward", 1, loss="no such loss", examples=2, data=examples(1))
    late = numbered("load_weights", 2, path="tinker://x/weights/a")
    refused = numbered("refused", 3)
    write(settings, *BEGIN, bad, late, refused, numbered("forward", 4, examples=2, data=examples(1)))
    work(settings, 5)
    made = results(settings)
    assert "no such loss" in (made[bad.call_id].error or "") and made[bad.call_id].category == "user"
    assert "must be the model's first request" in (made[late.call_id].error or "")
    assert (made[refused.call_id].error, made[refused.call_id].category) == (refused.refusal, "user")
    assert made[f"{MODEL}:4"].error is None


def prompts(count: int, **fields: Any) -> list[TrainingCall]:
    """Return samples of all kinds from the weights that FOR_SAMPLER saves, one of them for a token that is unknown."""
    calls = []
    for number in range(count):
        tokens = np.arange(5, 8 + number % 9, dtype=np.int32)
        if number == 3:
            tokens[1] = 9999
        request = {
            "num_samples": 1 + number % 3,
            "sampling_params": {"max_tokens": 1 + 5 * (number % 7), "top_p": 1 - number % 2 / 4},
            "prompt_logprobs": not number % 4,
            "topk_sample_logprobs": number % 3,
        }
        whole = {"data": Octets(save({"prompt": tokens})), "request": json.dumps(request), "model": MODEL}
        calls.append(sample(number, **whole | fields))
    return calls


def outputs(settings: Settings) -> dict[str, Any]:
    """Return what samples gave, without times."""
    return {
        name: (bytes(each.outputs.data), each.response, each.error, each.category, each.completion_tokens)
        for name, each in results(settings).items()
        if each.kind == "sample"
    }


@pytest.fixture(scope="module")
def sampled_alone(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> dict[str, Any]:
    """What thirty samples give that are served one by one."""
    settings = settings_in(tmp_path_factory.mktemp("alone"), kafka_bootstrap, base)
    write(settings, *BEGIN, *steps(1, 2), FOR_SAMPLER)
    work(settings, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_worker, "BATCH_TOKENS", 1)
        write(settings, *prompts(30))
        work(settings, 30)
    return outputs(settings)


def test_samples_that_wait_together_have_the_bytes_of_samples_served_alone(
    settings: Settings, sampled_alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    draw_all = PromptSampler.draw_all

    def count(self: PromptSampler, adapter: Path | None, requests: Any) -> Any:
        sizes.append(len(requests))
        return draw_all(self, adapter, requests)

    monkeypatch.setattr(PromptSampler, "draw_all", count)
    write(settings, *BEGIN, *steps(1, 2), FOR_SAMPLER, *prompts(30))
    work(settings, 36)
    assert outputs(settings) == sampled_alone and len(sampled_alone) == 30
    assert sizes == [29], "the thirtieth has no prompt that can be answered"
    refused = f"{SESSION}:sample:0:3"
    assert "9999" in sampled_alone[refused][2] and sampled_alone[refused][3] == "user"


@pytest.mark.kills
def test_a_worker_that_ends_in_the_middle_of_a_batch_is_continued_with_the_same_bytes(
    settings: Settings, sampled_alone: dict[str, Any]
) -> None:
    """Killed when some of the answers are in the log, and then by whatever it had sent."""
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"session_timeout_s": 6.0})})
    write(settings, *BEGIN, *steps(1, 2), FOR_SAMPLER, *prompts(30))
    command = [sys.executable, "-m", "streamward", "calls"]
    for enough in (8, 36):
        with spawn(command, env=os.environ | to_env(settings), stderr=subprocess.DEVNULL) as worker:
            try:
                while len(list(read(settings, TrainingResult))) < enough:
                    assert worker.poll() is None
            finally:
                worker.send_signal(signal.SIGKILL)
    assert outputs(settings) == sampled_alone


def test_samples_from_other_weights_and_cancelled_ones_are_no_part_of_a_batch(
    settings: Settings, sampled_alone: dict[str, Any]
) -> None:
    """Samples of the base have a line of their own; those of one model's two saves, one pass each."""
    first, *rest = prompts(9)
    other = numbered("save_weights_for_sampler", 8, sampling_session=f"{SESSION}:sample:1")
    of_base = prompts(4, model=SESSION, sampling_session=f"{SESSION}:sample:2")
    cancel = call("cancel", f"{SESSION}:c", model=MODEL, request=json.dumps({"request_ids": [rest[1].call_id]}))
    write(settings, *BEGIN, create_sampler(2), *steps(1, 2), FOR_SAMPLER, cancel)
    write(settings, numbered("forward_backward", 6, examples=2, data=examples(9)), numbered("optim_step", 7), other)
    renamed = [replace(each, call_id=f"{SESSION}:sample:2:{each.seq_id}") for each in of_base]
    later = [
        replace(each, call_id=f"{SESSION}:sample:1:{each.seq_id}", sampling_session=f"{SESSION}:sample:1")
        for each in prompts(4)
    ]
    mixed = itertools.chain(*itertools.zip_longest([first, *rest], renamed, later))
    write(settings, *(each for each in mixed if each is not None))
    work(settings, 9 + 9 + 4 + 4)
    made = outputs(settings)
    cancelled = rest[1].call_id
    assert "cancelled" in made[cancelled][2]
    for each in (first, *rest):
        assert each.call_id == cancelled or made[each.call_id] == sampled_alone[each.call_id]
    for number in (0, 1):
        assert len({made[f"{SESSION}:sample:{sampler}:{number}"][0] for sampler in (0, 1, 2)}) == 3


RUN = (*BEGIN, *steps(1, 2), FOR_SAMPLER, SAVE, *steps(4, 1), numbered("save_weights", 9, path="end"), prompt(0))
"""A run of eleven calls that the worker answers."""


@pytest.fixture(scope="module")
def expected(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> dict[str, Any]:
    """What the run gives when nothing disturbs it."""
    whole = settings_in(tmp_path_factory.mktemp("whole"), kafka_bootstrap, base)
    write(whole, *RUN)
    work(whole, 11)
    return contents(whole)


def contents(settings: Settings) -> dict[str, Any]:
    """Return what results and versions say, without times."""
    made = results(settings)
    history = read_history(settings, policy_of(MODEL))
    files = {version: event.files for version, (_, event) in history.trained.items()}
    return {
        "files": files,
        **{name: (result.outputs, result.state_sha256, result.error, result.version) for name, result in made.items()},
    }


@pytest.mark.kills
@pytest.mark.parametrize("done", [1, 2, 3, 6, 7, 10])
@pytest.mark.parametrize("checkpoint_s", [0.0, 1e9])
def test_a_worker_that_ends_anywhere_is_continued_by_one_that_gives_the_same_bytes(
    settings: Settings, expected: dict[str, Any], done: int, checkpoint_s: float
) -> None:
    """With a checkpoint after each call, and without any, where the second computes the model from its first call."""
    settings = settings.model_copy(update={"tinker": Tinker(checkpoint_s=checkpoint_s)})
    write(settings, *RUN)
    work(settings, done)
    if checkpoint_s:
        for folder in itertools.chain(*(Path(settings.trainer.checkpoints).glob(f"*/{kind}*") for kind in "cs")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    work(settings, 11 - done)
    assert contents(settings) == expected


def test_a_model_that_is_computed_again_is_not_the_callers_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock counts passes: one for the call, and those of the calls before it for whoever lost the model."""
    passes, forward_backward = itertools.count(1), CalledModel.forward_backward
    now = [0.0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        now[0] = float(next(passes))
        return forward_backward(*args, **kwargs)

    monkeypatch.setattr(CalledModel, "forward_backward", counted)
    monkeypatch.setattr(call_worker, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    settings = settings.model_copy(update={"tinker": Tinker(checkpoint_s=1e9)})
    write(settings, *BEGIN, *steps(1, 4))
    work(settings, 7)
    for folder in Path(settings.trainer.checkpoints).iterdir():
        shutil.rmtree(folder)
    work(settings, 2)
    spent = [event.trainer_s for event in results(settings).values() if event.kind == "forward_backward"]
    assert (spent, next(passes)) == ([1.0] * 4, 8)  # three of seven passes were made again


@pytest.mark.kills
def test_a_worker_killed_in_the_middle_of_a_step_ends_with_the_weights_of_an_undisturbed_run(
    settings: Settings, expected: dict[str, Any]
) -> None:
    write(settings, *RUN[:6])
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"session_timeout_s": 6.0})})
    command = [sys.executable, "-m", "streamward", "calls"]
    environment = os.environ | to_env(settings)
    for more in (RUN[6:], ()):
        with spawn(command, env=environment, stderr=subprocess.DEVNULL) as worker:
            try:
                if more:
                    while len(list(read(settings, TrainingResult))) < 4:
                        assert worker.poll() is None
                    write(settings, *more)
                else:
                    while len(list(read(settings, TrainingResult))) < 11:
                        assert worker.poll() is None
            finally:
                worker.send_signal(signal.SIGKILL)
    assert contents(settings) == expected


def test_saved_weights_are_made_again_from_the_calls_alone(settings: Settings, tmp_path: Path) -> None:
    """Of two models: the second continues from what the first saved, with its optimizer."""
    write(settings, *RUN)
    work(settings, 11)
    saved = results(settings)[SAVE.call_id]
    second = f"{SESSION}:train:1"
    load_call = create_model(1)
    load_call = replace(
        load_call, kind="load_weights", seq_id=0, path=saved.path, source=saved.uri, request='{"optimizer": true}'
    )
    trained = [replace(each, model=second, call_id=f"{second}:{each.seq_id}") for each in steps(1, 1)]
    write(settings, load_call, *trained, numbered("save_weights", 3, second, path="more"))
    work(settings, 4)
    for path in Path(settings.trainer.checkpoints).glob("*/c*"):
        shutil.rmtree(path)
    for policy, versions in ((policy_of(MODEL), 2), (policy_of(second), 1)):
        planned = retrain.plan(settings, policy, None, LogHistory(settings))
        made = list(retrain.run(planned, settings, LogHistory(settings)))
        assert [(version.version, version.equal) for version in made] == [(n + 1, True) for n in range(versions)]


def test_one_command_serves_a_training_loop_and_does_its_work(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_client, "STEPS", 1)
    served = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": free_ports(1)[0]})})
    served = served.model_copy(update={"policy": served.policy.model_copy(update={"engine": "scripted"})})
    command = [sys.executable, "-m", "streamward", "serve", "--with", "calls"]
    with spawn(command, env=os.environ | to_env(served)) as server:
        try:
            url, base = served.serve.url.removesuffix("/v1"), served.model.base
            training_client.TrainingClient(url, tmp_path / "journal", base, 1).run()
        finally:
            server.terminate()
    assert len(results(settings)) == 9 and {event.error for event in results(settings).values()} == {None}
