"""The request to a vLLM server, and the checks of its answer: for all slots of a task, or one, streamed.

    prompt ids, sampling ──► POST /v1/completions ──► n choices ──► model, prompt ids, lengths checked ──► [Completion]
                                                  └─► chunks ──► model, prompt ids, logprobs checked ──► tokens

The request states everything that changes the distribution, including disabled options: a server fills gaps from the
model's generation_config.json, where some models have a top_k or a repetition penalty. A bias keeps ids that have a row
but no token from being drawn. Text is decoded here from the token ids, the same way for every engine; tokens after an
end of turn or a stop text are dropped.

The server draws, seeded by the task's seed or else the sampling id (slot i by seed + i, as vLLM counts): a retry draws
the same tokens, so slow answers are not less likely to be kept. The draws differ from those of the `transformers`
engine, and may differ between servers by rounding.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from schemas.events import Sampling
from streams.engines.protocol import Completion, SamplingRequest, failed_slot
from streams.engines.rendering.prompts import Prompts, StopMatch
from streams.engines.rendering.token_table import TokenTable
from streams.engines.token_stream import Drawn, Generation
from streams.errors import BadAnswer, ServerError

COLDEST = 0.01
"""vLLM silently raises a positive temperature below this to it."""
SEED_BITS = 62
"""vLLM accepts a signed 64-bit seed, and adds the slot to it."""
FLOORED = -9000.0
"""vLLM writes -9999 for a logprob of minus infinity, which no drawn token has."""
SLACK = 1e-4
"""A logprob may be this far above 0 by rounding (nats); it counts as 0."""
NEVER = -100
"""The lowest bias of a logit that vLLM accepts."""


def seed_of(draw_key: str) -> int:
    """Return the seed of slot 0 for this key, 0 to 2^62 - 1."""
    digest = hashlib.sha256(draw_key.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def completions_body(request: SamplingRequest, prompt: Sequence[int], room: int, table: TokenTable) -> dict[str, Any]:
    """Return the request for all slots of a task, without the model; `room` is the maximum tokens of each."""
    sampling = request.sampling
    return {
        **_sampling_body(sampling, prompt, room, table),
        "n": _choice_count(request),
        "seed": seed_of(request.draw_key),
        "stop": [text for text in sampling.stop if text],
    }


def stream_body(generation: Generation, room: int, table: TokenTable) -> dict[str, Any]:
    """Return the request for one streamed answer, without the model.

    It has no stop texts: the reader of the tokens looks for them, as in every engine, and ends the request.
    """
    return {
        **_sampling_body(generation.sampling, generation.prompt_token_ids, room, table),
        "n": 1,
        "seed": seed_of(generation.draw_key) + generation.slot,
        "stream": True,
    }


def _sampling_body(sampling: Sampling, prompt: Sequence[int], room: int, table: TokenTable) -> dict[str, Any]:
    bias = {"logit_bias": dict.fromkeys(map(str, table.without_token), NEVER)} if table.without_token else {}
    return {
        "prompt": list(prompt),
        "max_tokens": room,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
        "stop_token_ids": sorted(table.ends),
        "logprobs": 0,  # of only the drawn token
        "return_token_ids": True,
        **bias,
        **PLAIN,
    }


def _choice_count(request: SamplingRequest) -> int:
    """Return the number of choices to request: greedy answers are equal, and vLLM gives one."""
    return request.task.group_size if request.sampling.temperature > 0 else 1


PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": False,
    "watermarking": False,
    "add_special_tokens": False,
    "skip_special_tokens": True,
}
"""Options that would change the distribution or the prompt, each turned off."""


def needs_processed(sampling: Sampling, table: TokenTable) -> bool:
    """Return whether logprobs before bias, temperature and top_p differ from those of the draw."""
    is_warm = sampling.temperature != 0 and (sampling.temperature != 1 or sampling.top_p < 1)
    return is_warm or bool(table.without_token)


def processed_needed(sampling: Sampling, table: TokenTable, url: str) -> str:
    """Return why a server that reports logprobs before bias, temperature and top_p cannot answer."""
    cause = f"temperature {sampling.temperature:g} and top_p {sampling.top_p:g} need"
    if table.without_token:
        cause = (
            f"{len(table.without_token)} of {table.rows} ids of model.base have no token and are not drawn, which needs"
        )
    return (
        f"{cause} logprobs of the distribution drawn from, and {url} reports those before; start it with "
        "--logprobs-mode processed_logprobs"
    )


def unanswerable(sampling: Sampling) -> str | None:
    """Return why no vLLM server can draw like this, or None."""
    if 0 < sampling.temperature < COLDEST:
        return (
            f"temperature {sampling.temperature:g} is one that vLLM raises to {COLDEST:g} in silence; ask for 0 "
            f"(greedy) or at least {COLDEST:g}"
        )
    return None


def completions(
    answer: Any, request: SamplingRequest, *, model: str, prompt: Sequence[int], room: int, prompts: Prompts
) -> list[Completion]:
    """Return every slot of `request` from a server's answer. Raises BadAnswer if the answer does not match it."""
    _check(isinstance(answer, dict) and isinstance(answer.get("choices"), list), "it holds no list of choices")
    _check(answer.get("model") == model, f"it was answered by model {answer.get('model')!r}, and {model!r} was asked")
    choices, count = answer["choices"], _choice_count(request)
    _check(len(choices) == count, f"it holds {len(choices)} choices, and {count} were asked for")
    slots = [
        _completion(choice, slot, request.sampling.stop, tuple(prompt), room, prompts)
        for slot, choice in enumerate(choices)
    ]
    return slots if count > 1 else [replace(slots[0], slot=slot) for slot in range(request.task.group_size)]


def _completion(
    choice: Any, slot: int, stop: Sequence[str], prompt: tuple[int, ...], room: int, prompts: Prompts
) -> Completion:
    """Return one slot. Raises BadAnswer."""
    _check(isinstance(choice, dict) and choice.get("index") == slot, f"choice {slot} is not there in its place")
    _check_prompt(choice, prompt)
    tokens = choice["token_ids"]
    _check(_are_ids(tokens) and 0 < len(tokens) <= room, f"choice {slot} holds no list of 1 to {room} token ids")
    unknown = prompts.token_table.first_unknown(tokens)
    _check(unknown is None, f"choice {slot} has id {unknown}, which the tokenizer does not have")
    logprobs = _logprobs(choice, len(tokens))
    _check(logprobs is not None, f"choice {slot} lacks the logprob of a token, or holds one that is none")
    assert logprobs is not None  # noqa: S101  # for the type checker: `_check` has raised
    end = next((index + 1 for index, token in enumerate(tokens) if token in prompts.token_table.ends), len(tokens))
    tokens, match = _cut(tokens[:end], stop, prompts)
    has_ended = match is not None or tokens[-1] in prompts.token_table.ends
    reason = choice.get("finish_reason")
    if not has_ended and (reason != "length" or len(tokens) < room):
        ending = f"finish_reason {reason!r} after {len(tokens)} of {room} tokens, the last of them {tokens[-1]}"
        return failed_slot(
            slot, f"the server gave {ending}, where model.base ends no turn; do both have the same files?"
        )
    return Completion(
        slot=slot,
        text=prompts.text(tokens) if match is None else match.text,
        finish_reason="stop" if has_ended else "length",
        prompt_token_ids=prompt,
        completion_token_ids=tuple(tokens),
        logprobs=logprobs[: len(tokens)],
    )


def _cut(tokens: list[int], stop: Sequence[str], prompts: Prompts) -> tuple[list[int], StopMatch | None]:
    """Return the tokens up to the one that completed a stop text, and that stop text."""
    match = prompts.first_stop(tokens, stop)
    while match is not None and len(tokens) > 1 and (earlier := prompts.first_stop(tokens[:-1], stop)) is not None:
        tokens, match = tokens[:-1], earlier
    return tokens, match


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in value)


def _logprobs(choice: dict[str, Any], count: int) -> tuple[float, ...] | None:
    """Return the logprobs of the drawn tokens as float32 values, None if any is missing or impossible."""
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list) or len(values) != count:
        return None
    if not all(type(value) in (int, float) and FLOORED < value <= SLACK for value in values):  # NaN is in no range
        return None
    return tuple(struct.unpack("f", struct.pack("f", min(0.0, value)))[0] for value in values)


class StreamChunk(NamedTuple):
    """A piece of a streamed answer."""

    drawn: list[Drawn]
    finish_reason: str | None


def stream_chunk(event: Any, *, model: str, prompt: Sequence[int], is_first: bool) -> StreamChunk:
    """Return the tokens in an event of a streamed answer. Raises BadAnswer, or ServerError for an error in it."""
    if isinstance(event, dict) and "error" in event:
        raise ServerError(f"the server failed in the middle of its answer: {str(event['error'])[:300]}")
    _check(isinstance(event, dict) and event.get("model") == model, f"it is no answer of model {model!r}")
    choices = event.get("choices")
    _check(isinstance(choices, list) and len(choices) == 1, "an event holds another number of choices than one")
    choice = choices[0]
    _check(isinstance(choice, dict) and choice.get("index") == 0, "the choice of an event is not the first")
    if is_first:
        _check_prompt(choice, prompt)
    tokens, reason = choice.get("token_ids") or [], choice.get("finish_reason")
    _check(_are_ids(tokens), "an event holds something else than token ids")
    logprobs = _logprobs(choice, len(tokens)) if tokens else ()
    _check(logprobs is not None, "an event lacks the logprob of a token, or holds one that is none")
    return StreamChunk(list(zip(tokens, logprobs or (), strict=True)), reason)


def _check_prompt(choice: dict[str, Any], prompt: Sequence[int]) -> None:
    _check("token_ids" in choice, "it holds no token ids; use a vLLM that knows return_token_ids")
    _check(choice.get("prompt_token_ids") == list(prompt), "its prompt_token_ids are not those that were sent")


def prompt_logprobs(answer: Any, *, model: str, prompt: Sequence[int]) -> list[float]:
    """Return the logprob of every prompt token except the first. Raises BadAnswer if one is missing."""
    _check(isinstance(answer, dict) and answer.get("model") == model, f"it is no answer of model {model!r}")
    try:
        choice = answer["choices"][0]
        _check(choice["prompt_token_ids"] == list(prompt), "its prompt_token_ids are not those that were sent")
        logprobs = choice["prompt_logprobs"]
        values = [float(logprobs[place][str(token)]["logprob"]) for place, token in enumerate(prompt) if place]
    except (LookupError, TypeError, ValueError, OverflowError) as exc:
        raise BadAnswer(f"it lacks the logprobs of the prompt: {exc!r}") from exc
    _check(all(map(math.isfinite, values)), "a logprob of the prompt is not finite; roll the adapter back")
    return values


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BadAnswer(otherwise)
