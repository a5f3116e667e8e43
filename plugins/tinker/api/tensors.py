"""Tensors of a call or a result as bytes, in safetensors' format, with numpy alone.

    {"0.tokens": array, …} ──► length of the header │ header in JSON │ the arrays, in the order of their names

The worker reads and writes this format with safetensors, which belongs to the images with a model: the server of one
without has numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import json_text

Tensors = dict[str, NDArray[Any]]
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
"""The types that calls and results have, by safetensors' names."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_BYTES = 8
"""The length of the header is a number of so many bytes, which are a multiple of so many, too."""


class TensorError(ValueError):
    """These bytes are not what was written, or an array is of no type that is written."""


def tensor_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return tensors as bytes, the same for the same tensors. Raises TensorError for another type than in DTYPES."""
    header: dict[str, Any] = {}
    parts, offset = [], 0
    for name, array in sorted(tensors.items()):
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise TensorError(f"{name} is of type {array.dtype}, expected one of {', '.join(map(str, _NAMES))}")
        part = np.ascontiguousarray(array, dtype).tobytes()
        offsets = [offset, offset + len(part)]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(array.shape), "data_offsets": offsets}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_BYTES)
    return b"".join((len(text).to_bytes(HEADER_BYTES, "little"), text, *parts))


def read_tensors(raw: bytes | None) -> Tensors:
    """Return the tensors in bytes; none in None. Raises TensorError."""
    if raw is None:
        return {}
    begin = HEADER_BYTES + int.from_bytes(raw[:HEADER_BYTES], "little")
    try:
        header = json_text.parse(raw[HEADER_BYTES:begin])
        return {name: _read(raw, begin, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise TensorError(f"these {len(raw)} bytes are no tensors: {exc}") from exc


def _read(raw: bytes, begin: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape, (start, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not 0 <= start <= end <= len(raw) - begin:
        raise TensorError(f"bytes {start} to {end} of {len(raw) - begin}")
    return np.frombuffer(raw[begin + start : begin + end], dtype).reshape(shape)


def by_example(tensors: Mapping[str, NDArray[Any]]) -> list[Tensors]:
    """Return the tensors of each example: `3.weights` is the fourth's `weights`; others are left out."""
    examples: dict[int, Tensors] = {}
    for name, array in tensors.items():
        number, _, field = name.partition(".")
        if number.isdecimal() and field:
            examples.setdefault(int(number), {})[field] = array
    return [examples.get(number, {}) for number in range(max(examples, default=-1) + 1)]
