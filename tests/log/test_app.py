"""Stream workers of both drivers on a real broker: killed, stopped, crashed, and without a broker.

Every test runs tests/support/log/join_worker.py or join_loop.py in processes of their own, and compares what they wrote
with what the log says they should have written.
"""

from __future__ import annotations

import json
import re
import signal
import time

import pytest
from confluent_kafka import admin

from streams.worker.faust.faust_agent import MAX_EVENTS
from tests.support.log.join_bench import Bench, Traffic, bench, wait_until
from tests.support.log.join_worker import ANSWERS, PARTITIONS

__all__ = ["bench"]

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

SESSION = {"STREAMWARD_KAFKA__SESSION_TIMEOUT_S": "3"}
of_both_drivers = pytest.mark.parametrize("driver", ["faust", "loop"])


@of_both_drivers
def test_two_workers_killed_under_traffic_lose_nothing_and_keep_the_order(bench: Bench, driver: str) -> None:
    # Stock Faust loses events here: a restarted or remaining worker resumes partitions before it seeks them, commits
    # over records it never delivered, and the payload names an offset that is not the first.
    one, two = (bench.start(driver=driver, **SESSION) for _ in range(2))
    wait_until(lambda: sum(len(w.told()[-1]["owned"]) if w.told() else 0 for w in (one, two)) == PARTITIONS, one.log)
    traffic = Traffic(bench, 400)
    for worker, before_s, after_s in ((one, 1.5, 1.0), (two, 4.0, 0.5)):
        traffic.during(before_s)
        worker.process.kill()
        traffic.during(after_s)
        bench.start(driver=driver, **SESSION)
    traffic.judge()
    assert "are not in the log" not in bench.logs()


@of_both_drivers
def test_an_input_that_was_read_to_its_end_does_not_hold_up_the_other_after_a_restart(
    bench: Bench, driver: str
) -> None:
    # Quix Streams waited for a record of the idle input, since it had seen none of it in this process
    groups = [f"g{i}" for i in range(40)]
    for group in groups:
        bench.send("questions", group, {})
    bench.producer.flush()
    work_off(bench, driver)
    for group in groups:
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()
    work_off(bench, driver)
    assert bench.joined().keys() == set(groups)


@of_both_drivers
def test_partitions_that_move_while_changelogs_are_read_lose_nothing(bench: Bench, driver: str) -> None:
    # each worker of a cold start takes partitions from others in the middle of their changelogs
    bench.create({bench.changelog: {"cleanup.policy": "compact"}})
    groups = [f"g{i}" for i in range(40)]
    for group in groups:
        bench.send_group(group) if group == "g0" else bench.send("questions", group, {})
    bench.producer.flush()
    work_off(bench, driver)
    for number in range(400):  # 40 MB that a worker has to read before it may begin
        bench.producer.produce(bench.changelog, b"x" * 100_000, b"of no group", number % PARTITIONS)
        bench.producer.flush()
    for group in groups:
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()
    assigned, done = re.compile(r"for rebalance #|owns \d+ partitions"), ("reads on", "recovered from")  # Faust, ours
    first = bench.start(driver=driver, **SESSION)
    wait_until(lambda: bool(assigned.search(first.log())), first.log)
    first.process.send_signal(signal.SIGSTOP)
    assert not any(word in first.log() for word in done), "it was stopped too late"
    second = bench.start(driver=driver, **SESSION)
    wait_until(lambda: bool(assigned.search(second.log())), second.log)  # the group has given up the first one
    first.process.send_signal(signal.SIGCONT)
    third = bench.start(driver=driver, **SESSION)
    wait_until(lambda: bench.lag() == 0, bench.logs)
    bench.judge(groups)
    assert driver == "faust" or all(len(found) == 1 for found in bench.joined().values())  # of transactions
    assert [worker.process.poll() for worker in (second, third)] == [None, None], bench.logs()


def work_off(bench: Bench, driver: str) -> None:
    """Run a worker until all is committed."""
    worker = bench.start(driver=driver, **SESSION)
    wait_until(lambda: bench.lag() == 0, worker.log)
    worker.stop()
    worker.ends(with_code=0)


@of_both_drivers
def test_worker_waits_for_a_topic_that_the_broker_does_not_know_yet(bench: Bench, driver: str) -> None:
    # As where a broker is slow: it lists a topic seconds after it was created. The wait outlasts the session.
    topic = bench.prefix + "answers"
    bench.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in bench.admin.list_topics(timeout=300).topics)
    worker = bench.start(driver=driver, **SESSION)
    wait_until(lambda: bool(worker.told()) or "waiting" in worker.log(), worker.log)
    time.sleep(6)
    assert worker.process.poll() is None, worker.log()
    bench.create({topic: {}})
    worker.owns(set(range(PARTITIONS)))
    bench.send_group("g")
    bench.producer.flush()
    wait_until(lambda: bench.lag() == 0, worker.log)
    assert list(bench.joined()) == ["g"]
    worker.stop()
    worker.ends(with_code=0)


def test_worker_that_waits_for_a_topic_stops_at_once_when_it_is_told_to(bench: Bench) -> None:
    topic = bench.prefix + "answers"
    bench.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in bench.admin.list_topics(timeout=300).topics)
    worker = bench.start()
    wait_until(lambda: "waiting" in worker.log(), worker.log)
    worker.stop()
    worker.ends(with_code=0)  # one that has waited in vain ends with another code


@of_both_drivers
def test_sigterm_under_work_drains_and_nothing_is_written_twice(bench: Bench, driver: str) -> None:
    for i in range(300):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    for _ in range(2):  # stopped in the middle, twice
        worker, before = bench.start(driver=driver), bench.written("joined")
        # a signal ends who has not yet begun
        wait_until(lambda one=worker: any(told["owned"] for told in one.told()), worker.log)
        wait_until(lambda n=before: bench.written("joined") > min(n + 20, 299), worker.log)
        worker.stop()
        worker.ends(with_code=0)
    last = bench.start(driver=driver)
    wait_until(lambda: any(told["owned"] for told in last.told()) and bench.lag() == 0, last.log)
    last.stop()
    last.ends(with_code=0)
    joined = bench.joined()
    assert len(joined) == 300
    assert [group for group, found in joined.items() if len(found) != 1] == []


def test_an_agent_behind_another_of_its_topic_holds_up_neither_a_rebalance_nor_a_stop(bench: Bench) -> None:
    # Faust's own wait for what was taken up never ends here: the first agent is done with a record that the second has
    # only in its queue, and the queues are cleared before the wait.
    for i in range(100):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    one = bench.start(JOIN_LOOKER="1")
    wait_until(lambda: bench.written("joined") > 20, one.log)
    two = bench.start(JOIN_LOOKER="1")
    wait_until(lambda: any(told["owned"] for told in two.told()), two.log)
    told = len(one.told())
    wait_until(lambda: len(one.told()) > told + 5 or one.process.poll() is not None, one.log)  # it outlives the loss
    for worker in (one, two):
        worker.stop()
    for worker in (one, two):
        worker.ends(with_code=0)


def test_an_agent_of_many_takes_what_has_come_at_once_and_no_more_than_it_may(bench: Bench) -> None:
    for i in range(100):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    worker = bench.start()
    wait_until(lambda: bench.lag() == 0 and bool(worker.told()) and worker.told()[-1]["most"] > 0, worker.log)
    assert 1 < worker.told()[-1]["most"] <= MAX_EVENTS
    assert sorted(map(len, bench.joined().values())) == [1] * 100


@of_both_drivers
def test_event_that_cannot_be_used_goes_to_dead_letters_and_the_partition_moves_on(bench: Bench, driver: str) -> None:
    bench.send("questions", "g", {"bad": True})
    bench.send_group("g")
    bench.producer.flush()
    bench.start(driver=driver)
    wait_until(lambda: bench.lag() == 0)
    assert [json.loads(m.value()) for m in bench.records(bench.prefix + "rejected")] == [
        {"reason": "unusable", "text": "a bad event"}
    ]
    assert set(bench.joined()) == {"g"}


@of_both_drivers
def test_fault_in_a_handler_ends_the_worker_and_the_event_comes_again(bench: Bench, driver: str) -> None:
    bench.send("questions", "g", {"poison": True})
    bench.producer.flush()
    for _ in range(2):
        worker = bench.start(driver=driver)
        worker.ends(with_code=1)
        assert f"{bench.prefix}questions[" in worker.log() and "a fault in the program" in worker.log()
        assert bench.lag() == 1


@of_both_drivers
def test_worker_without_a_broker_says_so_and_exits_with_5(bench: Bench, driver: str) -> None:
    worker = bench.start(
        driver=driver, STREAMWARD_KAFKA__BOOTSTRAP="127.0.0.1:1", STREAMWARD_KAFKA__REQUEST_TIMEOUT_S="1"
    )
    worker.ends(with_code=5)
    assert "Kafka at 127.0.0.1:1 did not answer" in worker.log()
    assert "Traceback" not in worker.log()


@of_both_drivers
def test_changelog_with_the_wrong_partition_count_is_refused(bench: Bench, driver: str) -> None:
    bench.admin.create_topics([admin.NewTopic(bench.changelog, PARTITIONS + 1, 1)])[bench.changelog].result()
    worker = bench.start(driver=driver)
    worker.ends(with_code=2)
    assert f"has {PARTITIONS + 1} partitions, expected {PARTITIONS}" in worker.log()
