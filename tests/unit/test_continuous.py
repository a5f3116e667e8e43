"""What continuous decoding promises: the tokens of `sample`, in any company, and wherever a row's prefix comes from.

The tiny model is enough for what is decided here; SmolLM2 is asked once, with prompts and adapters as agents have them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from schemas.events import Message, Sampling
from streams.engines.base_model import load_base
from streams.engines.local import packed_decoder
from streams.engines.local.continuous import ContinuousEngine
from streams.engines.local.key_values import BLOCK, CacheShape
from streams.engines.local.packed_decoder import PackedDecoder, PackedRow
from streams.engines.local.packed_linear import MOST_ROWS, PackedLinears
from streams.engines.local.self_check import AGREEMENT
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.token_stream import Generation, TokenStream
from streams.errors import EventError, SettingsError
from streams.settings.model import Model
from tests.support.models.tiny import VOCABULARY, sampled_logps, tiny_model
from tests.support.thoroughness import FULL
from tests.unit.test_engines import base, edit_weights, mixed, request, save_adapter

LONG = tuple(range(3, 63)) * 2
"""A prompt of 120 tokens."""


@pytest.fixture
def start() -> Iterator[Callable[..., ContinuousEngine]]:
    engines = []

    def engine(**changes: Any) -> ContinuousEngine:
        engines.append(ContinuousEngine(base(), **changes))
        return engines[-1]

    yield engine
    for each in engines:
        each.close()


@pytest.fixture
def engine(start: Callable[..., ContinuousEngine]) -> ContinuousEngine:
    return start()


def asked(prompt: tuple[int, ...] = (5, 6, 7), key: str = "k", **changes: Any) -> Generation:
    sampling = Sampling(max_tokens=changes.pop("max_tokens", 12), temperature=changes.pop("temperature", 1.0))
    return Generation(**{"prompt_token_ids": prompt, "sampling": sampling, "draw_key": key, **changes})


def tokens(stream: TokenStream) -> tuple[int, ...]:
    drawn = tuple(token for token, _ in stream)
    assert stream.error is None
    return drawn


def submitted(engine: ContinuousEngine, requests: Any, answers: Any, version: int = 0) -> list[TokenStream]:
    """Submit what `sample` was asked, slot by slot."""
    return [
        engine.submit(
            Generation(
                prompt_token_ids=slot.prompt_token_ids,
                sampling=request.sampling,
                draw_key=request.draw_key,
                slot=slot.slot,
                version=version,
            )
        )
        for request, slots in zip(requests, answers, strict=True)
        for slot in slots
    ]


def assert_as_sampled(streams: list[TokenStream], answers: Any, within: float = AGREEMENT) -> None:
    slots = [slot for completions in answers for slot in completions]
    assert [tokens(stream) for stream in streams] == [slot.completion_token_ids for slot in slots]
    for stream, slot in zip(streams, slots, strict=True):
        assert [logprob for _, logprob in stream.drawn] == pytest.approx(slot.logprobs, abs=within)
        assert stream.ending == slot.finish_reason


# --- the same tokens -------------------------------------------------------------------------------------------------


def test_tokens_and_logprobs_are_those_of_sample(engine: ContinuousEngine) -> None:
    answers = TransformersEngine(base()).sample(mixed())
    assert_as_sampled(submitted(engine, mixed(), answers), answers, within=1e-4)


def test_versions_side_by_side_each_answer_as_if_alone(engine: ContinuousEngine, tmp_path: Path) -> None:
    oracle, streams, answers = TransformersEngine(base()), [], []
    for version in (0, 1, 2):
        folder = save_adapter(tmp_path / str(version), seed=version) if version else None
        oracle.serve(version, folder)
        engine.load(version, folder)
        answers.append(oracle.sample(mixed()))
    for version in (0, 1, 2):
        streams.append(submitted(engine, mixed(), answers[version], version))
    for version in (0, 1, 2):
        assert_as_sampled(streams[version], answers[version], within=1e-4)
    assert answers[0] != answers[1] != answers[2]


def test_an_adapter_of_the_output_layer_changes_the_tokens_of_its_rows_only(
    start: Callable[..., ContinuousEngine], tmp_path: Path
) -> None:
    head = "base_model.model.lm_head.lora_{}.weight"
    pair = {head.format("A"): torch.randn(4, 32), head.format("B"): torch.randn(VOCABULARY, 4)}
    folder = edit_weights(save_adapter(tmp_path / "head"), lambda tensors: tensors.update(pair))
    alone = {}
    for version in (0, 1):
        fresh = start()
        fresh.load(1, folder)
        alone[version] = tokens(fresh.submit(asked(LONG, version=version)))
    both = start()
    both.load(1, folder)
    streams = [both.submit(asked(LONG, version=version)) for version in (1, 0, 1)]
    assert [tokens(stream) for stream in streams] == [alone[1], alone[0], alone[1]]
    assert alone[0] != alone[1]


def test_a_turn_whose_beginning_is_kept_draws_as_one_that_is_run_whole(
    start: Callable[..., ContinuousEngine],
) -> None:
    warm, prompt, plain = start(), LONG, tiny_model()
    before: tuple[int, ...] = ()
    for turn in range(4):
        stream = warm.submit(asked(prompt, f"turn {turn}"))
        drawn = tokens(stream)
        assert drawn == tokens(start().submit(asked(prompt, f"turn {turn}")))
        expected = sampled_logps(plain, list(prompt), list(drawn))
        assert [logprob for _, logprob in stream.drawn] == pytest.approx(expected, abs=1e-4)
        assert stream.cached_tokens == max(0, len(before) - 1)  # all but the last token drawn, which was never run
        before = prompt + drawn
        prompt = (*before, 9, 8, 7)
    assert warm.counts().prompt_tokens_reused > warm.counts().prompt_tokens_run


def test_a_fork_gets_the_beginning_it_shares_and_leaves_the_other_branch_as_it_was(
    start: Callable[..., ContinuousEngine],
) -> None:
    engine = start()
    trunk = (*LONG, *tokens(engine.submit(asked(LONG))))
    fork = engine.submit(asked((*LONG, 60, 60, 60)))
    assert tokens(fork) == tokens(start().submit(asked((*LONG, 60, 60, 60))))
    assert fork.cached_tokens == len(LONG)
    again = engine.submit(asked((*trunk, 9)))
    assert tokens(again) == tokens(start().submit(asked((*trunk, 9))))
    assert again.cached_tokens == len(trunk) - 1


def test_what_one_version_kept_is_not_used_by_another(engine: ContinuousEngine, tmp_path: Path) -> None:
    engine.load(1, save_adapter(tmp_path / "1"))
    tokens(engine.submit(asked(LONG)))
    other = engine.submit(asked(LONG, version=1))
    assert tokens(other)
    assert other.cached_tokens == 0


def test_a_version_replaced_by_another_folder_keeps_nothing_of_the_old(
    start: Callable[..., ContinuousEngine], tmp_path: Path
) -> None:
    engine, fresh = start(), start()
    engine.load(1, save_adapter(tmp_path / "1"))
    tokens(engine.submit(asked(LONG, version=1)))
    for each in (engine, fresh):
        each.load(1, save_adapter(tmp_path / "2", seed=2))
    assert tokens(engine.submit(asked(LONG, version=1))) == tokens(fresh.submit(asked(LONG, version=1)))
    assert engine.counts().prompt_tokens_reused == 0


# --- sharing and bounds ----------------------------------------------------------------------------------------------


def test_the_slots_of_one_prompt_run_it_once(engine: ContinuousEngine) -> None:
    streams = [engine.submit(asked(LONG, slot=slot)) for slot in range(8)]
    assert len({tokens(stream) for stream in streams}) == 8
    assert engine.counts().prompt_tokens_run == len(LONG) + 7


def test_conversations_that_share_their_system_message_run_it_once(engine: ContinuousEngine) -> None:
    streams = [engine.submit(asked((*LONG, number, number, number), "k")) for number in range(10, 14)]
    assert all(tokens(stream) for stream in streams)
    assert engine.counts().prompt_tokens_run == len(LONG) + 4 * 3


def test_kept_prefixes_stay_within_the_bound_and_the_longest_unused_leaves_first(
    start: Callable[..., ContinuousEngine],
) -> None:
    token_bytes = CacheShape.read(tiny_model()).token_bytes
    engine = start(cache_bytes=6 * BLOCK * token_bytes)
    prompts = [tuple((number + step) % 50 + 3 for step in range(0, 70 * 7, 7)) for number in range(5)]
    for prompt in prompts:
        tokens(engine.submit(asked(prompt, max_tokens=2)))
        tokens(engine.submit(asked((*prompts[0], 9), max_tokens=2)))  # used all the time
        assert engine.counts().cached_bytes <= 6 * BLOCK * token_bytes
    first, oldest = (engine.submit(asked((*prompt, 9, 9), max_tokens=2)) for prompt in prompts[:2])
    assert tokens(first)
    assert tokens(oldest)
    assert (first.cached_tokens >= 70, oldest.cached_tokens) == (True, 0)


def test_rows_that_do_not_fit_together_wait_and_draw_what_they_would_have_drawn(
    start: Callable[..., ContinuousEngine],
) -> None:
    prompts = [tuple((number + step) % 50 + 3 for step in range(0, 60 * 7, 7)) for number in range(4)]
    roomy, tight = start(), start(cache_bytes=0)  # one full context of 256 tokens is always allowed
    asks = [asked(prompt, max_tokens=100, temperature=index % 2 / 2) for index, prompt in enumerate(prompts)]
    expected = [tokens(stream) for stream in [roomy.submit(ask) for ask in asks]]
    assert [tokens(stream) for stream in [tight.submit(ask) for ask in asks]] == expected
    assert sum(len(drawn) > 2 * BLOCK - 60 for drawn in expected) > 1  # they outgrew what they were admitted with


def test_more_rows_than_run_together_wait_for_their_turn(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [tokens(engine.submit(asked(LONG, slot=slot))) for slot in range(7)]
    monkeypatch.setattr(packed_decoder, "MOST_ROWS", 2)
    streams = [engine.submit(asked(LONG, slot=slot)) for slot in range(7)]
    assert [tokens(stream) for stream in streams] == expected


def test_rows_of_several_owners_begin_by_turns_and_an_owners_own_in_their_order(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_decoder, "MOST_ROWS", 1)
    began: list[str] = []
    begin = PackedDecoder._begin

    def noted(self: PackedDecoder, row: PackedRow, *how: Any) -> None:
        began.append(row.row.key)
        begin(self, row, *how)

    monkeypatch.setattr(PackedDecoder, "_begin", noted)
    gate = threading.Event()
    engine._loop.post(gate.wait)  # type: ignore[arg-type]
    owners = ["busy", "busy", "busy", "", "quiet"]
    streams = [engine.submit(asked(key=f"{owner}{n}", owner=owner, max_tokens=2)) for n, owner in enumerate(owners)]
    gate.set()
    for stream in streams:
        tokens(stream)
    assert began == ["3", "busy0", "quiet4", "busy1", "busy2"]


def test_a_row_that_decodes_gets_a_token_between_the_pieces_of_a_long_prompt(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_decoder, "PIECE_BESIDE", 4)
    running = engine.submit(asked((50, 51), max_tokens=250, temperature=0.0))
    next(iter(running))
    late = engine.submit(asked(LONG, max_tokens=1))
    before = len(running.drawn)
    assert tokens(late)
    assert len(running.drawn) - before >= len(LONG) // 4 - 2
    running.cancel()


# --- the end of a row ------------------------------------------------------------------------------------------------


def test_a_cancelled_row_leaves_and_the_others_draw_on(engine: ContinuousEngine) -> None:
    alone = tokens(engine.submit(asked(key="other", max_tokens=100)))
    long, other = engine.submit(asked(max_tokens=250)), engine.submit(asked(key="other", max_tokens=100))
    next(iter(long))
    long.cancel()
    assert tokens(other) == alone
    assert len(list(long)) < 250
    assert long.ending in ("cancelled", "stop")  # it may have been done already
    assert engine.counts().rows_running == 0


def test_a_stop_text_is_named(engine: ContinuousEngine) -> None:
    free = tokens(engine.submit(asked()))
    word = str(free[3] - 4)  # how the tiny tokenizer writes that token
    stream = engine.submit(replace(asked(), sampling=Sampling(max_tokens=12, stop=("never", word))))
    drawn = tokens(stream)
    assert (stream.ending, stream.stop) == ("stop", word)
    assert drawn == free[: len(drawn)]


def test_an_answer_ends_where_the_context_does(engine: ContinuousEngine) -> None:
    streams = [engine.submit(asked((7,) * 250, slot=slot, max_tokens=50)) for slot in range(4)]
    assert max(len(tokens(stream)) for stream in streams) == 6


def test_what_can_never_be_answered_is_refused(engine: ContinuousEngine, tmp_path: Path) -> None:
    for generation in (asked((7,) * 256), asked((64,)), asked((-1,)), asked(()), asked(version=1), asked(max_tokens=0)):
        with pytest.raises(EventError):
            engine.submit(generation)
    broken = save_adapter(tmp_path / "broken")
    edit_weights(broken, lambda tensors: [weight.fill_(3e38) for weight in tensors.values()])
    with pytest.raises(EventError, match="logits with it are not finite") as caught:
        engine.load(1, broken)
    assert caught.value.reason == "bad_adapter"
    (broken / "adapter_model.safetensors").unlink()
    with pytest.raises(EventError, match="cannot be read"):
        engine.load(1, broken)
    with pytest.raises(EventError, match="version 1 is not loaded"):
        engine.submit(asked(version=1))


def test_a_folder_that_cannot_be_loaded_leaves_the_version_that_was(engine: ContinuousEngine, tmp_path: Path) -> None:
    engine.load(1, save_adapter(tmp_path / "good"))
    expected = tokens(engine.submit(asked(LONG, version=1)))
    broken = edit_weights(save_adapter(tmp_path / "broken"), lambda tensors: tensors.clear())
    with pytest.raises(EventError, match="no tensors"):
        engine.load(1, broken)
    assert tokens(engine.submit(asked(LONG, version=1))) == expected


def test_logits_that_are_not_finite_fail_their_own_row_and_are_not_kept(
    engine: ContinuousEngine, tmp_path: Path
) -> None:
    engine.load(1, save_adapter(tmp_path / "1"))
    pair = next(iter(engine._versions[1].pairs.values()))
    pair.b.fill_(torch.inf)
    bad, good = engine.submit(asked(LONG, version=1)), engine.submit(asked(LONG))
    assert tokens(good)
    assert (list(bad), bad.ending) == ([], "error")
    assert bad.error is not None
    assert "not finite" in bad.error
    again = engine.submit(asked(LONG, version=1))
    assert (list(again), again.cached_tokens) == ([], 0)


def test_a_step_that_fails_is_told_to_all_and_the_engine_serves_on(
    engine: ContinuousEngine, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tokens(engine.submit(asked(LONG)))
    fails = engine._model.model.layers[1].register_forward_pre_hook(_no_memory)
    streams = [engine.submit(asked(LONG, slot=slot)) for slot in range(3)]
    for stream in streams:
        assert list(stream) == []
        assert stream.error == "the engine failed: RuntimeError: no memory"
    fails.remove()
    assert "a decoding step failed" in caplog.text
    assert tokens(engine.submit(asked(LONG))) == expected


def _no_memory(*_: object) -> None:
    raise RuntimeError("no memory")


def test_an_unloaded_version_takes_no_more_and_what_runs_finishes(engine: ContinuousEngine, tmp_path: Path) -> None:
    engine.load(1, save_adapter(tmp_path / "1"))
    expected = tokens(engine.submit(asked(LONG, version=1, max_tokens=60)))
    running = engine.submit(asked(LONG, version=1, max_tokens=60))
    next(iter(running))
    engine.unload(1)
    with pytest.raises(EventError, match="not loaded"):
        engine.submit(asked(version=1))
    assert tokens(running) == expected
    assert tokens(engine.submit(asked()))  # behind the order that forgets what was kept
    assert engine.counts().cached_tokens < len(LONG)


@pytest.mark.parametrize("ending", ["cancelled", "error"])
def test_a_generation_that_ends_before_its_first_step_costs_the_others_nothing(
    engine: ContinuousEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """Its client has left, or its version was unloaded, while the engine had nothing else to do."""
    engine.load(1, save_adapter(tmp_path / "1"))
    expected = tokens(engine.submit(asked(LONG)))
    taken_up = threading.Event()

    def wait() -> None:
        taken_up.wait()

    engine._loop.post(wait)
    stream = engine.submit(asked(version=1))
    if ending == "cancelled":
        stream.cancel()
    else:
        engine.unload(1)
    taken_up.set()
    assert (list(stream), stream.ending) == ([], ending)
    again = engine.submit(asked(LONG))
    assert (tokens(again), again.cached_tokens > 0) == (expected, True)
    assert "failed" not in caplog.text


def test_closing_ends_what_runs_and_restores_the_model(start: Callable[..., ContinuousEngine]) -> None:
    shared = base()
    before = shared.model(input_ids=torch.tensor([LONG])).logits
    engine = ContinuousEngine(shared)
    streams = [engine.submit(asked(slot=slot, max_tokens=250)) for slot in range(8)]
    engine.close()
    assert all(stream.done for stream in streams)
    assert torch.equal(shared.model(input_ids=torch.tensor([LONG])).logits, before)


def test_an_architecture_that_cannot_be_packed_is_refused_at_the_start() -> None:
    model = tiny_model()
    model.model.layers[0].register_forward_hook(_sees_its_neighbours)
    with pytest.raises(SettingsError, match="differs by"):
        ContinuousEngine(base(model))


def _sees_its_neighbours(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output - output.mean(dim=1, keepdim=True)


# --- with SmolLM2 ----------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_smollm2_gives_the_tokens_of_sample_in_company_and_from_kept_prefixes() -> None:
    shared = load_base(Model())
    system = Message(role="system", content="You answer in one short sentence, and you never guess.")
    requests = [
        request(
            name,
            group_size=size,
            messages=(system, Message(role="user", content=content)),
            sampling=Sampling(max_tokens=10 if FULL else 4, temperature=temperature),
        )
        for name, size, content, temperature in (
            ("a", 2, "What is 47 times 83?", 1.0),
            ("b", 1, "Name a river in France, and say where it begins, and where it meets the sea.", 0.7),
            ("c", 1, "Say hello.", 0.0),
        )
    ]
    oracle = TransformersEngine(shared)
    answers = oracle.sample(requests)
    oracle.close()
    engine = ContinuousEngine(shared)
    try:
        assert_as_sampled(submitted(engine, requests, answers), answers)
        run = engine.counts().prompt_tokens_run
        again = submitted(engine, requests, answers)
        assert_as_sampled(again, answers)
        assert engine.counts().prompt_tokens_run == run + len(again)  # one token each: the rest was kept
    finally:
        engine.close()


# --- packed linear layers ---------------------------------------------------------------------------------------------


def test_packed_layers_give_what_torchs_own_product_gives_and_many_rows_are_left_to_it() -> None:
    layer = nn.Linear(96, 160)
    inputs = torch.randn(1, MOST_ROWS + 1, 96, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        plain = {rows: layer(inputs[:, :rows]) for rows in (1, 4, 8, MOST_ROWS, MOST_ROWS + 1)}
        linears = PackedLinears(layer)
        assert linears.changes, "oneDNN is part of torch on every CPU that the tests run on"
        for rows, expected in plain.items():
            torch.testing.assert_close(layer(inputs[:, :rows]), expected, rtol=1e-4, atol=1e-5)
        assert layer(inputs).equal(plain[MOST_ROWS + 1])
        linears.remove()
        assert all(layer(inputs[:, :rows]).equal(expected) for rows, expected in plain.items())


def test_a_layer_of_another_type_is_left_as_it_is() -> None:
    assert not PackedLinears(nn.Linear(8, 8, dtype=torch.bfloat16)).changes
