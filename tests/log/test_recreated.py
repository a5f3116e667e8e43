"""A recreated topic of the same name, with as many records as the one before: nothing takes it for the one before."""

from __future__ import annotations

import threading
import time

import confluent_kafka as ck
import pytest

from streams.errors import LogError, StreamwardError
from streams.kafka import admin, topic_ids
from streams.kafka.client import consumer
from streams.kafka.offsets import positions
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.retry import BrokerOutage
from streams.kafka.tracked import TrackedConsumer
from streams.settings.model import Settings
from streams.tools.archive.sync import sync
from tests.support.commands import invoke
from tests.support.log.archived import ONE, deleted, held, in_the_log, name, of, run, settings, write
from tests.support.log.join_bench import SOURCES, Bench, bench, wait_until

__all__ = ["bench", "settings"]
pytestmark = pytest.mark.kafka


def make_anew(settings: Settings, count: int) -> None:
    """Delete the topic, and write other records to one of its name."""
    deleted(settings)
    admin.apply_topics(settings)
    write(settings, count, first=50)


def test_an_archive_is_not_continued_by_another_log_of_the_same_length(made: Settings) -> None:
    write(made, 5)
    sync(made, ["rewards"])
    assert run(made, "sync", "rewards").exit_code == 0
    make_anew(made, 5)
    result = run(made, "sync", "rewards")
    assert result.exit_code == 5 and "the topic was recreated" in result.stderr
    assert f"{name(made)}[{ONE}]@4: holds another record than the archive" in result.stderr
    with pytest.raises(LogError, match=r"@4: the log holds another record here than the archive"):
        held(of(made, "auto"))
    query = invoke(made, "query", "SELECT count(*) FROM rewards")
    assert query.exit_code == 5 and "the log holds another record here than the archive" in query.stderr
    assert held(of(made, "log")) == in_the_log(made) != held(of(made, "archive"))


def test_an_archive_that_follows_notices_another_log_that_has_nothing_new(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    write(made, 5)
    follows = made.model_copy(update={"archive": made.archive.model_copy(update={"follow_s": 2.0})})
    failures: list[str] = []

    def follow() -> None:
        try:
            sync(follows, ["rewards"], follow=True, stop=stop)
        except StreamwardError as exc:
            failures.append(str(exc))

    stop = threading.Event()
    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: "archived 5 records" in caplog.text)
    make_anew(made, 5)
    thread.join(300)
    stop.set()
    found = ("another record than the archive", "does not exist", "the topic was recreated")  # while it is made, too
    assert failures and any(words in failures[0] for words in found)


class Member:
    """A member of the group `scoring`, which reads rewards."""

    def __init__(self, settings: Settings, producer: Producer) -> None:
        outage = BrokerOutage(settings.kafka, threading.Event())
        self._consumer = TrackedConsumer(settings, "scoring", "rewards", producer, outage, max_open=100)
        self.read: list[int] = []

    def take(self, count: int) -> None:
        """Read the first records, and commit. Raises LogError."""
        deadline = time.monotonic() + 300
        while not {*range(count)} <= {*self.read}:
            assert time.monotonic() < deadline, self.read
            for taken in self._consumer.poll():
                self._consumer.done(taken)
                self.read.append(taken.record.at.offset)
            self._consumer.commit()

    def close(self) -> None:
        self._consumer.commit()
        self._consumer.close()


def test_a_commit_in_a_topic_that_was_deleted_counts_for_nothing(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    # a member that lived on has skipped what the new topic has before the offset that it had reached, and committed
    write(made, 5)
    client = consumer(made.kafka, {"group.id": made.topics.prefix + "scoring"})
    commit = ck.TopicPartition(name(made), ONE, 4, metadata=topic_ids.note("of-the-topic-before"))
    client.commit(offsets=[commit], asynchronous=False)
    client.close()
    assert [(position.state, position.lag) for position in positions(made)] == [("recreated", 5)]
    with Producer(made) as producer:
        member = Member(made, producer)
        member.take(5)
        member.close()
    assert member.read == [0, 1, 2, 3, 4]
    assert f"{name(made)}[{ONE}]: the commit of 4 is of a topic of this name that was deleted" in caplog.text
    assert [(position.state, position.lag) for position in positions(made)] == [("ok", 0)]


def test_a_member_that_lives_on_leaves_out_no_record_of_the_new_topic(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "LOOK_S", 0.5)
    write(made, 5)
    with Producer(made) as producer:
        first = Member(made, producer)
        first.take(5)
        first.read.clear()
        make_anew(made, 7)
        try:
            first.take(7)  # if the client has seen that the topic was gone
        except LogError as exc:
            assert "was deleted and recreated while it was read" in str(exc)
            first.close()
            first = Member(made, producer)
            first.take(7)
        first.close()


def test_a_reader_without_a_group_says_that_its_topic_was_made_anew(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "LOOK_S", 0.5)
    write(made, 5)
    with PartitionReader(made, {(name(made), ONE): 0}) as reader:
        deadline = time.monotonic() + 300
        while reader.position[name(made), ONE] < 5:
            reader.poll()
            assert time.monotonic() < deadline
        make_anew(made, 7)
        with pytest.raises(LogError, match=rf"topic {name(made)} was deleted and recreated while it was read"):
            while time.monotonic() < deadline:
                reader.poll()


@pytest.mark.parametrize("driver", ["faust", "loop"])
def test_a_worker_joins_all_of_a_topic_that_was_made_anew_while_it_ran(bench: Bench, driver: str) -> None:
    worker = bench.start(driver=driver, JOIN_LOOK_S="1")
    for i in range(20):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    wait_until(lambda: bench.lag() == 0, worker.log)
    names = [bench.prefix + label for label in SOURCES]
    for future in bench.admin.delete_topics(names).values():
        future.result()
    wait_until(lambda: not bench.admin.list_topics(timeout=300).topics.keys() & {*names})
    bench.create({topic: {} for topic in names})
    for i in range(40, 100):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    # ends with 5, or has seen that the topics were gone, and reads them from their first record
    wait_until(lambda: worker.process.poll() is not None or bench.lag() == 0, worker.log)
    if worker.process.poll() is not None:
        worker.ends(with_code=5)
        assert "was deleted and recreated while it was read" in worker.log()
        worker = bench.start(driver=driver)
    wait_until(lambda: len(bench.joined()) == 80, worker.log)
    worker.stop()
    worker.ends(with_code=0)
    joined = {group: rows for group, rows in bench.joined().items() if int(group[1:]) >= 40}
    expected = bench.expected()
    assert joined.keys() == expected.keys()
    assert all(row == expected[group] for group, rows in joined.items() for row in rows)  # twice, if it ended
