"""Groups of which the broker assigns the partitions (KIP-848), and the change from and to the classic protocol."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from streams.kafka import admin, group_protocol
from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings
from streams.tools import doctor
from tests.support import processes
from tests.support.factories import reward
from tests.support.log.join_bench import Bench, Traffic, bench, wait_until
from tests.support.log.join_worker import PARTITIONS

__all__ = ["bench"]

pytestmark = pytest.mark.kafka

CONSUMER = {"driver": "loop", "STREAMWARD_KAFKA__GROUP_PROTOCOL": "consumer"}
FAUST = {"driver": "faust"}
CLASSIC = {"driver": "loop", "STREAMWARD_KAFKA__SESSION_TIMEOUT_S": "1.5"}


def by(settings: Settings, protocol: str) -> Settings:
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"group_protocol": protocol})})


class Member:
    """A member of the group `scoring` that commits what it reads, and counts the partitions that come and go."""

    def __init__(self, settings: Settings) -> None:
        self.owned: set[TopicPartition] = set()
        self.moved: Counter[str] = Counter()
        self.values: list[int] = []
        outage = BrokerOutage(settings.kafka, threading.Event())
        on = OnAssignment(self._gained, self._lost, self._lost)
        self.consumer = GroupConsumer(settings, "scoring", ["rewards", "responses"], outage, on)

    def _gained(self, tps: list[TopicPartition]) -> None:
        assert not self.owned & set(tps)
        self.owned |= set(tps)
        self.moved["gained"] += len(tps)

    def _lost(self, tps: list[TopicPartition]) -> None:
        self.owned -= set(tps)
        self.moved["lost"] += len(tps)

    def poll(self) -> None:
        ends: dict[TopicPartition, int] = {}
        for record in self.consumer.poll(timeout_s=0.05):
            self.values.append(record.at.offset)
            ends[record.at.topic, record.at.partition] = record.at.offset + 1
        self.consumer.commit({tp: end for tp, end in ends.items() if tp in self.owned})


def share(settings: Settings, *members: Member) -> None:
    """Poll until the members own everything, in equal parts, and the same numbers of both topics."""
    of_each, deadline = 2 * settings.topics.partitions // len(members), time.monotonic() + 300
    while not all(len(member.owned) == of_each for member in members):
        assert time.monotonic() < deadline, [len(member.owned) for member in members]
        for member in members:
            member.poll()
    for member in members:
        names = {name for name, _ in member.owned}
        assert len({frozenset(number for of, number in member.owned if of == name) for name in names}) == 1


def test_a_change_moves_a_share_of_the_partitions_alone(made: Settings) -> None:
    settings, half = by(made, "consumer"), made.topics.partitions
    with ExitStack() as stack:
        first = Member(settings)
        stack.callback(first.consumer.close)
        share(settings, first)
        second = Member(settings)
        share(settings, first, second)
        assert first.moved == {"gained": 2 * half, "lost": half} and second.moved == {"gained": half}
        processes.write(settings, *(reward(task_id=f"t{n}", value=1.0) for n in range(40)))
        deadline = time.monotonic() + 300
        while len(first.values) + len(second.values) < 40:
            assert time.monotonic() < deadline
            first.poll(), second.poll()
        second.consumer.close()
        share(settings, first)
        assert first.moved == {"gained": 3 * half, "lost": half}
        for _ in range(5):
            first.poll()
        assert len(first.values) + len(second.values) == 40  # nothing again


@pytest.mark.parametrize(("old", "new"), [("classic", "consumer"), ("consumer", "classic")])
def test_a_group_goes_from_one_protocol_to_the_other_member_by_member(made: Settings, old: str, new: str) -> None:
    first, second = Member(by(made, old)), Member(by(made, old))
    share(made, first, second)
    third = Member(by(made, new))
    first.consumer.close()
    share(made, second, third)
    fourth = Member(by(made, new))
    second.consumer.close()
    share(made, third, fourth)
    third.consumer.close()
    fourth.consumer.close()


def test_topics_apply_writes_the_session_into_the_groups_and_doctor_sees_it(made: Settings) -> None:
    settings = by(made, "consumer")
    told = [finding for finding in doctor.groups(settings) if finding.state == "warning"]
    assert not told, told  # the embedded node's default is that of kafka.session_timeout_s
    kafka = settings.kafka.model_copy(update={"session_timeout_s": 9.0})
    settings = settings.model_copy(update={"kafka": kafka})
    assert "replaced after 6000 ms, not 9000 ms" in next(iter(doctor.groups(settings))).what
    admin.apply_topics(settings)
    assert [finding.state for finding in doctor.groups(settings)] == ["ok"]


def test_doctor_names_a_broker_that_lacks_it(made: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_protocol, "PROTOCOLS", "no.such.setting")
    (finding,) = doctor.groups(by(made, "consumer"))
    assert finding.state == "failed" and "kafka.group_protocol" in finding.do
    assert [*doctor.groups(made)] == []
    member = Member(by(made, "consumer"))  # the old way then
    share(made, member)
    assert not member.consumer._is_incremental
    member.consumer.close()


@pytest.mark.kills
def test_workers_of_the_loop_share_by_the_broker_under_traffic(bench: Bench) -> None:
    """One joins, one is frozen for longer than its session and wakes, one is killed, and one is of the old protocol."""
    first = bench.start(**CONSUMER)
    wait_until(lambda: bool(first.told()) and len(first.told()[-1]["owned"]) == PARTITIONS, first.log)
    traffic = Traffic(bench, 300)
    second = bench.start(**CONSUMER)
    traffic.during(4)
    second.process.send_signal(signal.SIGSTOP)
    traffic.during(9)
    second.process.send_signal(signal.SIGCONT)
    traffic.during(3)
    first.process.kill()
    third = bench.start(**CLASSIC)
    traffic.judge()
    for worker in (second, third):
        worker.stop()
        worker.ends(with_code=0)


@pytest.mark.kills
@pytest.mark.parametrize("order", [(FAUST, CONSUMER), (CONSUMER, FAUST)], ids=["faust-first", "loop-first"])
def test_a_worker_by_the_broker_and_one_of_faust_wait_for_each_other(
    bench: Bench, order: tuple[dict[str, str], ...]
) -> None:
    first = bench.start(**order[0])
    first.owns(set(range(PARTITIONS)))
    traffic = Traffic(bench, 300)
    traffic.during(1)
    second = bench.start(**order[1])
    wait_until(lambda: "takes over when they have left" in second.log(), second.log)
    traffic.during(2)
    first.process.kill()
    second.owns(set(range(PARTITIONS)))
    traffic.judge()
    second.stop()
    second.ends(with_code=0)
