"""The messages of the Tinker API as protobuf: batches of examples on the way in, results on the way out.

    MESSAGES: name ──► its fields, by number ──► a pool of descriptors of its own ──► message(name), read(name, bytes)

The fields and their numbers are those of the SDK's tinker_public.proto; a test of others' suites compares them with the
SDK's own. They are declared here, since a server that had the SDK installed for them would load transformers with it.

Not covered: messages that no route here reads or writes (images, audio, sampling parameters).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from streams.errors import CallError

PACKAGE = "tinker_public"
ENUMS = {
    "StopReason": ("STOP_REASON_STOP", "STOP_REASON_LENGTH"),
    "DType": ("DTYPE_UNSPECIFIED", "DTYPE_FLOAT32", "DTYPE_INT64", "DTYPE_INT32", "DTYPE_BFLOAT16"),
}
MESSAGES: dict[str, tuple[str, ...]] = {
    "SampleResponse": (
        "1 repeated SampledSequence sequences",
        "2 optional bytes prompt_logprobs",
        "3 optional TopkLogprobs topk_prompt_logprobs",
        "4 int32 prompt_cache_hit_tokens",
        "5 optional Tensor target_prompt_logprobs",
        "6 optional PromptAltTokens prompt_alt_tokens",
    ),
    "PromptAltTokens": ("1 Tensor tokens", "2 Tensor logprobs"),
    "SampledSequence": (
        "1 StopReason stop_reason",
        "2 bytes tokens",
        "3 optional bytes logprobs",
        "4 optional TopkLogprobs topk_sampled_logprobs",
    ),
    "TopkLogprobs": ("1 bytes token_ids", "2 bytes logprobs", "3 uint32 k", "4 uint32 length"),
    "SparseCsr": ("1 bytes values", "2 bytes crow_indices", "3 bytes col_indices"),
    "Tensor": (
        "1 oneof:data bytes dense",
        "2 oneof:data SparseCsr sparse_csr",
        "3 DType dtype",
        "4 repeated int64 shape",
    ),
    "BatchedTensor": ("1 bytes data", "2 bytes offsets", "3 DType dtype", "4 repeated int64 trailing_shape"),
    "ArrayRecord": ("1 string type_tag", "2 map BatchedTensor fields", "3 int64 num_datums"),
    "ForwardBackwardOutput": (
        "1 string loss_fn_output_type",
        "2 repeated ArrayRecord loss_fn_outputs",
        "3 map double metrics",
    ),
    "ForwardBackwardRequest": (
        "1 string model_id",
        "2 int32 seq_id",
        "3 repeated Datum data",
        "4 string loss_fn",
        "5 map double loss_fn_config",
        "6 bool forward_only",
        "7 map LossConfigValue loss_fn_config_v2",
    ),
    "LossConfigValue": ("1 oneof:value double number", "2 oneof:value string text"),
    "Datum": (
        "1 repeated Chunk model_input",
        "2 map Tensor loss_fn_inputs",
        "3 repeated ProvenanceSpan model_input_spans",
        "4 repeated ProvenanceSpan loss_fn_input_spans",
    ),
    "ProvenanceSpan": (
        "1 oneof:span PromptProvenanceSpan prompt_tokens",
        "2 oneof:span SampledProvenanceSpan sampled_tokens",
    ),
    "PromptProvenanceSpan": ("1 string sequence_id", "2 int64 offset", "3 int64 length"),
    "SampledProvenanceSpan": ("1 string sequence_id", "2 int64 offset", "3 int64 length"),
    "Chunk": (
        "1 oneof:chunk EncodedTextChunk encoded_text",
        "2 oneof:chunk ImageChunk image",
        "3 oneof:chunk DmelChunk dmel",
    ),
    "EncodedTextChunk": ("1 bytes tokens",),
    "ImageChunk": ("1 bytes data",),
    "DmelChunk": ("1 bytes dmel",),
}
"""Of each field its number; `optional`, `repeated`, `map` (from strings) or its oneof; its type, its name."""

VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}
"""Types on the wire."""
MOST_FIELDS = 100_000
"""Of a message that is read, those of its parts among them."""
STOP, LENGTH = range(2)
FLOAT32, INT64, INT32, BFLOAT16 = range(1, 5)
_SCALARS = ("string", "bytes", "bool", "double", "int32", "int64", "uint32")


def message(name: str, **fields: Any) -> Any:
    """Return a new message. Raises CallError if protobuf is not installed."""
    return _classes()[name](**fields)


def read(name: str, raw: bytes) -> Any:
    """Return the message in these bytes. Raises CallError if they are none, or have too many fields."""
    found = message(name)
    from google.protobuf.message import DecodeError

    if _fields(found.DESCRIPTOR, memoryview(raw), MOST_FIELDS) > MOST_FIELDS:
        raise CallError("too_large", f"the body has more than {MOST_FIELDS:,} fields of protobuf; send less")
    try:
        found.ParseFromString(raw)
    except DecodeError as exc:
        raise CallError("invalid", f"the body is no {name} in protobuf: {exc}") from exc
    return found


def _fields(kind: Any, raw: memoryview, limit: int) -> int:
    """Return how many fields a message has, those of its messages among them; the count stops once it passes `limit`.

    Bytes that are no protobuf end it, too. A list of packed numbers counts as one for each byte.
    """
    count = offset = 0
    while offset < len(raw) and count <= limit:
        (tag, offset), count = _varint(raw, offset), count + 1
        field, wire = kind.fields_by_number.get(tag >> 3), tag & 7
        if wire == VARINT:
            _, offset = _varint(raw, offset)
        elif wire == LENGTH_DELIMITED:
            length, offset = _varint(raw, offset)
            if field is not None and field.message_type is not None:
                count += _fields(field.message_type, raw[offset : offset + length], limit - count)
            elif field is not None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                count += length
            offset += length
        elif wire in FIXED_BYTES:
            offset += FIXED_BYTES[wire]
        else:  # a group, which no message here has: the parser says so
            break
    return count


def _varint(raw: memoryview, offset: int) -> tuple[int, int]:
    """Return the number that begins at an offset, and the offset after it."""
    value = shift = 0
    while offset < len(raw) and shift < 70:
        byte = raw[offset]
        value, offset, shift = value | (byte & 0x7F) << shift, offset + 1, shift + 7
        if byte < 0x80:
            break
    return value, offset


@cache
def _classes() -> dict[str, Any]:
    """Return the class of each message."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as exc:
        raise CallError("unsupported", "protobuf is not installed here: install streamward[tinker]") from exc
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, lines in MESSAGES.items():
        declared = file.message_type.add(name=name)
        for line in lines:
            _declare(declared, line)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _declare(declared: Any, line: str) -> None:
    """Add a field to the descriptor of a message."""
    number, *modifier, kind, name = line.split()
    field = declared.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if modifier in (["repeated"], ["map"]) else field.LABEL_OPTIONAL
    if modifier == ["map"]:
        entry = declared.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _declare(entry, "1 string key")
        _declare(entry, f"2 {kind} value")
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{declared.name}.{entry.name}"
        return
    if modifier not in ([], ["repeated"]):
        oneof = f"_{name}" if modifier == ["optional"] else modifier[0].removeprefix("oneof:")
        field.proto3_optional = modifier == ["optional"]
        names = [each.name for each in declared.oneof_decl]
        if oneof not in names:
            declared.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)
    if kind in _SCALARS:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind in ENUMS else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
