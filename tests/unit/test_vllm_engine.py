"""The `vllm` engine against what the real vLLM 0.32.0 said (tests/contracts), and against servers that go wrong."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from streams import engines
from streams.engines import vllm_engine, vllm_servers
from streams.engines.vllm_answer import seed_of
from streams.engines.vllm_engine import VllmEngine
from streams.engines.vllm_probe import Change, change
from streams.engines.vllm_servers import Server, rendezvous
from streams.errors import EventError, SettingsError, StreamwardError
from tests.vllm_contract import (
    CONTEXT,
    REQUESTS,
    Replay,
    Said,
    replay,
    request,
    save_adapter,
    save_all,
    save_model,
    settings_for as settings_of,
)

NATS = 1e-4
"""vLLM and the arithmetic below agree to this, in float32."""
BY_NAME = {r.task.task_id.removeprefix("task-"): r for r in REQUESTS}
PLAIN = BY_NAME["plain"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model and the adapters that were recorded."""
    return save_all(tmp_path_factory.mktemp("contract"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_servers, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(vllm_servers, "LONGEST_PAUSE_S", 0.05)


@pytest.fixture
def server() -> Iterator[Replay]:
    with replay() as running:
        yield running


@pytest.fixture
def start(files: Path, tmp_path: Path) -> Iterator[Callable[..., VllmEngine]]:
    with ExitStack() as stack:

        def starting(*servers: Replay, **changes: Any) -> VllmEngine:
            urls = ",".join(server.url for server in servers)
            return stack.enter_context(
                closing(VllmEngine(settings_of(urls, files / "model", tmp_path, **changes)))  # type: ignore[type-var]
            )

        yield starting


def serve(engine: VllmEngine, files: Path, version: int) -> None:
    engine.serve(version, files / str(version) if version else None)


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
    assert (first["seed"], second["seed"]) == (seed_of(PLAIN), seed_of(BY_NAME["seeded"]))


def test_a_seed_belongs_to_the_task_and_without_one_to_the_sampling() -> None:
    seeded, plain = BY_NAME["seeded"], PLAIN
    assert seed_of(seeded) == seed_of(replace(seeded, sampling_id="another"))
    assert seed_of(plain) != seed_of(replace(plain, sampling_id="another"))
    assert 0 <= seed_of(plain) < 2**62


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


def name_in(files: Path, version: int) -> str:
    """The name of an adapter, as the recording has it."""
    with replay() as recorded:
        names = {json.loads(key.partition(" ")[2]).get("lora_name") for key in recorded.exchanges if "{" in key}
    return next(name for name in names if name and name.startswith(f"default-v{version}-"))


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
    monkeypatch.setattr(vllm_engine, "KEPT", 2)
    engine = start(server)
    for version in (1, 2, 1, 3):
        serve(engine, files, version)
    assert sorted(server.loaded) == [name_in(files, 1), name_in(files, 3)]
    engine.close()
    assert server.loaded == {} and list((tmp_path / "served").iterdir()) == []


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


# --- servers that go wrong -------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_loads_the_adapter_again_before_it_answers(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    engine = start(server)
    serve(engine, files, 1)
    server.restart()
    (slots,) = engine.sample([PLAIN])
    assert all(slot.error is None for slot in slots) and list(server.loaded) == [name_in(files, 1)]


def test_a_dead_server_is_passed_over_and_used_again_when_it_is_back(
    server: Replay, start: Callable[..., VllmEngine], files: Path
) -> None:
    with replay() as other:
        engine = start(server, other)
        other.is_dead = True
        serve(engine, files, 1)
        assert all(slot.error is None for slot in engine.sample([PLAIN])[0])
        other.restart()
        server.is_dead = True
        (slots,) = engine.sample([PLAIN])
        assert all(slot.error is None for slot in slots)
        assert list(other.loaded) == [name_in(files, 1)]
        assert other.tasks()[-1]["model"] == name_in(files, 1)


def status(code: int, kind: str = "text/plain", body: bytes = b"no") -> Callable[[dict[str, Any], Said], Said]:
    return lambda body_asked, said: (code, kind, body)


def hangs_up(asked: dict[str, Any], said: Said) -> None:
    return None


@pytest.mark.parametrize(
    "turn",
    [
        status(500),
        status(503),
        status(429, "text/plain;retry-after=0.1"),
        hangs_up,
        status(200, "application/json", b"{"),
    ],
    ids=["500", "503", "429", "hangs up", "garbage"],
)
def test_what_goes_wrong_once_is_asked_again_with_the_same_seed(
    server: Replay, start: Callable[..., VllmEngine], turn: Any
) -> None:
    server.turns = [turn]
    (slots,) = start(server).sample([PLAIN])
    assert [slot.error for slot in slots] == [None] * 4
    first, second = server.tasks()
    assert first == second


def test_a_server_that_hangs_loses_its_task_to_another(start: Callable[..., VllmEngine]) -> None:
    over, first = threading.Event(), threading.Lock()

    def hangs_once(asked: dict[str, Any], said: Said) -> Said:
        if first.acquire(blocking=False):
            over.wait(30)
        return said

    with replay() as one, replay() as two:
        engine = start(one, two, server_timeout_s=1.5, server_retries=3)
        one.forever = two.forever = hangs_once
        (slots,) = engine.sample([PLAIN])
        over.set()
        assert [slot.error for slot in slots] == [None] * 4
        assert len(one.tasks()) >= 1 and len(two.tasks()) >= 1


def test_a_request_on_which_a_healthy_server_always_breaks_fails_and_takes_no_other_with_it(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    def breaks_on_two(asked: dict[str, Any], said: Said) -> Said:
        return (500, "text/plain", b"cannot do that") if asked["n"] == 2 else said

    server.forever = breaks_on_two
    good, bad = start(server).sample([PLAIN, BY_NAME["seeded"]])
    assert [slot.error for slot in good] == [None] * 4
    assert len(bad) == 2 and all("HTTP 500: cannot do that" in str(slot.error) for slot in bad)


def test_what_the_server_refuses_fails_with_its_words(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine = start(server)
    found = server._found("too long", None)
    server.forever = lambda asked, said: found
    (slots,) = engine.sample([PLAIN])
    assert all("HTTP 400" in str(slot.error) and "256" in str(slot.error) for slot in slots)
    assert len(server.tasks()) == 1


def test_when_no_server_answers_nothing_is_answered(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine = start(server, server_timeout_s=0.5, server_retries=0)
    server.forever = status(503)
    with pytest.raises(StreamwardError, match=r"no server in policy\.servers could be asked for 0\.5 s: .*HTTP 503"):
        engine.sample([PLAIN])


def test_a_key_that_the_server_does_not_take_is_a_matter_of_settings(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    engine = start(server)
    server.forever = status(401)
    with pytest.raises(SettingsError, match=r"check policy\.server_key"):
        engine.sample([PLAIN])


def altered(change_of: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any], Said], Said]:
    def turn(asked: dict[str, Any], said: Said) -> Said:
        answer = json.loads(said[2])
        change_of(answer)
        return said[0], said[1], json.dumps(answer).encode()

    return turn


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda a: a.update(model="another"), "answered by model 'another', and 'base' was asked"),
        (lambda a: a["choices"].pop(), "3 choices, and 4 were asked for"),
        (lambda a: a.pop("choices"), "no list of choices"),
        (lambda a: a["choices"][1].pop("token_ids"), "no token ids"),
        (lambda a: a["choices"][1].update(token_ids=None), "no list of 1 to 6 token ids"),
        (lambda a: a["choices"][1].update(token_ids=[3] * 7), "no list of 1 to 6 token ids"),
        (lambda a: a["choices"][1]["prompt_token_ids"].pop(), "not those that were sent"),
        (lambda a: a["choices"][1].update(index=0), "choice 1 is not there in its place"),
        (lambda a: a["choices"][1].update(logprobs=None), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].pop(), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, 0.5), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, math.nan), "lacks the logprob"),
        (lambda a: a["choices"][1]["logprobs"]["token_logprobs"].__setitem__(0, -9999.0), "lacks the logprob"),
    ],
)
def test_an_answer_that_is_not_to_what_was_asked_is_never_taken(
    server: Replay, start: Callable[..., VllmEngine], wrong: Callable[[dict[str, Any]], object], says: str
) -> None:
    engine = start(server)
    server.forever = altered(wrong)
    with pytest.raises(StreamwardError, match=says):
        engine.sample([PLAIN])
    assert len(server.tasks()) == 2  # it was given a second try


def test_a_turn_that_the_server_ends_where_the_base_ends_none_is_an_error(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    def shorten(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["token_ids"], choice["finish_reason"] = [5], "stop"
        choice["logprobs"]["token_logprobs"] = [-1.0]

    server.turns = [altered(shorten)]
    (slots,) = start(server).sample([PLAIN])
    assert "ends no turn; do both have the same files?" in str(slots[0].error)
    assert [slot.error for slot in slots[1:]] == [None] * 3


def test_tokens_behind_the_end_of_the_turn_are_dropped(server: Replay, start: Callable[..., VllmEngine]) -> None:
    def talk_on(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["token_ids"] = [5, 2, 6]
        choice["logprobs"]["token_logprobs"] = [-1.0, -2.0, -3.0]

    server.turns = [altered(talk_on)]
    (slots,) = start(server).sample([PLAIN])
    assert slots[0].completion_token_ids == (5, 2) and slots[0].logprobs == (-1.0, -2.0)
    assert (slots[0].finish_reason, slots[0].text) == ("stop", "1")


# --- which server ----------------------------------------------------------------------------------------------------


def test_no_more_tasks_are_in_flight_than_may_be(server: Replay, start: Callable[..., VllmEngine]) -> None:
    engine, now, most, lock = start(server, max_concurrent=2), 0, 0, threading.Lock()

    def counts(asked: dict[str, Any], said: Said) -> Said:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return said

    server.forever = counts
    engine.sample(REQUESTS)
    assert most == 2 and len(server.tasks()) == len(REQUESTS)


def test_a_prompt_goes_to_the_same_server_again_and_only_a_full_one_gives_it_away(
    server: Replay, start: Callable[..., VllmEngine]
) -> None:
    with replay() as other:
        engine = start(server, other)
        for _ in range(3):
            engine.sample([PLAIN])
        assert sorted((len(server.tasks()), len(other.tasks()))) == [0, 3]
        servers = engine._servers
        first = servers._pick(b"a prompt", None, [])
        assert isinstance(first, Server)
        first.in_flight = vllm_servers.FAR_OFF - 1
        assert servers._pick(b"a prompt", None, []) is first
        first.in_flight = vllm_servers.FAR_OFF
        assert servers._pick(b"a prompt", None, []) is not first


def test_when_a_server_leaves_only_its_own_prompts_move() -> None:
    urls, keys = ["http://a", "http://b", "http://c"], [str(number).encode() for number in range(300)]
    before = {key: max(urls, key=lambda url: rendezvous(key, url)) for key in keys}
    after = {key: max(urls[:2], key=lambda url: rendezvous(key, url)) for key in keys}
    assert {before[key] for key in keys if before[key] != after[key]} == {"http://c"}
    assert all(60 < list(before.values()).count(url) < 140 for url in urls)


# --- the probe -------------------------------------------------------------------------------------------------------

BASE = [-2.0 - 0.01 * step for step in range(100)]
STEPS = [0.05 * math.sin(step) for step in range(100)]


def seen(share: float, rounding: float = 0.0) -> Change:
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
    engine = engines.build(settings_of(server.url, files / "model", tmp_path, server_model="base"))
    assert (engine.name, engine.served_version) == ("vllm", 0)
    assert len(engine.base_digest) == len(engine.tokenizer_digest) == 64
    engine.close()
