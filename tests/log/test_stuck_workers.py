"""What stuck or broke Faust on a real broker: topics with holes, failed publishes, agents that stand still."""

from __future__ import annotations

import signal
import time

import confluent_kafka as ck
import pytest

from tests.support.log.join_bench import Bench, bench, wait_until
from tests.support.log.join_worker import ANSWERS, PARTITIONS
from tests.support.log.transactions import Transactions

__all__ = ["bench"]

pytestmark = [pytest.mark.kafka, pytest.mark.kills]


def test_changelog_record_that_the_broker_refuses_ends_the_worker_uncommitted(bench: Bench) -> None:
    # Faust logs a failed publish and commits; the state of the group would be gone at the next restart.
    bench.send("questions", "g", {"row_bytes": 100_000})
    bench.producer.flush()
    bench.create({bench.changelog: {"cleanup.policy": "compact", "max.message.bytes": "20000"}})
    worker = bench.start()
    worker.ends(with_code=75)
    assert "was not published" in worker.log()
    assert bench.lag() == 1


def test_state_survives_a_changelog_with_markers_of_transactions_and_an_emptied_partition(bench: Bench) -> None:
    # Recovery waits for the offset before the end of each changelog. Markers of transactions (here: committed and
    # aborted ones) and deleted records leave no record there, and stock Faust waits for ever.
    bench.create({bench.changelog: {"cleanup.policy": "compact,delete"}})  # deleting records needs it
    writer = ck.Producer(
        {"log_level": 0, "bootstrap.servers": bench.bootstrap, "transactional.id": bench.prefix + "changelog"}
    )
    writer.init_transactions()
    for commit in (True, False):
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            writer.produce(bench.changelog, b'{"question": null, "answers": {}, "closed": false}', b"other", partition)
        writer.flush()
        writer.commit_transaction() if commit else writer.abort_transaction()
    ends = [ck.TopicPartition(bench.changelog, p, 4) for p in (2, 3)]
    # the marker that ends a transaction is written after the client was told that it has ended
    wait_until(lambda: all(bench.group.get_watermark_offsets(tp, 10)[1] == tp.offset for tp in ends))
    for future in bench.admin.delete_records(ends).values():
        future.result()

    for i in range(20):
        bench.send("questions", f"g{i}", {})
    bench.producer.flush()
    first = bench.start()
    wait_until(lambda: bench.lag() == 0, first.log)
    first.stop()
    first.ends(with_code=0)
    for i in range(20):
        for slot in range(ANSWERS):
            bench.send("answers", f"g{i}", {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start()
    wait_until(lambda: bench.lag() == 0, second.log)
    assert len(bench.joined()) == 20


def test_holes_in_a_source_topic_are_passed_and_committed(bench: Bench) -> None:
    # Records deleted in front of the commit, and markers of transactions: both are offsets without a record.
    writer = ck.Producer(
        {"log_level": 0, "bootstrap.servers": bench.bootstrap, "transactional.id": bench.prefix + "questions"}
    )
    writer.init_transactions()
    for _ in range(3):
        writer.begin_transaction()
        for i in range(20):
            writer.produce(bench.prefix + "questions", b"{}", f"g{i}".encode(), i % PARTITIONS)
        writer.commit_transaction()
    cut = [ck.TopicPartition(bench.prefix + "questions", p, 3) for p in range(PARTITIONS)]
    for future in bench.admin.delete_records(cut).values():
        future.result()
    worker = bench.start()
    wait_until(lambda: bench.lag() == 0, worker.log)  # the last offset of each partition is a marker
    assert worker.log().count("are not in the log (read twice)") >= PARTITIONS
    worker.stop()
    worker.ends(with_code=0)


def test_agent_that_waits_for_ever_ends_the_worker_with_75(bench: Bench) -> None:
    bench.send("questions", "g", {"pause_s": 3600})
    bench.producer.flush()
    worker = bench.start(JOIN_STUCK_S="2")
    worker.ends(with_code=75)
    assert "questions[" in worker.log() and "has waited for" in worker.log()


@pytest.mark.parametrize("driver", ["faust", "loop"])
def test_event_loop_that_stands_still_ends_the_worker_with_75_and_says_where(bench: Bench, driver: str) -> None:
    bench.send("questions", "g", {"block_s": 3600})
    bench.producer.flush()
    worker = bench.start(driver=driver, JOIN_FROZEN_S="2")
    worker.ends(with_code=75)
    assert "time.sleep(block)" in worker.log()


def test_worker_that_was_stopped_and_continued_goes_on(bench: Bench) -> None:
    # SIGSTOP for longer than every patience: the clock has moved, the worker is as well as before.
    worker = bench.start(JOIN_STUCK_S="4", JOIN_FROZEN_S="4")
    worker.owns(set(range(PARTITIONS)))
    worker.process.send_signal(signal.SIGSTOP)
    for i in range(20):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    time.sleep(6)
    worker.process.send_signal(signal.SIGCONT)
    wait_until(lambda: bench.lag() == 0, worker.log)
    worker.stop()
    worker.ends(with_code=0)
    assert len(bench.joined()) == 20


@pytest.mark.parametrize("driver", ["faust", "loop"])
def test_aborted_and_open_transactions_of_others_lose_nothing_and_hold_up_no_worker(bench: Bench, driver: str) -> None:
    # Faust read them uncommitted and joined what no other reader gets; the loop waited for a record where a partition
    # ended with a marker, and after a minute took itself for stuck. Here, after five seconds.
    records = [(b"aborted", b'{"slot": "%d"}' % slot) for slot in range(ANSWERS)]
    foreign = {
        label: [Transactions(bench.bootstrap, (bench.prefix + label, p)) for p in range(PARTITIONS)]
        for label in ("questions", "answers")
    }
    for questions, answers in zip(foreign["questions"], foreign["answers"], strict=True):
        questions.abort((b"aborted", b"{}"))
        answers.abort(*records)
    worker = bench.start(driver=driver, JOIN_STUCK_S="5")
    for i in range(20):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    for writer in (*foreign["questions"], *foreign["answers"]):
        writer.abort((b"aborted", b"{}"))  # each partition ends with a hole
    wait_until(lambda: bench.lag() == 0, worker.log)
    for answers in foreign["answers"]:
        answers.begin(*records)
    for i in range(20, 40):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    time.sleep(8)
    assert worker.process.poll() is None and len(bench.joined()) == 20  # all of the 20 others are behind open ones
    for answers in foreign["answers"]:
        answers.end(commit=False)
    wait_until(lambda: bench.lag() == 0, worker.log)
    worker.stop()
    worker.ends(with_code=0)
    assert len(bench.joined()) == 40
    assert bench.joined() == {group: [joined] for group, joined in bench.expected().items()}
