"""A pass is bounded before it is read: its examples, numbers, fields of protobuf, and dense tensors."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib

import pytest
from hypothesis import given, strategies as st

from gateway.rooms.routes import ROUTES
from plugins.tinker.api import protobuf
from plugins.tinker.api.pass_calls import PROTOBUF
from streams.errors import CallError
from tests.unit.test_body_bounds import application, posted, zstd

PASS_BEGIN = b'{"model_id":"x","seq_id":1,"forward_backward_input":{"loss_fn":"cross_entropy","data":['
EXAMPLE = {"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {}}
SPARSE = {"data": [], "dtype": "int64", "sparse_crow_indices": [0, 0], "sparse_col_indices": [], "shape": [1, 2**23]}


@pytest.mark.parametrize(
    ("raw", "encoding", "status", "says"),
    [
        (zstd(b" " * 240_000_000), "zstd", 413, "at most 16000000 (serve.max_body_mb)"),
        (zstd(b" " * 15_000_000), "zstd", 413, "100 times as long as it was sent"),
        (zstd(b" " * 15_000_000, write_content_size=False), "zstd", 413, "100 times as long as it was sent"),
        (zstd(PASS_BEGIN + b"{}," * 60_000 + b"{}]}}", level=1), "zstd", 413, "as it was sent"),
        (gzip.compress(b" " * 15_000_000), "gzip", 413, "100 times as long as it was sent"),
        (zlib.compress(b" " * 15_000_000), "deflate", 413, "100 times as long as it was sent"),
        (PASS_BEGIN + b"{}," * 110_000 + b"{}]}}", "", 413, "more than 50,000 values that are no numbers"),
        (PASS_BEGIN + b"1," * 1_100_000 + b"1]}}", "", 413, "more than 1,050,000 values"),
        (PASS_BEGIN + b"1," * 1_000_000 + b"1]}}", "", 400, "data[0]: expected an object (got 1)"),
        (PASS_BEGIN + b",".join([json.dumps(EXAMPLE).encode()] * 1_025) + b"]}}", "", 400, "at most 1024 items"),
        (
            PASS_BEGIN + b",".join([json.dumps(EXAMPLE | {"loss_fn_inputs": {"x": SPARSE}}).encode()] * 2) + b"]}}",
            "",
            413,
            "134,217,728 bytes once they are dense",
        ),
    ],
    ids=[
        "bomb",
        "ratio",
        "no size",
        "examples",
        "gzip",
        "deflate",
        "objects",
        "numbers",
        "no objects",
        "1025",
        "dense",
    ],
)
def test_a_pass_is_bounded_before_it_is_read(raw: bytes, encoding: str, status: int, says: str) -> None:
    [route] = [route for route in ROUTES if route.name == "tinker_forward_backward"]
    answer = posted(application(), route, raw, {"content-encoding": encoding})
    assert answer.status_code == status and says in answer.text


@pytest.mark.parametrize(
    "raw",
    [
        b"\x1a\x00" * 200_000,  # empty examples
        b"\x1a\x80\xea\x30" + b"\x0a\x00" * 400_000,  # one of empty pieces
        b"\x3a\x00" * 200_000,  # empty settings of a loss
        b"\xf8\xff\x03\x00" * 200_000,  # unknown fields
        b"\x1a\xcc\x9a\x0c\x12\xc8\x9a\x0c\x12\xc4\x9a\x0c\x22\xc0\x9a\x0c"
        + b"\x01" * 200_000,  # the shape of a tensor
    ],
)
def test_a_pass_in_protobuf_has_so_many_fields_whatever_they_are_in(raw: bytes) -> None:
    [route] = [route for route in ROUTES if route.name == "tinker_forward_backward"]
    answer = posted(application(), route, raw, {"content-type": PROTOBUF})
    assert answer.status_code == 413 and "more than 100,000 fields of protobuf" in answer.text


@given(st.binary(max_size=60))
def test_no_bytes_stop_the_count_of_fields(raw: bytes) -> None:
    with contextlib.suppress(CallError):
        protobuf.read("ForwardBackwardRequest", raw)
