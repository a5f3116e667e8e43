"""Values of TransferQueue's fields as bytes, and back.

    tensor ──► its items, little-endian, with dtype and shape          numpy and SQL can read them, too
    what JSON gives back unchanged ──► json
    tuples, arrays, scalars of numpy, tensors inside of others ──► msgpack
    any other object ──► TypeError

Not covered: pickles. Reading one runs what its writer put there, so an object of a class of the user's own is refused
when it is put.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import torch
from tensordict.tensorclass import NonTensorData

from plugins.verl.sample_queue import FieldValue
from schemas import json_text
from streams.errors import UndecodableEvent

TUPLE, ARRAY, OBJECTS, SCALAR, TENSOR = range(1, 6)
"""Types of msgpack's extensions."""


def encode(value: Any) -> FieldValue:
    """Return a value as bytes. Raises TypeError for an object that has no form here."""
    if isinstance(value, NonTensorData):
        value = value.data
    if isinstance(value, torch.Tensor):
        return FieldValue("tensor", _bytes(value), _dtype(value), tuple(value.shape))
    if _is_json(value):
        return FieldValue("json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    try:
        return FieldValue("msgpack", msgspec.msgpack.encode(_pack(value)))
    except (TypeError, OverflowError, RecursionError) as exc:
        raise TypeError(
            f"a value of type {type(value).__name__} cannot be put into the queue: {exc}; expected tensors, arrays, "
            "numbers, texts, bytes, and lists, tuples and dicts of them"
        ) from exc


def decode(field: FieldValue) -> Any:
    """Return the value. Raises UndecodableEvent if the bytes are not what their encoding says."""
    try:
        if field.encoding == "tensor":
            return _tensor(field.data, field.dtype or "", field.shape)
        if field.encoding == "json":
            return json_text.parse(field.data)
        return msgspec.msgpack.decode(field.data, ext_hook=_unpack, strict=False)
    except (ValueError, RuntimeError, AttributeError, TypeError, RecursionError) as exc:  # msgspec's are ValueErrors
        raise UndecodableEvent(f"a field with the encoding {field.encoding} cannot be read: {exc}") from exc


def _bytes(value: torch.Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _tensor(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def _is_json(value: Any) -> bool:
    """Return whether JSON gives back the same value."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return kind in (str, int, bool, type(None))


def _pack(value: Any) -> Any:
    """Return a value as msgpack has it; raises TypeError if it cannot."""
    kind = type(value)
    if kind in (str, int, float, bool, bytes, type(None)):
        return value
    if kind is list:
        return [_pack(item) for item in value]
    if kind is tuple:
        return _extension(TUPLE, [_pack(item) for item in value])
    if kind is dict:
        return {_pack(key): _pack(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return _extension(OBJECTS, [list(value.shape), [_pack(item) for item in value.reshape(-1).tolist()]])
    if isinstance(value, np.ndarray):
        return _extension(ARRAY, [value.dtype.str, list(value.shape), value.tobytes()])
    if isinstance(value, np.generic):
        return _extension(SCALAR, [value.dtype.str, value.tobytes()])
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return _extension(TENSOR, [_dtype(value), list(value.shape), _bytes(value)])
    raise TypeError(f"{kind.__name__} has no form here")


def _extension(code: int, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))


def _unpack(code: int, data: memoryview) -> Any:
    content = msgspec.msgpack.decode(data, ext_hook=_unpack, strict=False)
    match code, content:
        case 1, items:
            return tuple(items)
        case 2, [dtype, shape, raw]:
            return np.frombuffer(bytearray(raw), dtype).reshape(shape)
        case 3, [shape, items]:
            objects = np.empty(len(items), dtype=object)
            objects[:] = items
            return objects.reshape(shape)
        case 4, [dtype, raw]:
            return np.frombuffer(raw, dtype)[0]
        case 5, [dtype, shape, raw]:
            return _tensor(raw, dtype, tuple(shape))
    raise ValueError(f"msgpack extension {code} is none of ours")
