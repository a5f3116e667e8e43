"""Records that are gone, on a real broker: source records deleted unread, and changelogs cut or recreated.

Half of each group is worked on, and the worker stopped. Then something is deleted, and the other half comes: a group
whose first half was forgotten never closes.
"""

from __future__ import annotations

import signal
import time

import confluent_kafka as ck
import pytest

from streams.worker.faust.fixes import FETCH_WAIT_MS
from tests.support.log.join_bench import Bench, Worker, bench, wait_until
from tests.support.log.join_worker import ANSWERS, PARTITIONS

__all__ = ["bench"]

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

GROUPS = [f"g{i}" for i in range(20)]


def ask(bench: Bench) -> None:
    for group in GROUPS:
        bench.send("questions", group, {})
    bench.producer.flush()


def answer(bench: Bench) -> None:
    for group in GROUPS:
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()


def work_off(bench: Bench) -> Worker:
    """Run a worker until nothing is left to do."""
    worker = bench.start()
    wait_until(lambda: bench.lag() == 0 or worker.process.poll() is not None, worker.log)
    assert worker.process.poll() is None, worker.log()
    return worker


def work_off_and_stop(bench: Bench) -> None:
    worker = work_off(bench)
    worker.stop()
    worker.ends(with_code=0)


def delete_before(bench: Bench, topic: str, offsets: dict[int, int]) -> None:
    cut = [ck.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for future in bench.admin.delete_records(cut).values():
        future.result()


def test_changelog_that_was_cut_is_rebuilt_from_the_sources(bench: Bench) -> None:
    bench.create({bench.changelog: {"cleanup.policy": "compact,delete"}})  # deleting records needs it
    ask(bench)
    work_off_and_stop(bench)
    whole = bench.ends(bench.changelog)
    delete_before(bench, bench.changelog, {0: whole[0] - 1, 1: whole[1]})  # one but for its last row, one to its end
    answer(bench)

    second = work_off(bench)
    rebuilt = [p for p in range(PARTITIONS) if f"{bench.changelog}[{p}] begins at" in second.log()]
    assert rebuilt == [0, 1], second.log()
    assert f"are rebuilt from {bench.prefix}answers[0]@0, {bench.prefix}questions[0]@0" in second.log()
    assert bench.joined().keys() == set(GROUPS)


def test_changelog_that_was_deleted_is_made_anew_and_rebuilt(bench: Bench) -> None:
    ask(bench)
    work_off_and_stop(bench)
    bench.admin.delete_topics([bench.changelog])[bench.changelog].result()
    wait_until(lambda: bench.changelog not in bench.admin.list_topics(timeout=300).topics)
    answer(bench)
    worker = work_off(bench)
    assert worker.log().count("(it was recreated or emptied). Its rows cannot be trusted") == PARTITIONS
    expected, joined = bench.expected(), bench.joined()
    assert joined.keys() == set(GROUPS)
    assert all(found == [expected[group]] for group, found in joined.items())


def test_retention_that_overtakes_a_worker_ends_it_with_5_and_so_the_next(bench: Bench) -> None:
    # aiokafka would go on at the first record that is left, in silence: under a worker that runs, and at its start
    ask(bench)
    worker = bench.start(STREAMWARD_KAFKA__SESSION_TIMEOUT_S="30")
    wait_until(lambda: bench.lag() == 0, worker.log)
    worker.process.send_signal(signal.SIGSTOP)
    ask(bench)
    time.sleep(5 * FETCH_WAIT_MS / 1000)  # the broker has answered the fetch that was under way: what follows is unread
    ask(bench)
    first = bench.ends(bench.prefix + "questions")[2] - 1
    delete_before(bench, bench.prefix + "questions", {2: first})
    worker.process.send_signal(signal.SIGCONT)
    worker.ends(with_code=5)
    after = bench.start(STREAMWARD_KAFKA__SESSION_TIMEOUT_S="30")
    after.ends(with_code=5)
    for told in (worker.log(), after.log()):
        assert f"{bench.prefix}questions[2]: group {bench.prefix}streams is at" in told
        assert f"the first record there is {first}: " in told
        assert told.rstrip().endswith("or accept their loss with `streamward admin offsets skip --group streams`")
