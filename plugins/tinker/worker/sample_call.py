"""A sample call as a prompt to answer, and the answers as its outcome.

    request, data ──► draw_of ──► PromptDraw ──► CallSampler ──► outcome_of ──► N.tokens, N.logprobs, …

The seed of a call that names none is made of numbers that a repeated run has, too: its sampling session's in its
session, and its own there. So a program that is run again, or killed and continued, draws the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plugins.tinker.calls.call_names import number_of
from plugins.tinker.calls.call_state import request_of
from plugins.tinker.sampling.prompt_sampler import DrawnPrompt
from plugins.tinker.worker.apply_call import CallOutcome
from plugins.tinker.worker.call_tensors import Arrays
from schemas.events import TrainingCall
from streams.engines.local.prompt_scores import DrawnSequence, PromptDraw
from streams.errors import CallError

MOST_SAMPLES = 1024


def draw_of(call: TrainingCall, tensors: Arrays) -> PromptDraw:
    """Return what a call asks for. Raises CallError with what cannot be."""
    request = request_of(call)
    sampling = request.get("sampling_params") or {}
    prompt = tensors.get("prompt")
    if prompt is None:
        raise CallError("invalid", "there is no prompt", "prompt")
    top_k = _number(sampling, "top_k", -1)
    stop_tokens, stop_texts = _stops(sampling.get("stop"))
    most = sampling.get("max_tokens")
    return PromptDraw(
        prompt=tuple(prompt.tolist()),
        key=seed_of(call, sampling),
        samples=_within(_number(request, "num_samples", 1), 1, MOST_SAMPLES, "num_samples"),
        max_tokens=None if most is None else _within(int(most), 1, None, "sampling_params.max_tokens"),
        temperature=_real(sampling, "temperature", 1.0, least=0.0),
        top_p=_real(sampling, "top_p", 1.0, least=0.0, most=1.0) or 1.0,
        top_k=top_k if top_k > 0 else None,
        stop_tokens=stop_tokens,
        stop_texts=stop_texts,
        scores_prompt=bool(request.get("prompt_logprobs")),
        top_prompt=_within(_number(request, "topk_prompt_logprobs", 0), 0, 100, "topk_prompt_logprobs"),
        top_sampled=_within(_number(request, "topk_sample_logprobs", 0), 0, 100, "topk_sample_logprobs"),
        prompt_draws=_within(_number(request, "prompt_alt_tokens_k", 0), 0, 100, "prompt_alt_tokens_k"),
        targets=tensors.get("target_prompt_logprobs"),
    )


def seed_of(call: TrainingCall, sampling: Mapping[str, Any]) -> str:
    """Return what a call's random numbers are made of."""
    if (seed := sampling.get("seed")) is not None:
        return f"seed {int(seed)}"
    return f"sampler {number_of(call.sampling_session or '0')} prompt {call.seq_id}"


def outcome_of(call: TrainingCall, request: PromptDraw, drawn: DrawnPrompt) -> CallOutcome:
    """Return the outcome of a call."""
    outputs: Arrays = {}
    for number, sequence in enumerate(drawn.sequences):
        outputs |= {f"{number}.{name}": array for name, array in _arrays(sequence, request.top_sampled).items()}
    last = request_of(call).get("prompt_logprobs_last_n")
    for name, array in drawn.prompt.items():
        if last is not None and name in ("prompt_logprobs", "prompt_topk_logprobs"):
            array = array.copy()
            array[: len(request.prompt) - int(last)] = np.nan
        outputs[name] = array
    return CallOutcome(
        response={"stop_reasons": [sequence.reason for sequence in drawn.sequences], "prompt_cache_hit_tokens": 0},
        outputs=outputs,
        prompt_tokens=len(request.prompt),
        completion_tokens=sum(len(sequence.tokens) for sequence in drawn.sequences),
    )


def _arrays(sequence: DrawnSequence, top: int) -> Arrays:
    arrays: Arrays = {
        "tokens": np.array(sequence.tokens, np.int32),
        "logprobs": np.array(sequence.logprobs, np.float32),
    }
    if top:
        arrays["topk_tokens"] = np.array([tokens for tokens, _ in sequence.top], np.int32).reshape(-1, top)
        arrays["topk_logprobs"] = np.array([values for _, values in sequence.top], np.float32).reshape(-1, top)
    return arrays


def _stops(stop: Any) -> tuple[frozenset[int] | None, tuple[str, ...]]:
    """Return the tokens that end an answer (None: the model's own), and the texts."""
    if stop is None:
        return None, ()
    stops = [stop] if isinstance(stop, str) else list(stop)
    texts = tuple(each for each in stops if isinstance(each, str) and each)
    return frozenset(int(each) for each in stops if not isinstance(each, str)), texts


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return default if value is None else int(value)


def _real(fields: Mapping[str, Any], name: str, default: float, *, least: float, most: float = float("inf")) -> float:
    value = fields.get(name)
    number = default if value is None else float(value)
    if not least <= number <= most:
        raise CallError("invalid", f"{name} is {number:g}, expected {least:g} to {most:g}", f"sampling_params.{name}")
    return number


def _within(number: int, least: int, most: int | None, name: str) -> int:
    if number < least or (most is not None and number > most):
        bound = "more" if most is None else f"at most {most}"
        raise CallError("invalid", f"{name} is {number}, expected {least} or more, {bound}", name)
    return number
