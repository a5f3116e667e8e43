"""The loop worker on a real broker: killed, stopped, crashed, beside others, and in place of a Faust worker.

As tests/log/test_app.py, with the same join in a loop (tests/support/log/join_loop.py): what it wrote is compared with
what the log says it should have written.
"""

from __future__ import annotations

import json
import random
import signal
import time
from itertools import cycle
from typing import Any

import pytest
from confluent_kafka import admin

from streams.kafka.record import partition_of
from streams.worker.fence import generation_of
from tests.support.log.join_bench import Bench, bench, wait_until
from tests.support.log.join_worker import ANSWERS, PARTITIONS

__all__ = ["bench"]

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

SESSION = {"STREAMWARD_KAFKA__SESSION_TIMEOUT_S": "1.5"}
LOOP, FAUST = {"driver": "loop", **SESSION}, {"driver": "faust", **SESSION}


class Traffic:
    """Groups whose parts are written mixed, some of them twice, at so many a second."""

    RATE = 250
    OPEN = 200

    def __init__(self, bench: Bench, groups: int) -> None:
        self.bench, self.rng = bench, random.Random(7)
        self.groups = [f"g{i}" for i in range(groups)]
        self.waiting: list[tuple[str, str, dict[str, Any]]] = []
        for group in self.groups:
            parts = [("questions", group, {})] + [("answers", group, {"slot": str(slot)}) for slot in range(ANSWERS)]
            self.waiting += parts + ([self.rng.choice(parts)] if self.rng.random() < 0.33 else [])
        self.window: list[tuple[str, str, dict[str, Any]]] = []

    def during(self, seconds: float) -> None:
        """Send for so many seconds, or until all is sent."""
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds and (self.waiting or self.window):
            while sent < passed * self.RATE and (self.waiting or self.window):
                while self.waiting and len(self.window) < self.OPEN:
                    self.window.append(self.waiting.pop(0))
                self.bench.send(*self.window.pop(self.rng.randrange(len(self.window))))
                sent += 1
            time.sleep(0.01)
        self.bench.producer.flush()

    def judge(self) -> None:
        """Send the rest, wait until it is read, and compare what was written with what the log says."""
        self.during(600)
        wait_until(lambda: self.bench.lag() == 0, lambda: logs(self.bench))
        expected, joined = self.bench.expected(), self.bench.joined()
        assert len(expected) == len(self.groups)
        assert [group for group in expected if group not in joined] == []
        assert [group for group, found in joined.items() if any(one != expected[group] for one in found)] == []
        assert "exit code 75" not in logs(self.bench)


def logs(bench: Bench) -> str:
    return "\n".join(path.read_text() for path in bench.folder.glob("*.err"))


def test_two_loop_workers_killed_under_traffic_lose_nothing_and_keep_the_order(bench: Bench) -> None:
    one, two = bench.start(**LOOP), bench.start(**LOOP)
    wait_until(lambda: sum(len(w.told()[-1]["owned"]) if w.told() else 0 for w in (one, two)) == PARTITIONS, one.log)
    traffic = Traffic(bench, 400)
    traffic.during(1.5)
    one.process.kill()
    traffic.during(1)
    bench.start(**LOOP)
    traffic.during(3)
    two.process.kill()
    bench.start(**LOOP)
    traffic.judge()


def test_a_worker_of_one_driver_replaces_one_of_the_other_under_traffic(bench: Bench) -> None:
    """In both directions, told to end and killed; the next one always waits already, and takes over."""
    drivers = cycle([FAUST, LOOP])
    active = bench.start(**next(drivers))
    wait_until(lambda: bool(active.told()) and len(active.told()[-1]["owned"]) == PARTITIONS, active.log)
    traffic = Traffic(bench, 300)
    for how in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        waiting = bench.start(**next(drivers))
        traffic.during(1.2)
        wait_until(lambda one=waiting: "of another driver" in one.log(), waiting.log)
        active.process.send_signal(how)
        active.ends(with_code=0 if how == signal.SIGTERM else -signal.SIGKILL)
        active = waiting
        wait_until(lambda one=active: bool(one.told()) and len(one.told()[-1]["owned"]) == PARTITIONS, active.log)
    traffic.judge()
    active.stop()
    active.ends(with_code=0)


def test_sigterm_under_work_settles_and_nothing_is_written_twice(bench: Bench) -> None:
    for i in range(300):
        bench.send_group(f"g{i}")
    bench.producer.flush()
    for _ in range(2):  # stopped in the middle, twice
        worker = bench.start(**LOOP)
        wait_until(lambda one=worker: any(told["owned"] for told in one.told()), worker.log)
        worker.stop()
        worker.ends(with_code=0)
    last = bench.start(**LOOP)
    # those before may have left it nothing to do, and a signal ends who has not yet begun
    wait_until(lambda: any(told["owned"] for told in last.told()) and bench.lag() == 0, last.log)
    last.stop()
    last.ends(with_code=0)
    joined = bench.joined()
    assert len(joined) == 300
    assert [group for group, found in joined.items() if len(found) != 1] == []


def test_thousands_of_open_groups_are_back_after_a_kill(bench: Bench) -> None:
    groups = [f"g{i}" for i in range(3000)]
    for group in groups:
        bench.send("questions", group, {})
    bench.producer.flush()
    first = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, first.log)
    first.process.kill()
    first.process.wait()
    for group in groups:
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, second.log)
    assert "reads on: 3000 rows" in second.log()
    assert bench.joined().keys() == set(groups)


def test_a_record_that_cannot_be_used_holds_up_nothing(bench: Bench) -> None:
    bench.send("questions", "g", {"bad": True})
    bench.send_group("g")
    bench.producer.flush()
    worker = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, worker.log)
    assert [json.loads(m.value())["text"] for m in bench.records(bench.prefix + "rejected")] == ["a bad event"]
    assert set(bench.joined()) == {"g"}


def test_a_fault_in_a_handler_ends_the_worker_and_the_record_comes_again(bench: Bench) -> None:
    bench.send("questions", "g", {"poison": True})
    bench.producer.flush()
    for _ in range(2):
        worker = bench.start(**LOOP)
        worker.ends(with_code=1)
        assert f"{bench.prefix}questions[" in worker.log() and "a fault in the program" in worker.log()
        assert bench.lag() == 1


def test_a_loop_worker_without_a_broker_says_so_and_exits_with_5(bench: Bench) -> None:
    nowhere = {"STREAMWARD_KAFKA__BOOTSTRAP": "127.0.0.1:1", "STREAMWARD_KAFKA__REQUEST_TIMEOUT_S": "1"}
    worker = bench.start(**LOOP, **nowhere)
    worker.ends(with_code=5)
    assert "Kafka at 127.0.0.1:1 did not answer" in worker.log()
    assert "Traceback" not in worker.log()


def test_a_changelog_with_the_wrong_partition_count_is_refused_by_the_loop(bench: Bench) -> None:
    bench.admin.create_topics([admin.NewTopic(bench.changelog, PARTITIONS + 1, 1)])[bench.changelog].result()
    worker = bench.start(**LOOP)
    worker.ends(with_code=2)
    assert f"has {PARTITIONS + 1} partitions, expected {PARTITIONS}" in worker.log()


def test_a_changelog_that_was_emptied_is_rebuilt_from_the_log(bench: Bench) -> None:
    """Half of each group is read when its rows go; without them, the other half would never complete it."""
    for i in range(20):
        bench.send("questions", f"g{i}", {})
    bench.producer.flush()
    first = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, first.log)
    first.stop()
    first.ends(with_code=0)
    bench.admin.delete_topics([bench.changelog])[bench.changelog].result()
    for i in range(20):
        for slot in range(ANSWERS):
            bench.send("answers", f"g{i}", {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, second.log)
    assert "cannot be trusted, and are rebuilt from" in second.log()
    assert len(bench.joined()) == 20


def test_a_zombie_loop_worker_writes_nothing_over_its_successor(bench: Bench) -> None:
    """One record is in its hands when it is stopped; its successor works on that and on more of the group."""
    one, two = bench.start(**LOOP), bench.start(**LOOP)
    wait_until(lambda: all(w.told() and len(w.told()[-1]["owned"]) == PARTITIONS // 2 for w in (one, two)), one.log)
    key = next(k for k in map(str, range(99)) if partition_of(k, PARTITIONS) in one.told()[-1]["owned"])
    bench.send("questions", key, {"pause_s": 1.5})
    bench.producer.flush()
    wait_until(lambda: one.told()[-1]["working"] == 1, one.log)
    one.process.send_signal(signal.SIGSTOP)
    for slot in range(ANSWERS - 1):
        bench.send("answers", key, {"slot": str(slot)})
    bench.producer.flush()
    two.owns(set(range(PARTITIONS)))
    wait_until(lambda: bench.lag() == 0, two.log)
    one.process.send_signal(signal.SIGCONT)
    told = len(one.told())
    wait_until(lambda: one.process.poll() is not None or any(t["owned"] for t in one.told()[told + 1 :]), one.log)
    for worker in (one, two):
        worker.process.kill()
        worker.process.wait()
    bench.send("answers", key, {"slot": str(ANSWERS - 1)})
    bench.producer.flush()
    last = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, last.log)
    expected, joined = bench.expected(), bench.joined()
    assert joined.keys() == expected.keys() == {key}
    assert [found for found in joined[key] if found != expected[key]] == []


def test_stale_rows_behind_newer_ones_are_skipped_and_covered_again(bench: Bench) -> None:
    groups = [f"g{i}" for i in range(20)]
    for group in groups:
        bench.send("questions", group, {})
    bench.producer.flush()
    first = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, first.log)
    first.stop()
    first.ends(with_code=0)
    forgotten = json.dumps({"question": None, "answers": {}, "closed": False}).encode()
    for group in groups:
        at = partition_of(group, PARTITIONS)
        bench.producer.produce(bench.changelog, forgotten, group.encode(), at, headers={"generation": b"0"})
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, second.log)
    assert second.log().count("comes after rows of a newer one") == len(groups)
    assert bench.joined() == {group: [made] for group, made in bench.expected().items()}
    newest = {m.key(): generation_of(m.headers()) for m in bench.records(bench.changelog)}
    assert set(newest.values()) == {max(filter(None, newest.values()))}


def test_a_loop_that_stands_still_ends_with_75_and_says_where(bench: Bench) -> None:
    bench.send("questions", "g", {"pause_s": 3600})
    bench.producer.flush()
    worker = bench.start(**LOOP, JOIN_FROZEN_S="2")
    worker.ends(with_code=75)
    assert "time.sleep(pause)" in worker.log()
