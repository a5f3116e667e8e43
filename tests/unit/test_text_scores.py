"""Scores of texts: how likely the served model finds what it is shown, as the training pass computes it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from gateway.agents import completions
from gateway.agents.caller import Caller
from gateway.agents.completions import CompletionsBody
from gateway.http.body import read
from streams.engines.local import packed_decoder
from streams.engines.local.continuous import ContinuousEngine
from streams.engines.protocol import TextScores
from streams.engines.scripted.scripted_tokens import ScriptedTokenEngine
from streams.engines.sharing import SharedTokenEngine
from streams.engines.vllm.vllm_tokens import VllmTokenEngine
from streams.errors import CallError, EventError
from streams.stages.agents.recording.calls import PromptScores, Token
from tests.support.models.tiny import tiny_model
from tests.unit.test_continuous import asked, tokens
from tests.unit.test_engines import base, save_adapter
from trainer.step import prefix_tree

TEXT = (5, 6, 7, *range(3, 63), 9, 8)
NATS = 1e-5
"""The promise: engine and trainer agree on each token of a text to this, in float32."""


@pytest.fixture
def engine() -> Iterator[ContinuousEngine]:
    engine = ContinuousEngine(base())
    yield engine
    engine.close()


def trained(text: tuple[int, ...], adapter: Path | None = None) -> list[float]:
    """Return the logprobs of a text but its first token, by the pass that training takes."""
    model: Any = tiny_model()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
        model = model.base_model.model
    row = prefix_tree.Row(text, 1, range(len(text) - 1), 0)
    with torch.no_grad():
        return prefix_tree.logprobs(model, [row], (1, len(text) - 1), 1.0)[0][0].tolist()


def assert_scored(scores: TextScores, expected: list[float]) -> None:
    assert scores.logprobs == pytest.approx(expected, abs=NATS)
    assert len(scores.likeliest) == len(expected) + 1
    for logprob, place in zip(scores.logprobs, scores.likeliest, strict=False):
        assert place[0][1] >= logprob


def test_a_text_has_the_logprobs_that_training_would_give_it(engine: ContinuousEngine, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    engine.load(1, adapter)
    of_base, of_adapter = trained(TEXT), trained(TEXT, adapter)
    assert of_base != pytest.approx(of_adapter, abs=0.1), "the adapter was meant to matter"
    assert_scored(engine.score(0, TEXT, 2), of_base)
    assert_scored(engine.score(1, TEXT, 2), of_adapter)


@pytest.mark.parametrize("piece", [1, 2, 7, len(TEXT) - 1, len(TEXT)])
def test_a_text_scored_in_pieces_has_the_same_scores(
    engine: ContinuousEngine, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(packed_decoder, "PIECE_ALONE", piece)
    assert_scored(engine.score(0, TEXT, 3), trained(TEXT))


def test_what_comes_after_a_text_is_what_the_engine_would_draw_greedily(engine: ContinuousEngine) -> None:
    drawn = list(engine.submit(asked(TEXT, temperature=0.0, max_tokens=1)))
    ((token, logprob),) = engine.score(0, TEXT, 1).likeliest[-1]
    assert [token] == [each for each, _ in drawn] and logprob < 0


def test_a_text_of_one_token_has_only_what_comes_after_it(engine: ContinuousEngine) -> None:
    scores = engine.score(0, (5,), 2)
    assert scores.logprobs == () and len(scores.likeliest) == 1 and len(scores.likeliest[0]) == 2


def test_answers_in_progress_are_those_of_an_engine_that_scores_nothing(
    engine: ContinuousEngine, tmp_path: Path
) -> None:
    engine.load(1, save_adapter(tmp_path / "adapter"))
    alone = tokens(engine.submit(asked(max_tokens=100)))
    stream, expected = engine.submit(asked(max_tokens=100)), trained(TEXT)
    while not stream.done:
        engine.score(1, TEXT, 1)
        assert_scored(engine.score(0, TEXT, 1), expected)
    assert tokens(stream) == alone


def test_what_cannot_be_scored_says_why(engine: ContinuousEngine) -> None:
    for version, text, reason in (
        (7, TEXT, "unknown_version"),
        (0, (), "bad_tokens"),
        (0, TEXT * 99, "prompt_too_long"),
    ):
        with pytest.raises(EventError) as caught:
            engine.score(version, text, 1)
        assert caught.value.reason == reason
    scripted = ScriptedTokenEngine()
    for each in (scripted, VllmTokenEngine.__new__(VllmTokenEngine)):
        with pytest.raises(EventError, match=f"policy.engine={each.name} .*policy.engine=transformers") as caught:
            each.score(0, TEXT, 1)
        assert caught.value.reason == "cannot_score"
    scripted.close()


def test_a_policy_of_a_fleet_is_scored_with_its_own_version(engine: ContinuousEngine, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    shared = SharedTokenEngine(engine)
    ours, theirs = shared.share("ours"), shared.share("theirs")
    theirs.load(1, save_adapter(tmp_path / "other", seed=5))
    ours.load(1, adapter)
    assert_scored(ours.score(1, TEXT, 1), trained(TEXT, adapter))
    with pytest.raises(EventError, match="version 2 of ours is not loaded"):
        ours.score(2, TEXT, 1)


# --- the protocol ----------------------------------------------------------------------------------------------------


def body(**changes: Any) -> CompletionsBody:
    scoring = {"model": "sums", "prompt": "hi", "echo": True, "logprobs": 2, "max_tokens": 0}
    return read(CompletionsBody, json.dumps(scoring | changes).encode())


CALLER = Caller("default", None, "d" * 64, None)


def token(number: int, data: bytes, logprob: float) -> Token:
    return Token(number, data.decode(errors="replace"), data, logprob)


def test_the_answer_has_four_lists_of_one_length_and_bytes_of_a_character_by_number() -> None:
    euro = "€".encode()
    places = (token(1, b"a", math.nan), token(2, euro[:1], -1.5), token(3, euro[1:], -0.5), token(4, b"b", -3.0))
    likeliest = ((places[1],), (places[2],), (token(5, b"c", -0.1), places[3]), (token(6, b"d", -0.2),))
    scores = PromptScores("sums@7", "fp", places, likeliest)
    (choice,) = completions.scores_answer(body(), "d" * 64, [scores], 0.0).choices
    lists = choice.logprobs
    assert choice.text == "a€b" and choice.finish_reason == "length"
    assert lists.tokens == ["a", r"bytes:\xe2", r"bytes:\x82\xac", "b"]
    assert lists.token_logprobs == [None, -1.5, -0.5, -3.0]
    assert lists.top_logprobs == [None, {r"bytes:\xe2": -1.5}, {r"bytes:\x82\xac": -0.5}, {"b": -3.0, "c": -0.1}]
    assert lists.text_offset == [0, 1, 1, 2]
    one_more = completions.scores_answer(body(max_tokens=1, temperature=0), "d" * 64, [scores, scores], 0.0)
    assert [each.index for each in one_more.choices] == [0, 1]
    assert one_more.choices[0].text == "a€bd" and one_more.choices[1].logprobs.token_logprobs[-1] == -0.2
    assert (one_more.usage.prompt_tokens, one_more.usage.completion_tokens) == (8, 2)


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"logprobs": None}, "logprobs"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"max_tokens": 1}, "temperature"),
        ({"max_tokens": 1, "temperature": 0.5}, "temperature"),
    ],
)
def test_what_a_scored_prompt_cannot_have_is_refused_by_its_name(changes: dict[str, Any], parameter: str) -> None:
    with pytest.raises(CallError) as caught:
        completions.scoring_calls(body(**changes), CALLER)
    assert (caught.value.kind, caught.value.parameter) == ("unsupported", parameter)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hi", ["hi"]),
        (["hi"], ["hi"]),
        (["hi", "ho"], ["hi", "ho"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2]], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts_are_texts_or_tokens_one_or_several(prompt: Any, texts: list[Any]) -> None:
    assert [call.prompt for call in completions.scoring_calls(body(prompt=prompt), CALLER)] == texts
    if len(texts) > 1:
        with pytest.raises(CallError, match="2 prompts, expected one"):
            completions.call(body(prompt=prompt, echo=False, max_tokens=1), CALLER)


@pytest.mark.parametrize("prompt", [[["hi"]], [[[1, 2]]], [[]], [None], [1, "hi"]])
def test_a_prompt_is_no_list_of_lists(prompt: Any) -> None:
    """`[["hi"]]` was taken for the text in it, and the description says otherwise."""
    with pytest.raises(CallError, match="prompt"):
        body(prompt=prompt)


def test_no_tokens_at_all_are_asked_for_with_echo_alone() -> None:
    with pytest.raises(CallError, match="set echo, or at least 1") as caught:
        completions.call(body(echo=None), CALLER)
    assert caught.value.parameter == "max_tokens"
