"""What an archive keeps of a record, and that each byte of it comes back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from schemas import versions
from schemas.events import Coordinates, Event, Reward, Task
from schemas.serde import encode
from streams.arrow.decode import side_by_side
from streams.kafka.headers import LEFT_OUT, decode_headers
from streams.kafka.record import Record
from streams.tools.archive.columns import FIRST_MS, LAST_MS, days_of, records_of, store_rows
from tests.support.any_event import any_event
from tests.support.factories import one_of_each, reward

TOPIC = "streamward.any"


def record(payload: bytes | None, *, offset: int = 0, timestamp_ms: int = 7, key: bytes | None = b"k") -> Record:
    return Record(Coordinates(TOPIC, 0, offset), timestamp_ms, key, payload, (("h", b"v"), ("h", None)))


def back(event: type[Event], records: list[Record]) -> tuple[list[Record], pa.Table]:
    """Return the records as they come back, and the columns that they were."""
    table = store_rows(event, side_by_side(TOPIC, records)).table
    return list(records_of(TOPIC, 0, versions.files().newest(event), table)), table


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_the_payload_of_an_event_is_not_kept_beside_its_columns_and_comes_back(event: Event) -> None:
    records = [record(encode(event), offset=offset) for offset in range(3)]
    again, table = back(type(event), records)
    assert again == records
    assert table["_payload"].null_count == 3


@given(st.lists(any_event, min_size=1, max_size=4))
def test_every_event_comes_back_byte_for_byte(events: list[Event]) -> None:
    records = [record(encode(each), offset=offset) for offset, each in enumerate(events)]
    assert back(type(events[0]), records)[0] == records


def test_a_payload_that_its_columns_do_not_encode_to_is_kept() -> None:
    plain = encode(reward(components={"a": 0.5}))
    at = plain.index(b"\x02\x02a")  # a block of one entry; Avro also allows one that says how many bytes it has
    padded = plain[:at] + b"\x01\x14" + plain[at + 1 :]
    records = [record(payload, offset=offset) for offset, payload in enumerate((plain, padded, b"none", None))]
    again, table = back(Reward, records)
    assert again == records
    assert table["_payload"].to_pylist() == [None, padded, b"none", None]
    assert [reason is None for reason in table["_bad"].to_pylist()] == [True, True, False, False]


def test_what_no_column_can_hold_comes_back_too() -> None:
    payload = encode(reward())
    records = [
        record(payload, offset=0, timestamp_ms=LAST_MS + 1),
        record(payload, offset=1, timestamp_ms=FIRST_MS - 1),
        record(payload, offset=2, timestamp_ms=-1, key=b"\xff"),
        record(encode(reward(created_at=LAST_MS + 1)), offset=3, key=None),
    ]
    again, table = back(Reward, records)
    assert again == records
    assert table["_bad"].to_pylist() == [None, None, None, "out_of_range"]


def test_a_day_is_utc_and_within_the_years_that_engines_know() -> None:
    times = [0, 86_400_000 - 1, 86_400_000, -1, 1 << 62, -(1 << 62)]
    assert days_of(times) == ["1970-01-01", "1970-01-01", "1970-01-02", "1969-12-31", "9999-12-31", "0001-01-01"]


def test_a_record_of_another_event_is_kept_as_it_is() -> None:
    (task,) = (event for event in one_of_each() if isinstance(event, Task))
    records = [record(encode(task)), record(encode(reward()), offset=1)]
    assert back(Reward, records)[0] == records


def test_a_header_name_that_is_not_utf_8_in_the_archive_of_an_older_release_leaves_all_headers_out() -> None:
    assert decode_headers([(b"plain", b"1"), (b"none", None)]) == (("plain", b"1"), ("none", None))
    assert decode_headers([(b"plain", b"1"), (b"\xff\xfename", b"2")]) == LEFT_OUT
