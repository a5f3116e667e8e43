"""Records with a header whose name is not UTF-8, read and written by librdkafka itself.

    messages whose `headers()` fails ──► read_headers ──► names as str, each odd byte as a lone surrogate (PEP 383)
    a record with such names ──► write ──► its coordinates, once it is acknowledged

Kafka takes any bytes for the name of a header, and its Python client only text: it fails on one, and if asked again
returns a tuple with a NULL inside, which ends the process. So the few records concerned are read a second time, through
the library that the client itself is linked to. `rdkafka.h` documents what is called here as its stable interface.

Not covered: a name with a NUL byte, of which librdkafka returns only what is before it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import methodcaller
from typing import Any, NamedTuple

import confluent_kafka as ck
from confluent_kafka import cimpl

from schemas.events import Coordinates

Headers = tuple[tuple[str, bytes | None], ...]

_ASK = methodcaller("headers")
"""A client that fails returns a value and leaves its exception behind. Once Python has specialised the call, a plain
`message.headers()` takes that value; this one always looks for the exception, and raises it as a SystemError."""
POLL_MS = 100
_PRODUCER, _CONSUMER = 0, 1
_TOPIC, _VALUE, _KEY, _PARTITION, _TIMESTAMP, _HEADERS, _FLAGS = 1, 4, 5, 3, 8, 10, 7  # rd_kafka_vtype_t
_COPY = 2  # RD_KAFKA_MSG_F_COPY


class _MessageStruct(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", ctypes.c_int), ("rkt", ctypes.c_void_p), ("partition", ctypes.c_int32), ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t), ("key", ctypes.c_void_p), ("key_len", ctypes.c_size_t), ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    ]  # fmt: skip


class _Bytes(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Value(ctypes.Union):
    _fields_ = [
        ("text", ctypes.c_char_p), ("flags", ctypes.c_int), ("number", ctypes.c_int32), ("time", ctypes.c_int64),
        ("bytes", _Bytes), ("headers", ctypes.c_void_p), ("pad", ctypes.c_char * 64),
    ]  # fmt: skip


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = [("kind", ctypes.c_int), ("value", _Value)]


_Delivered = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_MessageStruct), ctypes.c_void_p)
_POINTER, _INT, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (_POINTER, ()),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_set_dr_msg_cb": (None, (_POINTER, _Delivered)),
    "conf_destroy": (None, (_POINTER,)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "destroy": (None, (_POINTER,)),
    "poll_set_consumer": (_INT, (_POINTER,)),
    "topic_partition_list_new": (_POINTER, (_INT,)),
    "topic_partition_list_add": (_POINTER, (_POINTER, _TEXT, ctypes.c_int32)),
    "topic_partition_list_set_offset": (_INT, (_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64)),
    "topic_partition_list_destroy": (None, (_POINTER,)),
    "assign": (_INT, (_POINTER, _POINTER)),
    "consumer_poll": (ctypes.POINTER(_MessageStruct), (_POINTER, _INT)),
    "consumer_close": (_INT, (_POINTER,)),
    "message_headers": (_INT, (ctypes.POINTER(_MessageStruct), ctypes.POINTER(_POINTER))),
    "message_destroy": (None, (ctypes.POINTER(_MessageStruct),)),
    "header_get_all": (
        _INT, (_POINTER, _SIZE, ctypes.POINTER(_TEXT), ctypes.POINTER(_POINTER), ctypes.POINTER(_SIZE)),
    ),
    "headers_new": (_POINTER, (_SIZE,)),
    "header_add": (_INT, (_POINTER, _TEXT, ctypes.c_ssize_t, _POINTER, ctypes.c_ssize_t)),
    "headers_destroy": (None, (_POINTER,)),
    "produceva": (_POINTER, (_POINTER, ctypes.POINTER(_Argument), _SIZE)),
    "error_code": (_INT, (_POINTER,)),
    "error_destroy": (None, (_POINTER,)),
    "poll": (_INT, (_POINTER, _INT)),
}  # fmt: skip


@cache
def _library() -> Mapping[str, Any]:
    """Return the functions of librdkafka, without their prefix, from the library that confluent_kafka is linked to."""
    linked, found = ctypes.CDLL(cimpl.__file__), {}
    for name, (result, arguments) in _SIGNATURES.items():
        found[name] = getattr(linked, f"rd_kafka_{name}")
        found[name].restype, found[name].argtypes = result, arguments
    return found


# --- headers, by whoever reads them -----------------------------------------------------------------------------------


def is_odd(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Return whether a name is not text, so that only `write` can write it."""
    return any("\udc80" <= letter <= "\udcff" for name, _ in headers for letter in name)


def readable(name: str) -> str:
    r"""Return a name as text, an odd byte as an escape: `\xff`."""
    return _name(name).decode(errors="backslashreplace")


def headers_of(
    messages: Sequence[ck.Message], read: Callable[[Sequence[Coordinates]], Mapping[Coordinates, Headers]]
) -> list[Headers]:
    """Return the headers of each message; `read` is called for those that the Python client cannot represent."""
    found: list[Headers] = []
    odd: dict[int, Coordinates] = {}
    for index, message in enumerate(messages):  # each is asked once: see above
        try:
            found.append(tuple(_ASK(message) or ()))
        except SystemError:
            odd[index] = Coordinates(message.topic(), message.partition(), message.offset())
            found.append(())
    if odd:
        known = read(list(odd.values()))
        for index, at in odd.items():
            found[index] = known.get(at, ())
    return found


def read_headers(
    config: Mapping[str, Any], wanted: Sequence[Coordinates], *, timeout_s: float
) -> dict[Coordinates, Headers]:
    """Return the headers of these records; one that retention has deleted meanwhile is left out.

    Raises KafkaException (_TIMED_OUT) if they do not come in time.
    """
    call, left = _library(), set(wanted)
    first: dict[tuple[str, int], int] = {}
    for at in wanted:
        first[at.topic, at.partition] = min(at.offset, first.get((at.topic, at.partition), at.offset))
    found: dict[Coordinates, Headers] = {}
    deadline = time.monotonic() + timeout_s
    with _client(_CONSUMER, config) as client:
        call["poll_set_consumer"](client)
        for (topic, partition), offset in first.items():  # one after the other: what comes names only its partition
            _assign(client, topic, partition, offset)
            while mine := {at for at in left if (at.topic, at.partition) == (topic, partition)}:
                if time.monotonic() > deadline:
                    raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
                message = call["consumer_poll"](client, POLL_MS)
                if not message:
                    continue
                if message.contents.err == 0:
                    at = Coordinates(topic, partition, message.contents.offset)
                    if at in mine:
                        found[at] = _headers(message)
                    left -= {other for other in mine if other.offset <= at.offset}
                elif message.contents.err == ck.KafkaError._AUTO_OFFSET_RESET:
                    left -= mine
                call["message_destroy"](message)
        call["consumer_close"](client)
    return found


def _assign(client: int, topic: str, partition: int, offset: int) -> None:
    call = _library()
    assigned = call["topic_partition_list_new"](1)
    call["topic_partition_list_add"](assigned, topic.encode(), partition)
    call["topic_partition_list_set_offset"](assigned, topic.encode(), partition, offset)
    call["assign"](client, assigned)
    call["topic_partition_list_destroy"](assigned)


def _headers(message: Any) -> Headers:
    return tuple(_each_header(message))


def _each_header(message: Any) -> Iterator[tuple[str, bytes | None]]:
    call = _library()
    headers, name, value, size = _POINTER(), _TEXT(), _POINTER(), _SIZE()
    if call["message_headers"](message, ctypes.byref(headers)) != 0:
        return
    index = 0
    while call["header_get_all"](headers, index, name, value, size) == 0:
        held = None if value.value is None else ctypes.string_at(value.value, size.value)
        yield (name.value or b"").decode(errors="surrogateescape"), held
        index += 1


# --- writing one ------------------------------------------------------------------------------------------------------


class OddRecord(NamedTuple):
    """A record to write; in partition -1, the key chooses the partition."""

    topic: str
    partition: int
    key: bytes | None
    payload: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


def write(config: Mapping[str, Any], record: OddRecord, *, timeout_s: float) -> Coordinates:
    """Write one record and return where it is. Raises KafkaException if the broker refuses or does not answer."""
    call, done = _library(), list[tuple[int, int, int]]()

    def delivered(_client: int, message: Any, _opaque: int) -> None:
        done.append((message.contents.err, message.contents.partition, message.contents.offset))

    report = _Delivered(delivered)  # must live as long as the client
    with _client(_PRODUCER, config, report) as client:
        error = _produce(client, record)
        deadline = time.monotonic() + timeout_s
        while error == 0 and not done and time.monotonic() < deadline:
            call["poll"](client, POLL_MS)
    if error == 0 and not done:
        error = ck.KafkaError._TIMED_OUT
    code, partition, offset = done[0] if done else (error, -1, -1)
    if code != 0:
        raise ck.KafkaException(ck.KafkaError(code))
    return Coordinates(record.topic, partition, offset)


def _produce(client: int, record: OddRecord) -> int:
    """Hand a record to the client, and return the code of the error if it is not taken."""
    call = _library()
    made = call["headers_new"](len(record.headers))
    for name, value in record.headers:
        raw = _name(name)
        call["header_add"](made, raw, len(raw), _address(value), len(value or b""))
    arguments = (_Argument * 7)(
        _Argument(_TOPIC, _Value(text=record.topic.encode())),
        _Argument(_PARTITION, _Value(number=record.partition)),
        _Argument(_FLAGS, _Value(flags=_COPY)),
        _Argument(_TIMESTAMP, _Value(time=record.timestamp_ms)),
        _Argument(_KEY, _Value(bytes=_Bytes(_address(record.key), len(record.key or b"")))),
        _Argument(_VALUE, _Value(bytes=_Bytes(_address(record.payload), len(record.payload or b"")))),
        _Argument(_HEADERS, _Value(headers=made)),
    )
    failed = call["produceva"](client, arguments, len(arguments))
    if not failed:
        return 0
    call["headers_destroy"](made)
    code = int(call["error_code"](failed))
    call["error_destroy"](failed)
    return code


def _address(data: bytes | None) -> int | None:
    return None if data is None else ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value


def _name(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


@contextmanager
def _client(kind: int, config: Mapping[str, Any], delivered: Any = None) -> Iterator[int]:
    """Open a client with those of the settings that are plain values: callbacks belong to the Python client."""
    call, why = _library(), ctypes.create_string_buffer(512)
    conf = call["conf_new"]()
    plain = {name: value for name, value in config.items() if isinstance(value, str | int | float)}
    for name, value in (plain | {"log_level": 0}).items():
        said = str(value).lower() if isinstance(value, bool) else str(value)
        if call["conf_set"](conf, name.encode(), said.encode(), why, len(why)) != 0:
            call["conf_destroy"](conf)
            raise ValueError(f"librdkafka does not take {name}: {why.value.decode(errors='replace')}")
    if delivered is not None:
        call["conf_set_dr_msg_cb"](conf, delivered)
    client = call["new"](kind, conf, why, len(why))
    if not client:
        call["conf_destroy"](conf)
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._FAIL, why.value.decode(errors="replace")))
    try:
        yield client
    finally:
        call["destroy"](client)
