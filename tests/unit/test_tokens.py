"""What is per token is bytes that read like lists of numbers, and one that exists is sound."""

from __future__ import annotations

import copy
import json
import math
import pickle
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from schemas.tokens import MAX_LOGPROB, Logprobs, LossMask, PerToken, TokenIds
from streams.output import cell, json_line
from tests.support.factories import response

ids = st.lists(st.integers(0, (1 << 31) - 1), max_size=20)
logprobs = st.lists(st.floats(max_value=0, allow_infinity=False, width=32), max_size=20)
masks = st.lists(st.booleans(), max_size=20)
views = st.one_of(ids.map(TokenIds.of), logprobs.map(Logprobs.of), masks.map(LossMask.of))


@given(ids, logprobs, masks)
def test_the_numbers_come_out_as_they_went_in(some: list[int], others: list[float], mask: list[bool]) -> None:
    for view, values in ((TokenIds.of(some), some), (Logprobs.of(others), others), (LossMask.of(mask), mask)):
        assert list(view) == values and len(view) == len(values)
        assert [type(item) for item in view] == [type(value) for value in values]
        assert view.numpy().tolist() == values
        assert [view[place] for place in range(-len(values), len(values))] == values * 2


def test_bytes_are_little_endian_four_a_token_and_one_for_the_mask() -> None:
    assert TokenIds.of([1, 256]).data == b"\1\0\0\0\0\1\0\0"
    assert Logprobs.of([-0.5]).data == struct.pack("<f", -0.5)
    assert LossMask.of([True, False]).data == b"\1\0"


@given(views, st.slices(20))
def test_a_slice_is_a_view_of_the_same_kind(view: PerToken[Any], part: slice) -> None:
    assert type(view[part]) is type(view)
    assert list(view[part]) == list(view)[part]


@given(views)
def test_equal_bytes_of_one_kind_are_equal_and_a_copy_is_too(view: PerToken[Any]) -> None:
    same = type(view)(bytes(bytearray(view.data)))
    assert same == view == copy.deepcopy(view) == pickle.loads(pickle.dumps(view))  # noqa: S301 - our own
    assert hash(same) == hash(view)
    assert view != view.data and view != list(view)


def test_ids_and_logprobs_of_the_same_bytes_differ() -> None:
    assert TokenIds() != Logprobs()


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="TokenIds cannot be changed: make another one"):
        TokenIds.of([1]).data = b""
    with pytest.raises(ValueError, match="read-only"):
        TokenIds.of([1]).numpy()[0] = 2


def test_numpy_sees_the_same_memory() -> None:
    view = TokenIds.of(range(100))
    assert np.shares_memory(view.numpy(), np.frombuffer(view.data, np.uint8))


def test_its_repr_is_that_of_a_list_and_short() -> None:
    assert repr(TokenIds.of([1, 2, 3])) == "TokenIds([1, 2, 3])"
    assert repr(TokenIds.of(range(256))) == "TokenIds([0, 1, 2, … 256 in all])"
    assert repr(LossMask()) == "LossMask([])"


def test_an_index_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        TokenIds.of([1])[1]


def test_a_mask_counts_what_the_policy_wrote() -> None:
    assert LossMask.of([True, False, True]).trained_tokens == 2


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        (TokenIds, b"12345", "TokenIds: expected little-endian int32, 4 bytes a token, got 5 bytes"),
        (TokenIds, struct.pack("<2i", 7, -1), r"TokenIds\[1\]: expected an id from 0 to 2147483647, got -1"),
        (Logprobs, b"12", "Logprobs: expected little-endian float32, 4 bytes a token, got 2 bytes"),
        (Logprobs, struct.pack("<2f", -1, math.nan), r"Logprobs\[1\]: expected a finite number of 32 bits, got nan"),
        (Logprobs, struct.pack("<2f", -1, -math.inf), r"Logprobs\[1\]: expected a finite number of 32 bits, got -inf"),
        (Logprobs, struct.pack("<2f", 0, -math.nan), r"Logprobs\[1\]: expected a finite number of 32 bits, got nan"),
        (Logprobs, struct.pack("<2f", 0, 0.5), r"Logprobs\[1\]: expected a logprob, which is at most 0, got 0.5"),
        (LossMask, b"\0\1\2", r"LossMask\[2\]: expected 0 or 1, got 2"),
    ],
)
def test_unsound_bytes_are_refused_with_their_place(kind: type[PerToken[Any]], data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        kind(data)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (TokenIds, [4, -1], r"TokenIds\[1\]: expected an id from 0 to 2147483647, got -1"),
        (TokenIds, [4, 1 << 31], r"TokenIds\[1\]: expected an id from 0 to 2147483647, got 2147483648"),
        (TokenIds, [4, True], r"TokenIds\[1\]: expected int, got bool True"),
        (TokenIds, [4.0], r"TokenIds\[0\]: expected int, got float 4.0"),
        (Logprobs, [-0.5, math.nan], r"Logprobs\[1\]: expected a finite number of 32 bits, got nan"),
        (Logprobs, [-0.5, -1e39], r"Logprobs\[1\]: expected a finite number of 32 bits, got -1e\+39"),
        (Logprobs, [-0.5, -(10**400)], r"Logprobs\[1\]: expected a finite number of 32 bits, got -10+"),
        (Logprobs, ["-0.5"], r"Logprobs\[0\]: expected float, got str '-0.5'"),
        (LossMask, [True, 1], r"LossMask\[1\]: expected bool, got int 1"),
    ],
)
def test_numbers_that_are_none_or_out_of_range_are_refused(kind: Any, values: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        kind.of(values)


@given(st.binary(max_size=40).filter(lambda data: len(data) % 4 == 0))
def test_the_quick_check_refuses_what_the_rule_refuses(data: bytes) -> None:
    numbers = struct.unpack(f"<{len(data) // 4}i", data)
    floats = struct.unpack(f"<{len(data) // 4}f", data)
    for kind, good in (
        (TokenIds, all(number >= 0 for number in numbers)),
        (Logprobs, all(math.isfinite(number) and number <= MAX_LOGPROB for number in floats)),
        (LossMask, set(data) <= {0, 1}),
    ):
        try:
            kind(data)
        except ValueError:
            assert not good
        else:
            assert good


def test_a_logprob_that_rounding_lifted_above_zero_is_good() -> None:
    assert list(Logprobs.of([0.0, 2.0**-20])) == [0.0, 2.0**-20]


def test_a_process_that_reads_events_and_needs_no_arrays_does_not_load_numpy() -> None:
    code = "import sys; import schemas.serde; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_json_lines_and_table_cells_show_the_numbers() -> None:
    line = json.loads(json_line({"event": response()}))["event"]
    assert (line["completion_token_ids"], line["logprobs"], line["loss_mask"]) == ([4, 5], [-0.5, -0.25], [True, True])
    assert cell(response().logprobs) == "-0.5, -0.25"
