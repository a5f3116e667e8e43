"""Examples of a forward or forward-backward call, from protobuf or JSON, as arrays.

    bytes (http/intake.py) ──► protobuf or JSON ──► PassCall: model, seq_id, loss, examples ──► tensors

Sparse inputs become dense, so that a call in the log says every value; together they have at most MOST_DENSE_BYTES.
What the caller says of where tokens came from (provenance) is kept with the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from gateway.http.body import read
from gateway.http.intake import content_type
from plugins.tinker.api import protobuf
from plugins.tinker.api.bodies import (
    MOST_EXAMPLES,
    ForwardBackwardBody,
    ForwardBody,
    ModelInputBody,
    PassInput,
    TensorBody,
)
from plugins.tinker.api.tensors import Tensors
from plugins.tinker.calls.call_forms import ExampleShape, TensorShape, check_chunk
from streams.errors import CallError

PROTOBUF = "application/x-protobuf"
PASS: Mapping[str, Any] = {"takes": {PROTOBUF: {}}, "max_bytes": None, "max_values": 50_000, "max_numbers": 1_000_000}
"""What the route of a pass declares; one with more numbers is sent as protobuf."""
EXAMPLE: Mapping[str, Any] = {
    "data": [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": [9707, 1879]}]},
            "loss_fn_inputs": {"target_tokens": {"data": [1879, 13], "dtype": "int64"}},
        }
    ],
    "loss_fn": "cross_entropy",
}
"""Of the input of a pass."""
MOST_DENSE_BYTES = 64 * 1024 * 1024
"""Of all sparse tensors of a call, once they are dense."""
TOKEN: np.dtype[Any] = np.dtype("<i4")
VALUES: dict[str, np.dtype[Any]] = {"int64": np.dtype("<i8"), "float32": np.dtype("<f4")}
_PROTOBUF_VALUES: dict[int, np.dtype[Any]] = {
    protobuf.FLOAT32: np.dtype("<f4"),
    protobuf.INT64: np.dtype("<i8"),
    protobuf.INT32: np.dtype("<i4"),
}
PLACE_BYTES = 8
"""Of an index of a sparse tensor in protobuf."""

Array = NDArray[Any]
ProvenanceRun = tuple[str, str, int, int]
"""prompt or sampled, the id of a sequence, where in it the run begins, how many tokens it has."""


@dataclass(frozen=True)
class CallExample:
    """One example."""

    tokens: Array  # [T] int32
    inputs: Mapping[str, Array]
    """What the loss is given, by its name."""
    provenance: Mapping[str, Sequence[ProvenanceRun]] | None = None


@dataclass(frozen=True, kw_only=True)
class PassCall:
    """A call for a forward pass, and a backward one unless it is `forward_only`."""

    model_id: str
    seq_id: int
    loss: str
    config: Mapping[str, float | str]
    forward_only: bool
    examples: Sequence[CallExample]

    @property
    def tensors(self) -> Tensors:
        """Every array, by the number of its example and its name."""
        arrays = {f"{number}.tokens": example.tokens for number, example in enumerate(self.examples)}
        for number, example in enumerate(self.examples):
            arrays |= {f"{number}.{name}": array for name, array in example.inputs.items()}
        return arrays

    @property
    def shapes(self) -> list[ExampleShape]:
        """What of each example can be judged without its numbers."""
        return [
            ExampleShape(
                len(example.tokens),
                {name: TensorShape(str(array.dtype), array.shape) for name, array in example.inputs.items()},
                bool(example.provenance),
            )
            for example in self.examples
        ]

    @property
    def tokens(self) -> int:
        """How many tokens the examples have."""
        return sum(len(example.tokens) for example in self.examples)


class RefusedPass(CallError):
    """A call that is refused, and its number."""

    def __init__(self, error: CallError, model_id: str, seq_id: int) -> None:
        super().__init__(error.kind, error.message, error.parameter)
        self.model_id, self.seq_id = model_id, seq_id


def read_pass(request: Request, raw: bytes, *, forward_only: bool) -> PassCall:
    """Return the call in a body. Raises CallError that names what is wrong."""
    of_type = _of_protobuf if content_type(request.headers) == PROTOBUF else _of_json
    call = of_type(raw, forward_only)
    for number, example in enumerate(call.examples):
        if "tokens" in example.inputs:
            path = f"data[{number}].loss_fn_inputs.tokens"
            raise CallError("invalid", f"{path}: that is the input itself; leave it out", path)
    return call


# --- protobuf ---------------------------------------------------------------------------------------------------------


def _of_protobuf(raw: bytes, forward_only: bool) -> PassCall:
    message = protobuf.read("ForwardBackwardRequest", raw)
    if len(message.data) > MOST_EXAMPLES:
        raise CallError("too_large", f"data: {len(message.data)} examples, expected at most {MOST_EXAMPLES}", "data")
    _check_dense([each.shape for datum in message.data for each in datum.loss_fn_inputs.values() if _is_sparse(each)])
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.WhichOneof("value") == "text" else value.number
    try:
        examples = [_protobuf_example(datum, f"data[{number}]") for number, datum in enumerate(message.data)]
    except CallError as exc:
        raise RefusedPass(exc, message.model_id, message.seq_id) from exc
    return PassCall(
        model_id=message.model_id,
        seq_id=message.seq_id,
        loss=message.loss_fn,
        config=config,
        forward_only=forward_only or message.forward_only,
        examples=examples,
    )


def _protobuf_example(datum: Any, path: str) -> CallExample:
    pieces = []
    for chunk in datum.model_input:
        check_chunk(chunk.WhichOneof("chunk") or "", f"{path}.model_input")
        pieces.append(_array(chunk.encoded_text.tokens, TOKEN, f"{path}.model_input"))
    tokens = np.concatenate(pieces) if pieces else np.empty(0, TOKEN)
    inputs = {
        name: _protobuf_tensor(tensor, f"{path}.loss_fn_inputs.{name}")
        for name, tensor in sorted(datum.loss_fn_inputs.items())
    }
    spans = {"model_input": datum.model_input_spans, "loss_fn_inputs": datum.loss_fn_input_spans}
    provenance = {name: [_run(span) for span in runs] for name, runs in spans.items() if runs}
    return CallExample(tokens, inputs, provenance or None)


def _run(span: Any) -> ProvenanceRun:
    kind = span.WhichOneof("span")
    run = span.prompt_tokens if kind == "prompt_tokens" else span.sampled_tokens
    return (kind or "sampled_tokens").removesuffix("_tokens"), run.sequence_id, run.offset, run.length


def _is_sparse(tensor: Any) -> bool:
    return bool(tensor.WhichOneof("data") == "sparse_csr")


def _protobuf_tensor(tensor: Any, path: str) -> Array:
    dtype = _PROTOBUF_VALUES.get(tensor.dtype)
    if dtype is None:
        raise CallError("unsupported", f"{path}: expected float32, int64 or int32, got type {tensor.dtype}", path)
    wide = VALUES["float32" if dtype.kind == "f" else "int64"]
    shape = list(tensor.shape) or None
    if not _is_sparse(tensor):
        return _reshape(_array(tensor.dense, dtype, path).astype(wide, copy=False), shape, path)
    index = np.dtype("<i8")
    values = _array(tensor.sparse_csr.values, dtype, path).astype(wide, copy=False)
    rows = _array(tensor.sparse_csr.crow_indices, index, path)
    columns = _array(tensor.sparse_csr.col_indices, index, path)
    return dense(values, rows, columns, shape, path)


def _array(raw: bytes, dtype: np.dtype[Any], path: str) -> Array:
    if len(raw) % dtype.itemsize:
        raise CallError("invalid", f"{path}: {len(raw)} bytes are no whole number of values of {dtype.itemsize}", path)
    return np.frombuffer(raw, dtype)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _of_json(raw: bytes, forward_only: bool) -> PassCall:
    body: ForwardBody | ForwardBackwardBody
    if forward_only:
        body = read(ForwardBody, raw)
        given: PassInput = body.forward_input
    else:
        body = read(ForwardBackwardBody, raw)
        given = body.forward_backward_input
    tensors = [tensor for datum in given.data for tensor in datum.loss_fn_inputs.values()]
    _check_dense([each.shape or () for each in tensors if _is_sparse_json(each)])
    examples = []
    for number, datum in enumerate(given.data):
        path = f"data[{number}].loss_fn_inputs"
        inputs = {name: json_tensor(tensor, f"{path}.{name}") for name, tensor in sorted(datum.loss_fn_inputs.items())}
        examples.append(CallExample(input_tokens(datum.model_input, f"data[{number}].model_input"), inputs))
    return PassCall(
        model_id=body.model_id,
        seq_id=body.seq_id,
        loss=given.loss_fn,
        config=given.loss_fn_config or {},
        forward_only=forward_only,
        examples=examples,
    )


def input_tokens(given: ModelInputBody, path: str) -> Array:
    """Return the tokens of an input. Raises CallError for pieces of another kind."""
    for number, chunk in enumerate(given.chunks):
        check_chunk(chunk.type, f"{path}.chunks[{number}]")
    return np.array([token for chunk in given.chunks for token in chunk.tokens], TOKEN)


def _is_sparse_json(tensor: TensorBody) -> bool:
    return tensor.sparse_crow_indices is not None or tensor.sparse_col_indices is not None


def json_tensor(tensor: TensorBody, path: str, filler: int = 0) -> Array:
    """Return a tensor; `filler` is where a sparse one has no value. Raises CallError."""
    values = np.array(tensor.data, VALUES[tensor.dtype])
    if not _is_sparse_json(tensor):
        return _reshape(values, tensor.shape, path)
    rows = np.array(tensor.sparse_crow_indices or [], "<i8")
    columns = np.array(tensor.sparse_col_indices or [], "<i8")
    return dense(values, rows, columns, tensor.shape, path, filler)


def _reshape(values: Array, shape: Sequence[int] | None, path: str) -> Array:
    if shape is None:
        return values
    if math.prod(shape) != values.size or min(shape, default=0) < 0:
        problem = f"{path}: shape {shape} has {math.prod(shape)} values, and {values.size} were sent"
        raise CallError("invalid", problem, path)
    return values.reshape(shape)


def _check_dense(shapes: Iterable[Sequence[int]]) -> None:
    """Raise CallError if sparse tensors of these shapes are too large together."""
    if (size := sum(math.prod(map(abs, shape)) * VALUES["int64"].itemsize for shape in shapes)) > MOST_DENSE_BYTES:
        problem = f"the sparse tensors have {size:,} bytes once they are dense, expected at most {MOST_DENSE_BYTES:,}"
        raise CallError("too_large", f"{problem}; send fewer examples at once")


def dense(values: Array, rows: Array, columns: Array, shape: Sequence[int] | None, path: str, filler: int = 0) -> Array:
    """Return the dense form of a sparse matrix (CSR). Raises CallError if the indices are none of its shape."""
    if shape is None or len(shape) != 2:
        raise CallError("invalid", f"{path}: a sparse tensor needs a shape of two numbers, got {shape}", path)
    height, width = shape
    counts = np.diff(rows)
    if (
        min(shape) < 0
        or len(rows) != height + 1
        or rows[0] != 0
        or rows[-1] != len(values)
        or len(columns) != len(values)
        or (counts < 0).any()
        or ((columns < 0) | (columns >= width)).any()
    ):
        problem = f"{path}: {len(rows)} row pointers and {len(columns)} columns are none of a matrix of shape {shape}"
        raise CallError("invalid", problem, path)
    matrix = np.full((height, width), filler, values.dtype)
    matrix[np.repeat(np.arange(height), counts), columns] = values
    return matrix
