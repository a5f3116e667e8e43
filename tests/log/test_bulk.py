"""Reading side by side gives what reading one by one gives."""

from __future__ import annotations

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import Reward
from streams.arrow import bulk, decode
from streams.errors import LogError
from streams.kafka import admin as cluster, reader
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support.factories import response, reward

pytestmark = pytest.mark.kafka


def write(settings: Settings, count: int) -> None:
    """Write rewards and responses to tasks in several partitions."""
    with Producer(settings) as producer:
        for number in range(count):
            producer.send(reward(task_id=f"t{number}", value=float(number)), headers={"n": b"%d" % number})
            producer.send(response(task_id=f"t{number}"))


def bounds(settings: Settings, *labels: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    found = cluster.offsets(settings, labels)
    return {tp: low for tp, (low, _) in found.items()}, {tp: high for tp, (_, high) in found.items()}


def records(rows: decode.DecodedRows) -> list[Record]:
    every = zip(rows.timestamps, rows.keys, rows.payloads, rows.headers, strict=True)
    return [Record(rows.at(number), *each) for number, each in enumerate(every)]


def test_several_topics_and_partitions_are_read_each_to_its_own_bound(made: Settings) -> None:
    write(made, 60)
    starts, ends = bounds(made, "rewards", "responses")
    starts = {tp: min(2, ends[tp]) for tp in starts}
    ends = {tp: max(starts[tp], end - tp[1] % 3) for tp, end in ends.items()}
    write(made, 20)  # behind the bounds
    found = [record for rows in bulk.read(made, starts, ends, headers=True) for record in records(rows)]
    expected = list(reader.read(made, starts, ends))
    assert sorted(found, key=lambda record: record.at) == sorted(expected, key=lambda record: record.at)
    for tp in starts:
        offsets = [record.at.offset for record in found if (record.at.topic, record.at.partition) == tp]
        assert offsets == list(range(starts[tp], ends[tp]))


def test_more_than_fits_into_one_piece_comes_in_several_whole_and_in_order(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_RECORDS", 300)
    write(made, 2 * bulk.AT_A_TIME)
    starts, ends = bounds(made, "rewards", "responses")
    pieces = list(bulk.read(made, starts, ends, headers=True))
    assert len(pieces) > 2
    found = [record for rows in pieces for record in records(rows)]
    for tp in starts:
        offsets = [record.at.offset for record in found if (record.at.topic, record.at.partition) == tp]
        assert offsets == list(range(starts[tp], ends[tp]))
    assert sorted(found, key=lambda record: record.at) == sorted(
        reader.read(made, starts, ends), key=lambda record: record.at
    )


def test_what_is_decoded_from_it_is_what_the_records_hold(made: Settings) -> None:
    write(made, 40)
    starts, ends = bounds(made, "rewards")
    tables = [decode.decode_rows(Reward, rows).table for rows in bulk.read(made, starts, ends)]
    found = {row["task_id"]: row["value"] for table in tables for row in table.select(["task_id", "value"]).to_pylist()}
    assert found == {f"t{number}": float(number) for number in range(40)}


def test_nothing_is_read_of_nothing(made: Settings) -> None:
    starts, ends = bounds(made, "rewards")
    assert list(bulk.read(made, starts, ends)) == list(bulk.read(made, {}, {})) == []


def test_an_offset_that_retention_has_cut_is_an_error(made: Settings) -> None:
    write(made, 60)
    tp = (topics(made.topics)["rewards"].name, 0)
    client = admin.AdminClient(client_config(made.kafka))
    for future in client.delete_records([ck.TopicPartition(*tp, 2)]).values():
        future.result()
    with pytest.raises(LogError, match=r"rewards\[0\]: the offset asked for is gone"):
        list(bulk.read(made, {tp: 1}, {tp: 3}))
