"""The `vllm` engine against what the real vLLM 0.32.0 said (tests/contracts): what it samples and serves."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from streams.engines.build import build
from streams.engines.protocol import EnginePart, MixedEngine
from streams.engines.vllm import vllm_engine
from streams.engines.vllm.completions_api import seed_of
from streams.engines.vllm.probe import WeightChange, change
from streams.engines.vllm.vllm_engine import VllmEngine
from streams.errors import EventError, SettingsError, StreamwardError
from streams.observability.trace_context import Context
from tests.support.models.tiny import VOCABULARY, tiny_tokenizer
from tests.support.vllm.contract import (
    CONTEXT,
    REQUESTS,
    Replay,
    Said,
    replay,
    request,
    save_adapter,
    save_model,
    settings_for as settings_of,
)
from tests.support.vllm.replayed import BY_NAME, PLAIN, files, impatient, name_in, serve, server, start

__all__ = ["files", "impatient", "server", "start"]

NATS = 1e-4
"""vLLM and the arithmetic below agree to this, in float32."""


def plain_logits(files: Path, version: int, tokens: list[int]) -> torch.Tensor:
    """The logits by one plain pass, the adapter merged into the weights: a second implementation."""
    model = AutoModelForCausalLM.from_pretrained(files / "model")
    if version:
        factors = load_file(files / str(version) / "adapter_model.safetensors")
        for key in [key for key in factors if "lora_A" in key]:
            weight = model.get_parameter(key.removeprefix("base_model.model.").replace(".lora_A", ""))
            weight.data += 2.0 * factors[key.replace("lora_A", "lora_B")] @ factors[key]
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0]


# --- what is sampled -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_logprobs_are_those_of_the_tokens_under_the_version_that_is_served(
    server: Replay, start: Callable[..., VllmEngine], files: Path, version: int
) -> None:
    engine = start(server)
    serve(engine, files, version)
    (slots,) = engine.sample([PLAIN])
    assert engine.served_version == version and [slot.slot for slot in slots] == [0, 1, 2, 3]
    for slot in slots:
        prompt, drawn = list(slot.prompt_token_ids), list(slot.completion_token_ids)
        logprobs = plain_logits(files, version, prompt + drawn)[len(prompt) - 1 : -1].log_softmax(-1)
        wanted = logprobs.gather(-1, torch.tensor(drawn)[:, None])[:, 0].tolist()
        assert slot.error is None and slot.logprobs == pytest.approx(wanted, abs=NATS)
        assert slot.finish_reason == ("stop" if drawn[-1] == 2 else "length")
        assert len(drawn) == 6 or drawn[-1] == 2


def test_with_temperature_and_top_p_logprobs_are_those_of_the_distribution_drawn_from(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    (slots,) = start(server).sample([BY_NAME["warm"]])
    for slot in slots:
        prompt, drawn = list(slot.prompt_token_ids), list(slot.completion_token_ids)
        logits = plain_logits(files, 0, prompt + drawn)[len(prompt) - 1 : -1] / 0.7
        for row, token, logprob in zip(logits, drawn, slot.logprobs, strict=True):
            ordered, index = row.softmax(-1).sort(descending=True)
            kept = index[ordered.cumsum(0) - ordered < 0.9]
            assert token in kept.tolist()
            assert logprob == pytest.approx((row[token] - row[kept].logsumexp(0)).item(), abs=NATS)


def test_greedy_takes_the_likeliest_token_and_says_its_logprob_at_temperature_1(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    (slots,) = start(server).sample([BY_NAME["greedy"]])
    prompt, drawn = list(slots[0].prompt_token_ids), list(slots[0].completion_token_ids)
    best = plain_logits(files, 0, prompt + drawn)[len(prompt) - 1 : -1].log_softmax(-1).max(-1)
    assert drawn == best.indices.tolist() and slots[0].logprobs == pytest.approx(best.values.tolist(), abs=NATS)
    assert slots[0].completion_token_ids == slots[1].completion_token_ids


def test_a_stop_text_ends_the_tokens_with_the_one_that_completed_it_and_is_not_in_the_text(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    engine = start(server)
    (slots,) = engine.sample([BY_NAME["stops"]])
    cut = [slot for slot in slots if slot.completion_token_ids[-1] != 2 and len(slot.completion_token_ids) < 24]
    assert cut, "the recording was meant to hold a slot that a stop text ended"
    for slot in cut:
        tokens = slot.completion_token_ids
        said, before = engine._prompts.text(tokens), engine._prompts.text(tokens[:-1])
        assert slot.finish_reason == "stop" and len(slot.logprobs) == len(tokens)
        assert ("3" in said or "4" in said) and "3" not in before + slot.text and "4" not in before + slot.text


def test_the_prompt_is_sent_as_tokens_with_everything_off_that_a_server_might_add(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    start(server).sample([PLAIN, BY_NAME["seeded"]])
    first, second = sorted(server.tasks(), key=lambda body: -body["n"])
    assert first["prompt"] and all(type(token) is int for token in first["prompt"])
    off = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {name: first[name] for name in off} == off and first["watermarking"] is False
    assert first["stop_token_ids"] == [2]
    assert (first["seed"], second["seed"]) == (seed_of(PLAIN.draw_key), seed_of(BY_NAME["seeded"].draw_key))


def test_a_task_is_asked_in_its_trace_each_time_and_nothing_else_is(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    trace = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    engine = start(server)
    engine.serve(1, files / "1")
    server.turns = [lambda body, said: (500, "text/plain", b"once")]
    engine.sample([replace(PLAIN, trace=trace)])
    engine.sample([BY_NAME["seeded"]])
    assert len(server.tasks()) == 3
    assert server.traced() == [(seed_of(PLAIN.draw_key), trace.traceparent)] * 2


def test_a_seed_belongs_to_the_task_and_without_one_to_the_sampling() -> None:
    seeded, plain = BY_NAME["seeded"], PLAIN
    assert seed_of(seeded.draw_key) == seed_of(replace(seeded, sampling_id="another").draw_key)
    assert seed_of(plain.draw_key) != seed_of(replace(plain, sampling_id="another").draw_key)
    assert 0 <= seed_of(plain.draw_key) < 2**62


def test_what_cannot_be_answered_is_an_error_of_its_slots_and_is_not_asked(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    too_long = request("too-long", "5 " * CONTEXT, slots=2)
    too_cold = request("too-cold", temperature=0.001, slots=1)
    long, good, cold = start(server).sample([too_long, PLAIN, too_cold])
    assert [slot.error is None for slot in good] == [True] * 4 and len(server.tasks()) == 1
    assert [slot.slot for slot in long] == [0, 1] and all("do not fit the context" in str(s.error) for s in long)
    assert "raises to 0.01 in silence" in str(cold[0].error)
    assert all(slot.finish_reason == "error" and slot.completion_token_ids == () for slot in (*long, *cold))


def test_a_server_that_reports_logprobs_before_temperature_answers_only_what_they_hold_for(
    start: Callable[..., VllmEngine],
) -> None:
    with replay("raw_logprobs") as raw:
        plain, warm, greedy = start(raw).sample([PLAIN, BY_NAME["warm"], BY_NAME["greedy"]])
        assert len(raw.tasks()) == 2
    assert all(slot.error is None for slot in (*plain, *greedy))
    assert all("start it with --logprobs-mode processed_logprobs" in str(slot.error) for slot in warm)


def test_what_needs_the_logprobs_of_the_draw_goes_to_the_server_that_has_them(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    with replay("raw_logprobs") as raw:
        (warm,) = start(raw, server).sample([BY_NAME["warm"]])
        assert raw.tasks() == [] and len(server.tasks()) == 1
    assert all(slot.error is None for slot in warm)


def test_a_server_that_reports_logits_is_refused_at_the_start(start: Callable[..., VllmEngine]) -> None:
    with replay("raw_logits") as logits, pytest.raises(SettingsError, match=r"logprobs of base are|reports logits"):
        start(logits)


# --- ids without a token ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def padded(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded model with six more rows; what it says is what a server says that is kept from drawing them."""
    folder = tmp_path_factory.mktemp("padded")
    model = AutoModelForCausalLM.from_pretrained(files / "model")
    model.resize_token_embeddings(VOCABULARY + 6, mean_resizing=False)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_server_is_kept_from_drawing_ids_without_a_token(server: Replay, padded: Path, tmp_path: Path) -> None:
    server.without_effect = ("logit_bias",)
    with closing(VllmEngine(settings_of(server.url, padded, tmp_path))) as engine:
        (slots,) = engine.sample([PLAIN])
    assert all(slot.error is None for slot in slots)
    (body,) = server.tasks()
    assert body["logit_bias"] == {str(VOCABULARY + number): -100 for number in range(6)}


def test_a_server_whose_logprobs_have_a_share_of_such_ids_is_refused_at_the_start(padded: Path, tmp_path: Path) -> None:
    with replay("raw_logprobs") as raw, pytest.raises(SettingsError) as refused:
        VllmEngine(settings_of(raw.url, padded, tmp_path))
    assert f"6 of {VOCABULARY + 6} ids of model.base have no token" in str(refused.value)
    assert "start it with --logprobs-mode processed_logprobs" in str(refused.value) and raw.tasks() == []


def test_an_answer_with_such_an_id_is_none(server: Replay, padded: Path, tmp_path: Path) -> None:
    def drawn(_: dict[str, Any], said: Said) -> Said:
        answer = json.loads(said[2])
        answer["choices"][0]["token_ids"][0] = VOCABULARY + 1
        return said[0], said[1], json.dumps(answer).encode()

    server.without_effect, server.forever = ("logit_bias",), drawn
    with (
        closing(VllmEngine(settings_of(server.url, padded, tmp_path, server_retries=0))) as engine,
        pytest.raises(StreamwardError, match=f"has id {VOCABULARY + 1}, which the tokenizer does not have"),
    ):
        engine.sample([PLAIN])


# --- what is served --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instead", ["base", "another"])
def test_a_server_that_lists_an_adapter_and_answers_with_other_weights_is_caught(
    server: Replay, start: Callable[..., VllmEngine], files: Path, instead: str
) -> None:
    engine = start(server)
    serve(engine, files, 2)
    (name_of_2,) = server.loaded
    engine.serve(0, None)
    name_of_1 = name_in(files, 1)
    server.as_model[name_of_1] = "base" if instead == "base" else name_of_2
    with pytest.raises(EventError, match=f"lists {name_of_1} and answers with other weights") as refused:
        serve(engine, files, 1)
    assert refused.value.reason == "not_served"
    assert engine.served_version == 0 and list(server.loaded) == [name_of_2]
    (slots,) = engine.sample([PLAIN])
    assert server.tasks()[-1]["model"] == "base" and all(slot.error is None for slot in slots)


def test_one_server_that_serves_something_else_is_passed_over(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    with replay() as wrong:
        wrong.as_model[name_in(files, 1)] = "base"
        engine = start(wrong, server)
        serve(engine, files, 1)
        engine.sample(REQUESTS)
        assert wrong.tasks() == [] and len(server.tasks()) == len(REQUESTS)


def test_an_adapter_that_changes_nothing_is_served_and_said_to_be_untold(
    server: Replay, start: Callable[..., VllmEngine], files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(server)
    with caplog.at_level(logging.WARNING, logger="streamward.vllm"):
        serve(engine, files, 3)
    assert engine.served_version == 3 and "changes too little to be told from its base" in caplog.text


def test_without_the_probe_a_server_is_believed_what_it_lists(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    server.as_model[name_in(files, 1)] = "base"
    engine = start(server, verify="listed")
    serve(engine, files, 1)
    assert engine.served_version == 1 and all("prompt_logprobs" not in body for _, body in server.asked)


def test_going_back_to_a_version_that_is_loaded_asks_the_server_nothing(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server)
    for version in (1, 2):
        serve(engine, files, version)
    before = len(server.asked)
    for version in (1, 2, 0, 1):
        serve(engine, files, version)
        assert engine.served_version == version
    assert len(server.asked) == before
    engine.sample([PLAIN])
    assert server.tasks()[-1]["model"] == name_in(files, 1)


def test_versions_out_of_use_are_unloaded_and_the_rest_at_the_end(
    server: Replay, start: Callable[..., VllmEngine], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "CAPACITY", 2)
    engine = start(server)
    for version in (1, 2, 1, 3):
        serve(engine, files, version)
    assert sorted(server.loaded) == [name_in(files, 1), name_in(files, 3)]
    engine.close()
    assert server.loaded == {} and list((tmp_path / "served").iterdir()) == []


def test_a_round_of_several_versions_asks_for_each_by_its_name_and_what_is_served_stays_served(
    server: Replay, start: Callable[..., VllmEngine], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "CAPACITY", 2)
    engine = start(server)
    assert isinstance(engine, MixedEngine)
    serve(engine, files, 1)
    (alone,) = engine.sample([PLAIN])
    engine.serve(0, None)
    parts = [EnginePart(version, files / str(version) if version else None, [PLAIN]) for version in (2, 0, 1)]
    answers = engine.sample_mixed(parts)
    assert {body["model"] for body in server.tasks()[1:]} == {"base", name_in(files, 1), name_in(files, 2)}
    assert answers[2] == [alone] and answers[1] == [engine.sample([PLAIN])[0]] and answers[0] != answers[2]
    assert engine.served_version == 0 and server.tasks()[-1]["model"] == "base"
    serve(engine, files, 3)
    assert sorted(server.loaded) == [name_in(files, 1), name_in(files, 3)]


def test_an_adapter_that_does_not_fit_the_base_is_refused_before_a_server_hears_of_it(
    server: Replay, start: Callable[..., VllmEngine], tmp_path: Path
) -> None:
    engine = start(server)
    bad = save_adapter(tmp_path / "bad", 1)
    (bad / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EventError, match="cannot be read") as refused:
        engine.serve(1, bad)
    assert refused.value.reason == "bad_adapter" and engine.served_version == 0
    assert all("lora_name" not in body for _, body in server.asked)


def test_a_server_that_does_not_see_the_adapters_says_which_setting_to_mend(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server, server_adapters="/mnt/elsewhere")
    with pytest.raises(EventError, match=r"told to load /mnt/elsewhere/agent-.*set policy\.server_adapters"):
        serve(engine, files, 1)


def test_a_server_that_takes_no_adapters_at_run_time_is_a_matter_of_settings(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server)
    server.takes_adapters = False
    with pytest.raises(SettingsError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        serve(engine, files, 1)


def test_a_server_of_another_base_is_refused_at_the_start(server: Replay, files: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other")
    model = AutoModelForCausalLM.from_pretrained(other)
    model.model.layers[0].mlp.up_proj.weight.data *= 3
    model.save_pretrained(other)
    with pytest.raises(SettingsError, match=r"nats off those of model\.base"):
        VllmEngine(settings_of(server.url, other, tmp_path))


def test_a_base_name_that_is_not_there_is_said_with_those_that_are(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    with pytest.raises(SettingsError, match=r"lists the models \['base'\], expected mine; set policy.server_model"):
        start(server, server_model="mine")


# --- the probe -------------------------------------------------------------------------------------------------------

BASE = [-2.0 - 0.01 * step for step in range(100)]
STEPS = [0.05 * math.sin(step) for step in range(100)]


def seen(share: float, rounding: float = 0.0) -> WeightChange:
    """How a server looks that applies `share` of an adapter, and whose base is off ours by `rounding`."""
    theirs = [value + rounding * (-1) ** place for place, value in enumerate(BASE)]
    return change(
        predicted=[value + step for value, step in zip(BASE, STEPS, strict=True)],
        predicted_base=BASE,
        seen=[value + share * step for value, step in zip(theirs, STEPS, strict=True)],
        seen_base=theirs,
    )


@pytest.mark.parametrize(("share", "is_served"), [(1.0, True), (0.95, True), (0.0, False), (2.0, False), (-1.0, False)])
def test_in_float32_the_change_must_be_the_predicted_one(share: float, is_served: bool) -> None:
    assert seen(share).is_served is is_served


@pytest.mark.parametrize(("share", "is_served"), [(1.0, True), (0.6, True), (0.0, False)])
def test_under_coarse_rounding_the_base_is_still_told_from_the_adapter(share: float, is_served: bool) -> None:
    assert seen(share, rounding=0.06).is_served is is_served


def test_the_engine_is_built_from_the_settings(server: Replay, files: Path, tmp_path: Path) -> None:
    engine = build(settings_of(server.url, files / "model", tmp_path, server_model="base"))
    assert (engine.name, engine.served_version) == ("vllm", 0)
    assert len(engine.base_digest) == len(engine.tokenizer_digest) == 64
    engine.close()
