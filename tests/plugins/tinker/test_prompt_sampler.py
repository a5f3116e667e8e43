"""Answers to one prompt: drawn tokens and logprobs of whatever is asked for, against plain transformers and peft."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import Tensor

from plugins.tinker.sampling import prompt_batch
from plugins.tinker.sampling.prompt_sampler import DrawnPrompt, PromptSampler
from plugins.tinker.worker.called_model import CalledModel
from schemas.events import CallLora
from streams.engines.local.prompt_scores import NO_TARGET, PromptDraw
from streams.errors import CallError
from streams.settings.model import Settings
from tests.support.models.chat_tiny import chat_base
from tests.support.models.tiny import tiny_model
from tests.support.thoroughness import FULL

pytestmark = pytest.mark.usefixtures("torch_as_before")

PROMPT = tuple(range(10, 22))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Weights that a called model saved: of all layers, and of attention alone with another rank."""
    folders = {}
    for name, lora in (("all", CallLora(rank=4)), ("attention", CallLora(rank=3, train_mlp=False))):
        called = CalledModel(Settings(), chat_base())
        state = called.fresh(lora, 5)
        called.enter(state)
        draw = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for parameter in state.parameters.values():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
        folders[name] = tmp_path_factory.mktemp(name)
        called.save(folders[name], optimizer=False)
    return folders


@pytest.fixture(scope="module")
def sampler() -> PromptSampler:
    return PromptSampler(chat_base(), threads=1, capacity=2)


def logits_of(adapter: Path | None, tokens: tuple[int, ...]) -> Tensor:
    """The second implementation: transformers' own pass over the whole sequence, with peft's adapter, [T, V]."""
    model: Any = tiny_model() if adapter is None else PeftModel.from_pretrained(tiny_model(), adapter)
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([tokens])).logits[0].float()
    return logits


def request(**changes: Any) -> PromptDraw:
    return PromptDraw(**{"prompt": PROMPT, "key": "k", "max_tokens": 8, "stop_tokens": frozenset()} | changes)


def tokens_of(drawn: DrawnPrompt) -> list[list[int]]:
    return [sequence.tokens for sequence in drawn.sequences]


@pytest.mark.parametrize("name", [None, "all", "attention"])
def test_logprobs_of_drawn_tokens_are_those_of_the_model(
    name: str | None, sampler: PromptSampler, adapters: dict[str, Path]
) -> None:
    adapter = None if name is None else adapters[name]
    drawn = sampler.draw(adapter, request(samples=3, top_sampled=4))
    for sequence in drawn.sequences:
        assert (len(sequence.tokens), sequence.reason) == (8, "length")
        whole = logits_of(adapter, (*PROMPT, *sequence.tokens)).log_softmax(-1)[len(PROMPT) - 1 : -1]
        expected = whole.gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(sequence.logprobs), expected, atol=1e-4)
        likeliest = whole.topk(4)
        for place, (tokens, logprobs) in enumerate(sequence.top):
            assert np.allclose(logprobs, likeliest.values[place].numpy(), atol=1e-4)
            assert tokens.tolist() == likeliest.indices[place].tolist()


@pytest.mark.parametrize("piece", [512, 5])
def test_places_of_the_prompt_are_scored_by_whatever_precedes_them(
    piece: int, sampler: PromptSampler, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_batch, "PIECE_TOKENS", piece)
    targets = np.array([[place + 4, NO_TARGET, 9] for place in range(len(PROMPT) - 1)], np.int64)
    asked = request(max_tokens=1, scores_prompt=True, top_prompt=3, targets=targets, prompt_draws=2)
    scores = sampler.draw(adapters["all"], asked).prompt
    whole = logits_of(adapters["all"], PROMPT).log_softmax(-1)[:-1]

    own = whole.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert np.isnan(scores["prompt_logprobs"][0])
    assert np.allclose(scores["prompt_logprobs"][1:], own.numpy(), atol=1e-4)
    likeliest = whole.topk(3)
    assert scores["prompt_topk_tokens"][1:].tolist() == likeliest.indices.tolist()
    assert np.allclose(scores["prompt_topk_logprobs"][1:], likeliest.values.numpy(), atol=1e-4)
    scored = whole.gather(1, torch.from_numpy(targets).clamp(min=0)).numpy()
    assert np.allclose(scores["target_prompt_logprobs"], np.where(targets == -1, 0.0, scored), atol=1e-4)
    drawn = torch.from_numpy(scores["prompt_alt_tokens"]).long()
    assert drawn.shape == (len(PROMPT) - 1, 2)
    assert np.allclose(scores["prompt_alt_logprobs"], whole.gather(1, drawn).numpy(), atol=1e-4)


def test_what_is_not_asked_about_the_prompt_is_not_computed(sampler: PromptSampler) -> None:
    assert sampler.draw(None, request()).prompt == {}


def test_at_temperature_0_the_likeliest_token_is_drawn(sampler: PromptSampler, adapters: dict[str, Path]) -> None:
    (tokens,) = tokens_of(sampler.draw(adapters["all"], request(temperature=0.0)))
    whole = logits_of(adapters["all"], (*PROMPT, *tokens))
    assert tokens == whole[len(PROMPT) - 1 : -1].argmax(-1).tolist()


def test_top_k_draws_one_of_the_k_likeliest_as_often_as_their_shares_say(sampler: PromptSampler) -> None:
    drawn = sampler.draw(None, request(samples=600, max_tokens=1, top_k=3))
    counts = Counter(tokens[0] for tokens in tokens_of(drawn))
    values, likeliest = logits_of(None, PROMPT)[-1].topk(3)
    assert set(counts) <= set(likeliest.tolist())
    for token, share in zip(likeliest.tolist(), values.softmax(-1).tolist(), strict=True):
        assert counts[token] / 600 == pytest.approx(share, abs=4 * (share * (1 - share) / 600) ** 0.5 + 1e-9)


def test_an_answer_ends_with_a_token_that_stops_it_and_others_continue(sampler: PromptSampler) -> None:
    free = tokens_of(sampler.draw(None, request(samples=4)))
    stop = free[0][2]
    stopped = sampler.draw(None, request(samples=4, stop_tokens=frozenset([stop])))
    for tokens, sequence in zip(free, stopped.sequences, strict=True):
        end = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert sequence.tokens == tokens[:end]
        assert sequence.reason == ("stop" if stop in tokens else "length")


def test_an_answer_ends_with_a_text_that_stops_it(sampler: PromptSampler) -> None:
    base = chat_base()
    (tokens,) = tokens_of(sampler.draw(None, request()))
    text = base.tokenizer.decode(tokens[2:3]).strip()
    (sequence,) = sampler.draw(None, request(stop_texts=(text,))).sequences
    assert sequence.reason == "stop"
    assert text in base.tokenizer.decode(sequence.tokens)
    assert text not in base.tokenizer.decode(sequence.tokens[:-1])


def test_what_is_drawn_depends_on_the_arguments_alone(sampler: PromptSampler, adapters: dict[str, Path]) -> None:
    """After other prompts and adapters, and in another process, the same is drawn."""
    first = sampler.draw(adapters["all"], request(samples=4))
    sampler.draw(None, request(prompt=(4, 5, 6), samples=2))
    sampler.draw(adapters["attention"], request(samples=2))
    again = sampler.draw(adapters["all"], request(samples=4))
    elsewhere = PromptSampler(chat_base(), threads=1, capacity=1).draw(adapters["all"], request(samples=4))
    for other in (again, elsewhere):
        assert tokens_of(other) == tokens_of(first)
        assert [each.logprobs for each in other.sequences] == [each.logprobs for each in first.sequences]
    assert tokens_of(sampler.draw(adapters["all"], request(samples=4, key="other"))) != tokens_of(first)
    assert len({tuple(tokens) for tokens in tokens_of(first)}) > 1


def company() -> list[PromptDraw]:
    """Requests of all kinds: prompts short, long and equal, scores, stops, and more answers than decode at once."""
    long = tuple(4 + place % 50 for place in range(200))
    return [
        request(samples=3, top_sampled=2),
        request(prompt=PROMPT[:1], key="one token"),
        request(prompt=long, key="long", scores_prompt=True, top_prompt=2, max_tokens=20),
        request(key="the same prompt", scores_prompt=True, prompt_draws=1),
        request(prompt=PROMPT[:7], key="cold", temperature=0.3, top_p=0.8, top_k=9, max_tokens=30),
        request(prompt=PROMPT[2:], key="stops", samples=5, stop_tokens=frozenset(range(4, 24)), max_tokens=40),
        request(prompt=PROMPT[3:9], key="many", samples=90, max_tokens=3),
        request(prompt=long[:90], key="places alone", max_tokens=1, scores_prompt=True),
    ]


def bits(drawn: DrawnPrompt) -> list[Any]:
    """What was drawn, to the bit."""
    arrays = {name: (array.dtype, array.tobytes()) for name, array in drawn.prompt.items()}
    return [
        arrays,
        *(
            (each.tokens, np.array(each.logprobs).tobytes(), each.reason, [v.tobytes() for _, v in each.top])
            for each in drawn.sequences
        ),
    ]


@pytest.mark.parametrize(
    ("name", "cache_bytes"),
    [
        *((name, prompt_batch.CACHE_BYTES) for name in (None, "all", "attention")),
        *((name, 1) for name in (None, "all", "attention") if FULL or name is None),
    ],
)
def test_a_request_has_the_same_bits_alone_and_beside_others(
    name: str | None,
    cache_bytes: int,
    sampler: PromptSampler,
    adapters: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In any order, and where memory has room for one answer at a time."""
    adapter, requests = None if name is None else adapters[name], company()
    alone = [bits(sampler.draw(adapter, each)) for each in requests]
    monkeypatch.setattr(prompt_batch, "CACHE_BYTES", cache_bytes)
    for order in (range(len(requests)), [5, 2, 7, 0, 6, 1, 4, 3], [2, 6]):
        drawn = dict(sampler.draw_all(adapter, [requests[number] for number in order]))
        assert [bits(drawn[place]) for place in range(len(drawn))] == [alone[number] for number in order]


def test_requests_are_answered_together_here(sampler: PromptSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts take as many passes as one."""
    passes: list[int] = []
    run = prompt_batch.PackedPass.run

    def count(self: Any, *arguments: Any) -> Tensor:
        passes.append(len(self.counts))
        return run(self, *arguments)

    monkeypatch.setattr(prompt_batch.PackedPass, "run", count)
    assert len(list(sampler.draw_all(None, [request(), request(prompt=PROMPT[1:]), request(key="other")]))) == 3
    assert passes == [3, *[4] * 7]  # two prompts, three answers, and one to make the number of tokens even


def test_where_neighbours_change_bits_requests_are_answered_one_by_one(
    sampler: PromptSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_exact", dict.fromkeys(sampler._exact, False))
    sizes: list[int] = []
    whole = prompt_batch.PromptBatch.__init__

    def count(self: Any, model: Any, requests: Any, ends_with: Any) -> None:
        sizes.append(len(requests))
        whole(self, model, requests, ends_with)

    monkeypatch.setattr(prompt_batch.PromptBatch, "__init__", count)
    drawn = dict(sampler.draw_all(None, [request(), request(key="other")]))
    assert sizes == [1, 1] and sorted(drawn) == [0, 1]


def test_an_answer_has_as_many_tokens_as_the_context_leaves_room_for(sampler: PromptSampler) -> None:
    prompt = tuple(4 + place % 50 for place in range(250))
    (sequence,) = sampler.draw(None, request(prompt=prompt, max_tokens=None)).sequences
    assert (len(sequence.tokens), sequence.reason) == (6, "length")


@pytest.mark.parametrize(
    ("prompt", "kind", "said"),
    [
        ((), "invalid", "the prompt has no tokens"),
        ((4, 64), "invalid", "the prompt has id 64; ids are 0 to 63"),
        ((4,) * 256, "context_length_exceeded", "the prompt has 256 tokens, and the context is 256"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_the_callers_mistake(
    prompt: tuple[int, ...], kind: str, said: str, sampler: PromptSampler
) -> None:
    with pytest.raises(CallError, match=said) as error:
        sampler.draw(None, request(prompt=prompt))
    assert error.value.kind == kind
