"""The index of a topic's keys: what it covers is not read again, and a file that is not of this log is not believed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import Task
from streams.kafka import log_index
from streams.kafka.client import client_config
from streams.kafka.reader import read
from streams.kafka.record import Record
from streams.settings.model import Settings
from streams.stages.tasks import submit as stage
from streams.stages.tasks.submit import known_ids, records_of, submit
from streams.stages.tasks.task_index import TaskIndex
from tests.support.factories import task

pytestmark = pytest.mark.kafka
SAVED = 8


class CountingIndex(TaskIndex):
    """Counts the records that it reads."""

    taken = 0

    def _take(self, record: Record) -> None:
        self.taken += 1
        super()._take(record)


def tasks(numbers: range) -> list[Task]:
    return [task(task_id=f"t{number}") for number in numbers]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the files are, which are written from SAVED rows on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(log_index, "SAVED_ROWS", SAVED)
    return tmp_path / "cache" / "streamward" / "index"


@pytest.fixture
def read_keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of the records that submissions read."""
    keys: list[bytes] = []

    def counted(*args: Any) -> Iterator[Any]:
        for record in read(*args):
            keys.append(record.key or b"")
            yield record

    monkeypatch.setattr(stage, "read", counted)
    return keys


@pytest.fixture
def long(made: Settings, folder: Path) -> Settings:
    """A log of 40 tasks, with a file that covers them."""
    submit(made, tasks(range(40)))
    assert known_ids(made, ["t0", "t1", "t2", "t3", "no"]) == {"t0", "t1", "t2", "t3"}
    assert len([*folder.iterdir()]) == 1
    return made


def test_a_submission_reads_what_came_since_and_not_the_history(long: Settings, read_keys: list[bytes]) -> None:
    submitted = submit(long, tasks(range(39, 42)))
    assert [one.task_id for one in submitted.known] == ["t39"]
    assert [one.task_id for one in submitted.sent] == ["t40", "t41"]
    assert read_keys == []
    assert known_ids(long, ["t7", "t40", "t41", "t42"]) == {"t7", "t40", "t41"}
    assert sorted(read_keys) == [b"t40", b"t41"]


def test_records_are_found_by_their_offsets(long: Settings, read_keys: list[bytes]) -> None:
    assert [record.key for record in records_of(long, ["t3"])] == [b"t3"]
    assert read_keys == [b"t3"]


def test_a_server_that_follows_the_tasks_reads_what_came_since(long: Settings) -> None:
    submit(long, tasks(range(40, 43)))
    with CountingIndex(long) as index:
        assert index.is_read(300)
        assert [index.find(name) is not None for name in ("t0", "t41", "no")] == [True, True, False]
        assert index.submit(task(task_id="t5")).task == task(task_id="t5")
        index.submit(task(task_id="t44"))
        assert index.taken == 4


def test_a_short_log_has_no_file(made: Settings, folder: Path) -> None:
    submit(made, tasks(range(SAVED - 1)))
    assert known_ids(made, ["t0", "t1"]) == {"t0", "t1"} and not folder.exists()


@pytest.mark.parametrize("damage", ["deleted", "cut", "torn", "empty", "another format", "another topic"])
def test_a_file_that_is_not_whole_is_made_again(
    long: Settings, folder: Path, read_keys: list[bytes], damage: str
) -> None:
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(damaged(whole, damage))
    assert known_ids(long, ["t0", "t1", "t2", "t3", "no"]) == {"t0", "t1", "t2", "t3"}
    assert len(read_keys) == 40
    assert sorted(folder.iterdir()) == [file] and file.read_bytes() == whole


def test_a_file_that_no_process_opened_for_long_is_removed_with_the_next_write(long: Settings, folder: Path) -> None:
    (own,) = folder.iterdir()
    for name, days in ((own.name, 31), ("deleted-keys", 31), ("elsewhere-keys", 29)):
        (folder / name).touch()
        os.utime(folder / name, (0, time.time() - days * 86_400))
    submit(long, tasks(range(40, 40 + SAVED)))
    known_ids(long, ["t0", "t1", "t2", "t3"])  # all partitions
    assert {path.name for path in folder.iterdir()} == {own.name, "elsewhere-keys"}


def damaged(whole: bytes, damage: str) -> bytes:
    changed = {
        "cut": whole[:-32],
        "torn": whole[:200] + bytes(16) + whole[216:],
        "empty": b"",
        "another format": whole[32:].replace(b'"format": 1', b'"format": 0'),
        "another topic": whole[32:].replace(b'"topic_id": "', b'"topic": "'),
    }[damage]
    return hashlib.sha256(changed).digest() + changed if damage.startswith("another") else changed


def test_a_file_whose_last_record_is_another_one_is_not_of_this_log(
    long: Settings, folder: Path, read_keys: list[bytes]
) -> None:
    """As after a node that was not in sync became the leader: offsets that had been written hold other records."""
    (file,) = folder.iterdir()
    content = file.read_bytes()[32:]
    at = content.index(b'"]', content.index(b'"lasts"'))  # of the digest of the key of the last record
    content = content[: at - 4] + bytes(reversed(content[at - 4 : at])) + content[at:]
    file.write_bytes(hashlib.sha256(content).digest() + content)
    assert known_ids(long, ["t0", "t1", "t2", "no"]) == {"t0", "t1", "t2"}
    assert len(read_keys) == 40


def test_a_task_that_retention_deleted_may_be_sent_again(long: Settings, read_keys: list[bytes]) -> None:
    (record,) = records_of(long, ["t0"])
    client = admin.AdminClient(client_config(long.kafka))
    cut = ck.TopicPartition(record.at.topic, record.at.partition, record.at.offset + 1)
    for future in client.delete_records([cut]).values():
        future.result()
    read_keys.clear()
    assert known_ids(long, ["t0", "t39"]) == {"t39"} and read_keys == []
