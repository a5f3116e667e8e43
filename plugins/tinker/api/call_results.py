"""Results as clients read them: protobuf where they accept it, JSON otherwise.

    TrainingResult ──► ForwardBackwardOutput or SampleResponse ──► protobuf, or JSON with the same fields
                   └─► the other kinds: JSON, and a failure {error, category}

Arrays of one field whose trailing dimensions differ go in several records, as the SDK reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from starlette.responses import Response

from plugins.tinker.api import protobuf
from plugins.tinker.api.pass_calls import PROTOBUF, Array
from plugins.tinker.api.tensors import Tensors, by_example, read_tensors
from schemas import json_text
from schemas.events import TrainingResult
from streams.errors import CallError

PASSES = ("forward", "forward_backward")
OUTPUT_TYPE = "ArrayRecord"
NO_LOGPROB = -99999.0
"""Of a place in a table of the likeliest tokens that has none."""
_WIRE: dict[str, tuple[int, np.dtype[Any], str]] = {
    "f": (protobuf.FLOAT32, np.dtype("<f4"), "float32"),
    "i": (protobuf.INT64, np.dtype("<i8"), "int64"),
}
_STOPS = {"stop": protobuf.STOP, "length": protobuf.LENGTH}


def result_response(result: TrainingResult, *, accept: str) -> Response:
    """Return the response with a result; `accept`: the header of that name."""
    if result.error is not None:
        return json_of({"error": result.error, "category": result.category or "unknown"})
    extra = _extra(result)
    if result.kind not in (*PASSES, "sample"):
        metrics = {"metrics": dict(result.metrics)} if result.kind == "optim_step" else {}
        return json_of({**metrics, **extra, "type": result.kind})
    tensors = read_tensors(result.outputs.data)
    if PROTOBUF in accept:
        message = pass_message(result, extra, tensors) if result.kind in PASSES else sample_message(extra, tensors)
        return Response(message.SerializeToString(deterministic=True), media_type=PROTOBUF)
    if result.kind in PASSES:
        outputs = [{name: _json_tensor(array) for name, array in each.items()} for each in by_example(tensors)]
        kind = extra.get("loss_fn_output_type", OUTPUT_TYPE)
        return json_of({"loss_fn_output_type": kind, "loss_fn_outputs": outputs, "metrics": dict(result.metrics)})
    return json_of(_json_sample(extra, tensors))


def _extra(result: TrainingResult) -> dict[str, Any]:
    """Return what of an answer no field of its result has. Raises CallError if the worker wrote no object."""
    try:
        extra = json_text.parse(result.response)
    except ValueError as exc:
        raise CallError("internal", f"the result of {result.call_id} has a response that is no JSON: {exc}") from exc
    return dict(extra)


def json_of(fields: Mapping[str, Any], status: int = 200) -> Response:
    """Return a response with an object of JSON."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text, status, media_type="application/json")


# --- forward and backward ---------------------------------------------------------------------------------------------


def pass_message(result: TrainingResult, extra: Mapping[str, Any], tensors: Tensors) -> Any:
    """Return what a forward pass gave, as protobuf."""
    message = protobuf.message(
        "ForwardBackwardOutput",
        loss_fn_output_type=extra.get("loss_fn_output_type", OUTPUT_TYPE),
        metrics=dict(result.metrics),
    )
    for kind, examples in groupby(by_example(tensors), key=_kind):
        arrays = list(examples)
        record = message.loss_fn_outputs.add(type_tag=OUTPUT_TYPE, num_datums=len(arrays))
        for name, trailing, code in kind:
            _write_batched(record.fields[name], [each[name] for each in arrays], trailing, code)
    return message


def _kind(example: Tensors) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Return what the arrays of examples in one record have in common."""
    return tuple((name, array.shape[1:], array.dtype.kind) for name, array in sorted(example.items()))


def _write_batched(field: Any, arrays: list[Array], trailing: tuple[int, ...], code: str) -> None:
    field.dtype, dtype, _ = _WIRE[code]
    parts = [np.ascontiguousarray(array, dtype).tobytes() for array in arrays]
    field.data = b"".join(parts)
    field.offsets = np.cumsum([0, *map(len, parts)], dtype="<i8").tobytes()
    field.trailing_shape.extend(trailing)


# --- samples ----------------------------------------------------------------------------------------------------------


def sample_message(extra: Mapping[str, Any], tensors: Tensors) -> Any:
    """Return what was sampled, as protobuf."""
    message = protobuf.message("SampleResponse", prompt_cache_hit_tokens=extra.get("prompt_cache_hit_tokens", 0))
    for sample, reason in zip(by_example(tensors), extra["stop_reasons"], strict=True):
        sequence = message.sequences.add(stop_reason=_STOPS[reason])
        sequence.tokens = sample["tokens"].astype("<i4").tobytes()
        sequence.logprobs = sample["logprobs"].astype("<f4").tobytes()
        if "topk_tokens" in sample:
            _write_topk(sequence.topk_sampled_logprobs, sample["topk_tokens"], sample["topk_logprobs"])
    if "prompt_logprobs" in tensors:
        message.prompt_logprobs = tensors["prompt_logprobs"].astype("<f4").tobytes()
    if "prompt_topk_tokens" in tensors:
        _write_topk(message.topk_prompt_logprobs, tensors["prompt_topk_tokens"], tensors["prompt_topk_logprobs"])
    return message


def _write_topk(field: Any, tokens: Array, logprobs: Array) -> None:
    tokens, logprobs = _mask_empty(tokens, logprobs)
    field.token_ids = tokens.astype("<i4").tobytes()
    field.logprobs = logprobs.astype("<f4").tobytes()
    field.length, field.k = tokens.shape


def _mask_empty(tokens: Array, logprobs: Array) -> tuple[Array, Array]:
    """Return tokens and logprobs as the SDK reads them where the log has NaN: a place that nothing was computed for."""
    is_empty = np.isnan(logprobs)
    return np.where(is_empty, 0, tokens), np.where(is_empty, np.float32(NO_LOGPROB), logprobs)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_sample(extra: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            _json_sequence(sample, reason)
            for sample, reason in zip(by_example(tensors), extra["stop_reasons"], strict=True)
        ],
        "prompt_cache_hit_tokens": extra.get("prompt_cache_hit_tokens", 0),
    }
    if "prompt_logprobs" in tensors:
        answer["prompt_logprobs"] = [*_finite(tensors["prompt_logprobs"])]
    if "prompt_topk_tokens" in tensors:
        answer["topk_prompt_logprobs"] = _json_topk(tensors["prompt_topk_tokens"], tensors["prompt_topk_logprobs"])
    return answer


def _json_sequence(sample: Tensors, reason: str) -> dict[str, Any]:
    sequence: dict[str, Any] = {
        "stop_reason": reason,
        "tokens": sample["tokens"].tolist(),
        "logprobs": sample["logprobs"].tolist(),
    }
    if "topk_tokens" in sample:
        sequence["topk_logprobs"] = _json_topk(sample["topk_tokens"], sample["topk_logprobs"])
    return sequence


def _json_topk(tokens: Array, logprobs: Array) -> list[list[list[float]] | None]:
    """Return the likeliest tokens of each place, with their logprobs; None where there are none."""
    rows = zip(*(array.tolist() for array in _mask_empty(tokens, logprobs)), strict=True)
    pairs = ([[i, p] for i, p in zip(*row, strict=True) if p != NO_LOGPROB] for row in rows)
    return [row or None for row in pairs]


def _json_tensor(array: Array) -> dict[str, Any]:
    values = array.ravel().tolist() if array.dtype.kind == "i" else [*_finite(array.ravel())]
    return {"data": values, "dtype": _WIRE[array.dtype.kind][2], "shape": list(array.shape)}


def _finite(values: Iterable[float]) -> Iterator[float | None]:
    """Yield numbers; None for those that JSON has not."""
    return (float(value) if math.isfinite(value) else None for value in values)
