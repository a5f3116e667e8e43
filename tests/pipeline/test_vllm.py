"""The `vllm` engine on the real vLLM, on a CPU: it starts a server, so it runs where there is one, and says where not.

`make setup-vllm` makes one; VLLM_PYTHON names another. Most of the time this takes goes into three starts of a server
with a model of 100 thousand parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from streams.engines.base_model import load_base
from streams.engines.protocol import Completion, EnginePart
from streams.engines.vllm.vllm_engine import VllmEngine
from streams.engines.vllm.vllm_tokens import VllmTokenEngine
from streams.errors import EventError
from streams.processes.child import free_port
from tests.support.vllm.contract import CONTEXT, GENERATIONS, REQUESTS, save_all, settings_for
from tests.support.vllm.server import vllm_or_skip, vllm_server

pytestmark = pytest.mark.vllm

NATS = 1e-4
OPTIONS = ("--max-model-len", str(CONTEXT), "--max-num-seqs", "16")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def url(files: Path) -> Iterator[str]:
    with vllm_server(vllm_or_skip(), files / "model", files / "vllm.log", *OPTIONS) as running:
        yield running


def engine_of(url: str, files: Path, folder: Path) -> closing[VllmEngine]:  # type: ignore[type-var]
    return closing(VllmEngine(settings_for(url, files / "model", folder)))  # type: ignore[type-var]


def logprobs_of(files: Path, version: int, slot: Completion, temperature: float) -> list[float]:
    """The logprobs of a completion by one plain pass, the adapter merged into the weights; top_p is 1."""
    model = AutoModelForCausalLM.from_pretrained(files / "model")
    if version:
        factors = load_file(files / str(version) / "adapter_model.safetensors")
        for key in [key for key in factors if "lora_A" in key]:
            weight = model.get_parameter(key.removeprefix("base_model.model.").replace(".lora_A", ""))
            weight.data += 2.0 * factors[key.replace("lora_A", "lora_B")] @ factors[key]
    ids = torch.tensor([[*slot.prompt_token_ids, *slot.completion_token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(slot.prompt_token_ids) - 1 : -1] / (temperature or 1.0)
    return logits.log_softmax(-1).gather(-1, torch.tensor(slot.completion_token_ids)[:, None])[:, 0].tolist()


def test_every_version_answers_with_the_logprobs_that_the_trainer_would_compute(
    url: str, files: Path, tmp_path: Path
) -> None:
    with engine_of(url, files, tmp_path) as engine:
        for version in (0, 1, 2, 1):
            engine.serve(version, files / str(version) if version else None)
            for request, slots in zip(REQUESTS, engine.sample(REQUESTS), strict=True):
                assert [slot.error for slot in slots] == [None] * request.task.group_size
                if request.sampling.top_p == 1:
                    for slot in slots:
                        wanted = logprobs_of(files, version, slot, request.sampling.temperature)
                        assert slot.logprobs == pytest.approx(wanted, abs=NATS)


def test_versions_that_are_decoded_together_answer_each_with_its_own_logprobs(
    url: str, files: Path, tmp_path: Path
) -> None:
    with engine_of(url, files, tmp_path) as engine:
        versions = (2, 0, 1)
        asked = [EnginePart(version, files / str(version) if version else None, REQUESTS) for version in versions]
        for version, answers in zip(versions, engine.sample_mixed(asked), strict=True):
            for request, slots in zip(REQUESTS, answers, strict=True):
                assert [slot.error for slot in slots] == [None] * request.task.group_size
                if request.sampling.top_p == 1:
                    for slot in slots:
                        wanted = logprobs_of(files, version, slot, request.sampling.temperature)
                        assert slot.logprobs == pytest.approx(wanted, abs=NATS)


def test_what_is_streamed_to_an_agent_is_what_a_task_is_answered(url: str, files: Path, tmp_path: Path) -> None:
    settings = settings_for(url, files / "model", tmp_path)
    with closing(VllmTokenEngine(settings.policy, load_base(settings.model))) as tokens:
        tokens.load(1, files / "1")
        streams = [tokens.submit(asked) for asked in GENERATIONS]
        drawn = [list(stream) for stream in streams]
        assert [stream.error for stream in streams] == [None, None]
    with engine_of(url, files, tmp_path) as engine:
        for asked, answer in zip(GENERATIONS, drawn, strict=True):
            engine.serve(asked.version, files / "1" if asked.version else None)
            ((whole, _),) = engine.sample([request for request in REQUESTS if request.task.task_id == "task-greedy"])
            assert [token for token, _ in answer] == list(whole.completion_token_ids)
            assert [logprob for _, logprob in answer] == pytest.approx(whole.logprobs, abs=NATS)


def test_the_same_seed_draws_the_same_again(url: str, files: Path, tmp_path: Path) -> None:
    with engine_of(url, files, tmp_path) as engine:
        one, two = (engine.sample(REQUESTS) for _ in range(2))
    assert [[s.completion_token_ids for s in slots] for slots in one] == [
        [s.completion_token_ids for s in slots] for slots in two
    ]
    assert len({slot.completion_token_ids for slot in one[-1]}) > 1  # and each slot its own


def test_other_weights_under_the_name_of_a_version_are_caught(url: str, files: Path, tmp_path: Path) -> None:
    with engine_of(url, files, tmp_path) as engine:
        engine.serve(1, files / "1")
        (name,) = engine._loaded
        engine.serve(0, None)
        for path, body in (
            ("unload_lora_adapter", {"lora_name": name}),
            ("load_lora_adapter", {"lora_name": name, "lora_path": str(files / "3")}),  # which is the base: B = 0
        ):
            assert httpx.post(f"{url}/v1/{path}", json=body, timeout=300).status_code == 200
        engine._servers.servers[0].verified.clear()
        with pytest.raises(EventError, match="answers with other weights") as refused:
            engine.serve(1, files / "1")
        assert refused.value.reason == "not_served" and engine.served_version == 0


def test_an_adapter_that_changes_nothing_is_served_with_a_warning(
    url: str, files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_of(url, files, tmp_path) as engine, caplog.at_level(logging.WARNING, logger="streamward.vllm"):
        engine.serve(3, files / "3")
    assert "changes too little to be told from its base" in caplog.text


def test_a_server_that_was_restarted_has_its_adapter_again_before_it_answers(files: Path, tmp_path: Path) -> None:
    python, port, log = vllm_or_skip(), free_port(), tmp_path / "vllm.log"
    with vllm_server(python, files / "model", log, *OPTIONS, port=port) as url:
        engine = VllmEngine(settings_for(url, files / "model", tmp_path))
        engine.serve(1, files / "1")
        before = engine.sample(REQUESTS[:1])
    with vllm_server(python, files / "model", log, *OPTIONS, port=port), closing(engine):  # type: ignore[type-var]
        after = engine.sample(REQUESTS[:1])
        assert [slot.completion_token_ids for slot in after[0]] == [slot.completion_token_ids for slot in before[0]]
