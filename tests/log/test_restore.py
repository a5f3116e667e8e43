"""What was archived comes back into a log as it was; and the commands, and an archive in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from schemas import versions
from schemas.events import Reward, Task
from streams.errors import NotFoundError, RefusedError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from streams.tools.archive.restore import PLACEHOLDER, restore, set_back
from streams.tools.archive.retention import RestoredTopics, SetBack
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.sync import sync
from streams.tools.archive.verify import verify
from tests.support.doubles.object_store import bucket
from tests.support.log.archived import (
    ONE,
    cut,
    deleted,
    elsewhere,
    held,
    in_the_log,
    name,
    of,
    renamed,
    run,
    settings,
    small,
    write,
    write_odd,
)
from tests.support.processes import until

__all__ = ["settings"]
pytestmark = pytest.mark.kafka


# --- back into the log ------------------------------------------------------------------------------------------------


def test_what_is_restored_is_what_was_there_offsets_and_all(made: Settings) -> None:
    write(made, 30)
    write_odd(made)
    write(made, 5, partition=0)
    cut(made, 11)
    sync(small(made), ["rewards"])
    there, before = in_the_log(made), retention(made)
    deleted(made)
    done = {each.partition: each for each in restore(made, ["rewards"])}
    assert (done[ONE].first, done[ONE].records) == (11, 28)
    assert admin.offsets(made, ["rewards"])[name(made), ONE] == (11, 39)
    assert in_the_log(made) == there
    retains(made, "-1")
    assert {each.records for each in restore(made, ["rewards"])} == {0}
    assert set_back(made) == [SetBack("rewards", before)]
    retains(made, before)
    assert set_back(made) == []
    write(made, 1, first=99)  # and the archive goes on
    assert {each.partition: each.records for each in sync(made, ["rewards"])}[ONE] == 1
    assert held(of(made)) == in_the_log(made)


def retention(settings: Settings) -> str:
    return admin.configs(settings, [name(settings)])[name(settings)]["retention.ms"]


def retains(settings: Settings, expected: str) -> None:
    """Wait for a change of the retention: a node that has acknowledged one may still tell what was before."""
    until(lambda: retention(settings) == expected, f"retention.ms {expected}")


def test_topics_that_hold_their_archive_are_not_touched(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    there, before = in_the_log(made), retention(made)
    result = run(made, "restore", "rewards")
    assert (result.exit_code, "nothing was changed" in result.stderr) == (0, True)
    assert (in_the_log(made), retention(made)) == (there, before)


def test_a_topic_in_use_that_begins_like_the_archive_is_refused_unless_asked(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    there = in_the_log(made)
    deleted(made)
    admin.apply_topics(made)
    with Producer(made) as producer:
        for record in there[:2]:
            producer.send_bytes(
                (name(made), ONE), record.key, record.payload, timestamp_ms=record.timestamp_ms, headers=record.headers
            )
    before = retention(made)
    with pytest.raises(RefusedError, match=r"no restore is under way there.*--fill"):
        restore(made, ["rewards"])
    assert (in_the_log(made), retention(made)) == (there[:2], before)
    assert run(made, "restore", "rewards", "--fill").exit_code == 0
    assert in_the_log(made) == there
    retains(made, "-1")
    result = run(made, "restore", "--set-back")
    assert json.loads(result.stdout) == {"topic": "rewards", "retention_ms": before}
    retains(made, before)


def test_an_interrupted_restore_goes_on_where_it_was(made: Settings) -> None:
    write(made, 30)
    cut(made, 6)
    sync(made, ["rewards"])
    there = in_the_log(made)
    into = elsewhere(made)
    admin.apply_topics(into)
    before = retention(into)
    RestoredTopics(ArchiveReader(made).store, into).switch_off(["rewards"])  # as one that was killed has done
    with Producer(into) as producer:
        for _ in range(4):
            producer.send_bytes((name(into), ONE), None, PLACEHOLDER)
    assert {each.partition: each.records for each in restore(made, ["rewards"], into=into)}[ONE] == 24
    assert set_back(made, into=into) == [SetBack("rewards", before)]
    third = elsewhere(into)
    admin.apply_topics(third)
    with Producer(third) as producer:
        for _ in range(6):
            producer.send_bytes((name(third), ONE), None, PLACEHOLDER)
        for record in there[:9]:
            producer.send_bytes(
                (name(third), ONE),
                record.key,
                record.payload,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
    assert {each.partition: each.records for each in restore(made, ["rewards"], into=third, fill=True)}[ONE] == 15
    for target in (into, third):
        assert in_the_log(target) == renamed(there, target)


def test_a_topic_that_is_not_empty_is_refused_and_left_as_it_was(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    into = elsewhere(made)
    admin.apply_topics(into)
    write(into, 2, first=50, partition=0)
    write(into, 2, first=50)
    before = in_the_log(into)
    with pytest.raises(RefusedError, match=r"rewards\[\d\]: holds offsets 0 to 1, expected an empty partition"):
        restore(made, ["rewards"], into=into)
    assert in_the_log(into) == before


def test_a_topic_with_other_partitions_is_refused(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    shapes = made.topics.model_copy(update={"prefix": made.topics.prefix + "again.", "partitions": 4})
    with pytest.raises(RefusedError, match="has 4 partitions, expected 3"):
        restore(made, ["rewards"], into=made.model_copy(update={"topics": shapes}))


def test_nothing_archived_is_nothing_to_restore(made: Settings) -> None:
    with pytest.raises(NotFoundError, match="holds nothing of rewards"):
        restore(made, ["rewards"])


# --- the commands -----------------------------------------------------------------------------------------------------


def test_the_commands_sync_list_verify_and_restore(made: Settings) -> None:
    write(made, 12)
    write_odd(made)
    result = run(made, "sync", "rewards")
    assert result.exit_code == 0, result.output
    (row,) = map(json.loads, result.stdout.splitlines())  # the other two have no records
    assert row == {
        "topic": "rewards", "partition": ONE, "first": 0, "next": 21, "records": 21, "bad": 6, "segments": 1,
        "headers_left_out": 0, "holes": 0,
    }  # fmt: skip
    assert "21 records archived" in result.stderr and "6 of them are not events" in result.stderr
    assert "2 partitions were up to date" in result.stderr
    (row,) = (row for row in map(json.loads, run(made, "list").stdout.splitlines()) if row["partition"] == ONE)
    assert (row["records"], row["segments"]) == (21, 1)
    assert row["schema_ids"] == sorted(versions.files().newest(event).id for event in (Reward, Task))
    assert run(made, "verify").exit_code == 0
    result = run(made, "restore", "rewards", "--into-prefix", elsewhere(made).topics.prefix)
    assert result.exit_code == 0, result.output
    assert "21 records are restored" in result.stderr and "retention.ms=-1" in result.stderr
    assert in_the_log(elsewhere(made)) == renamed(in_the_log(made), elsewhere(made))
    cut(made, 21)
    write(made, 3)
    cut(made, 23)
    assert run(made, "sync", "rewards").exit_code == 5


def test_an_archive_that_holds_nothing_says_so(made: Settings) -> None:
    result = run(made, "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "is empty" in result.stderr
    assert run(made, "restore").exit_code == 3


# --- an object store --------------------------------------------------------------------------------------------------


@pytest.fixture
def there(made: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with an archive in an object store, in small segments."""
    with bucket(monkeypatch) as url:
        held = made.archive.model_copy(update={"store": f"{url}/archive", "segment_records": 10})
        yield made.model_copy(update={"archive": held})


def test_an_object_store_holds_an_archive_too(there: Settings) -> None:
    write(there, 25)
    sync(there, ["rewards"])
    write(there, 4, first=25)
    sync(there, ["rewards"])
    segments = ArchiveReader(there).segments("rewards", ONE)
    assert [each.next for each in segments] == [10, 20, 25, 29]
    assert segments[0].path.startswith("s3://bucket/archive/")
    assert verify(there).findings == ()
    assert held(of(there)) == held(of(there, "auto")) == in_the_log(there)
    restore(there, ["rewards"], into=elsewhere(there))
    assert in_the_log(elsewhere(there)) == renamed(in_the_log(there), elsewhere(there))
    ArchiveReader(there).store.remove(f"{name(there)}/{segments[1].name}")
    (finding,) = verify(there).findings
    assert finding.file == segments[1].path
