"""Each Faust fix, on Faust's own objects; only the broker below them is played.

`Broker` stands where aiokafka's thread would: it holds offsets per partition and a read position, and can do what was
seen on a real broker in traces: hand records over while Faust looks away, so that they are lost on the way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import faust
import pytest
import uvloop
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import ConsumerStoppedError, MessageSizeTooLargeError
from faust.types import TP
from faust.types.tuples import FutureMessage, PendingMessage

from streams.errors import LogError, SettingsError
from streams.kafka.topic_ids import TopicIds
from streams.processes import watchdog
from streams.settings.model import Settings
from streams.worker.faust import fixes, metadata, pinned_sources
from streams.worker.faust.faust_app import App, build_app, table
from streams.worker.faust.seek import changelogs_of, delivery_of

SOURCE = TP("tasks", 0)
CHANGELOG = TP("streamward.streams-open-groups-changelog", 0)


class Broker:
    """The part of AIOKafkaConsumerThread that the consumer calls, over offsets in memory."""

    def __init__(self, log: Mapping[TP, list[int]], committed: Mapping[TP, int | None] | None = None) -> None:
        self.log = {tp: list(offsets) for tp, offsets in log.items()}
        self.ends = {tp: max(offsets, default=-1) + 1 for tp, offsets in log.items()}
        self.committed = dict(committed or {})
        self.positions = dict.fromkeys(log, 0)
        self.notes: dict[TP, str] = {}
        self.app: Any = None
        self.seeks: list[dict[TP, int]] = []
        self.asked: list[Any] = []
        self.on_committed: Callable[[], None] = lambda: None

    async def getmany(self, active: Any, timeout: float) -> dict[TP, list[Any]]:
        self.asked.append(active)
        await asyncio.sleep(0)
        return {tp: found for tp in self.log if (not active or tp in active) and (found := self.take(tp, 3))}

    def take(self, tp: TP, count: int) -> list[Any]:
        """Hand over the next records of a partition: the position moves, whatever becomes of them."""
        offsets = [offset for offset in self.log[tp] if offset >= self.positions[tp]][:count]
        if offsets:
            self.positions[tp] = offsets[-1] + 1
        else:
            self.positions[tp] = max(self.positions[tp], self.ends[tp])
        return [
            SimpleNamespace(
                topic=tp.topic, partition=tp.partition, offset=offset, timestamp=0, timestamp_type=0, headers=(),
                key=b"k", value=b"v", checksum=None, serialized_key_size=1, serialized_value_size=1,
            )
            for offset in offsets
        ]  # fmt: skip

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        self.seeks.append(dict(partitions))
        self.positions.update(partitions)

    async def seek_to_committed(self) -> dict[TP, int | None]:
        self.on_committed()
        for tp, offset in self.committed.items():
            if offset:  # as aiokafka: it seeks nowhere for None and for 0
                self.positions[tp] = offset
        changelogs_of(self.app).notes = dict(self.notes)
        return {tp: self.committed.get(tp) for tp in self.log}

    async def commit(self, offsets: Mapping[TP, int]) -> bool:
        self.committed.update(offsets)
        self.notes |= {tp: changelogs_of(self.app).note(tp.partition) for tp in offsets}
        return True

    def topic_partitions(self, topic: str) -> int:
        return 1 + max(tp.partition for tp in self.log if tp.topic == topic)

    async def earliest_offsets(self, *tps: TP) -> dict[TP, int]:
        return {tp: min(self.log[tp], default=self.ends[tp]) for tp in tps}

    async def highwaters(self, *tps: TP) -> dict[TP, int]:
        return {tp: self.ends[tp] for tp in tps}

    async def position(self, tp: TP) -> int:
        return self.positions[tp]

    def highwater(self, tp: TP) -> int:
        return self.ends[tp]

    def assignment(self) -> set[TP]:
        return set(self.log)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes the process would have ended with."""
    codes: list[int] = []
    monkeypatch.setattr(watchdog.os, "_exit", codes.append)
    return codes


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(TopicIds, "ask", lambda self: None)  # no broker is there to be asked
    app = build_app(Settings(), worker_name="unit")
    table(app, "open-groups", 1)
    yield app


def consumer_on(app: App, broker: Broker) -> Any:
    app.consumer = app._new_consumer()
    app.consumer._thread, broker.app = broker, app
    app.topics._acking_topics.add(SOURCE.topic)
    app.consumer_generation_id = 1
    app.consumer._set_active_tps(set(broker.log))
    return app.consumer


async def read(consumer: Any, rounds: int = 6) -> list[int]:
    return [message.offset for _ in range(rounds) async for _, message in consumer.getmany(timeout=1.0)]


# --- the guard -------------------------------------------------------------------------------------------------------


def test_installed_faust_is_the_one_the_fixes_were_written_for() -> None:
    pinned_sources.check_sources()


def test_changed_faust_is_refused_with_the_name_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    key = (pinned_sources.Consumer, "getmany")
    monkeypatch.setitem(pinned_sources.READ_AND_CHECKED, key, "000000000000")
    with pytest.raises(SettingsError, match=r"consumer\.Consumer\.getmany \(sha256 4b168d84882a\).*faust-streaming 0"):
        pinned_sources.check_sources()


def test_every_function_that_is_replaced_is_guarded_by_its_hash() -> None:
    replaced = {(owner, f.__name__) for owner, functions in fixes.FIXES.items() for f in functions}
    assert replaced <= set(pinned_sources.READ_AND_CHECKED)


# --- delivery --------------------------------------------------------------------------------------------------------


async def test_records_that_were_lost_on_the_way_are_read_again_in_order(app: App) -> None:
    # aiokafka hands 3..5 to a call that nobody waits for any more, its position is 6 then, and stock Faust goes on
    broker = Broker({SOURCE: list(range(9))})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert await read(consumer, rounds=1) == [0, 1, 2]
    broker.take(SOURCE, 3)
    assert await read(consumer) == [3, 4, 5, 6, 7, 8]
    assert delivery_of(consumer).holes.get(SOURCE) is None


async def test_a_partition_that_was_added_to_a_topic_is_refused_before_anything_is_read(app: App) -> None:
    added = TP(f"{app.settings.topics.prefix}tasks", app.settings.topics.partitions)
    consumer = consumer_on(app, Broker({added: [0, 1]}))
    with pytest.raises(SettingsError, match=rf"has a partition {added.partition}, expected {added.partition} "):
        await consumer.perform_seek()


async def test_records_lost_before_the_first_one_are_read_again_as_well(app: App) -> None:
    broker = Broker({SOURCE: list(range(9))}, committed={SOURCE: 4})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    broker.take(SOURCE, 2)
    assert await read(consumer) == [4, 5, 6, 7, 8]


async def test_hole_in_the_log_is_passed_and_committed(app: App) -> None:
    # markers of transactions lie at 1002 and from 1004 to 1100
    broker = Broker({SOURCE: [1000, 1001, 1003, 1101]}, committed={SOURCE: 1000})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    messages = [message for _ in range(8) async for _, message in consumer.getmany(timeout=1.0)]
    assert [message.offset for message in messages] == [1000, 1001, 1003, 1101]
    for message in messages:
        message.tracked = True
        assert consumer.ack(message)
    assert await consumer.commit()
    assert broker.committed[SOURCE] == 1102


async def test_records_lost_at_the_end_of_a_partition_are_read_again(app: App) -> None:
    # no later record shows the hole: stock Faust leaves them until the next restart, if it has not committed over them
    broker = Broker({SOURCE: list(range(6))})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert await read(consumer, rounds=1) == [0, 1, 2]
    broker.take(SOURCE, 3)
    for _ in range(2):
        await fixes.look_behind(consumer)
    assert await read(consumer) == [3, 4, 5]


async def test_markers_at_the_end_of_a_partition_are_read_twice_and_committed(app: App) -> None:
    consumer, broker, messages = await ready(app, [0, 1])
    broker.ends[SOURCE] = broker.positions[SOURCE] = 4
    for message in messages:
        consumer.ack(message)
    for _ in range(4):
        await fixes.look_behind(consumer)
        broker.take(SOURCE, 3)
    await consumer.commit()
    assert broker.committed[SOURCE] == 4


async def test_nothing_more_is_delivered_once_the_flow_stops(app: App) -> None:
    broker = Broker({SOURCE: list(range(6))})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    seen = []
    async for _, message in consumer.getmany(timeout=1.0):
        seen.append(message.offset)
        consumer.stop_flow()
    assert seen == [0]
    consumer.resume_flow()
    assert await read(consumer) == [1, 2, 3, 4, 5]  # the two that were dropped come again


async def test_empty_set_of_partitions_is_not_taken_for_all_of_them(app: App) -> None:
    broker = Broker({SOURCE: [0, 1]})
    consumer = consumer_on(app, broker)
    assert await consumer._getmany(set(), 1.0) == {}
    assert broker.asked == []


async def test_partitions_paused_while_a_fetch_waits_do_not_turn_it_into_a_fetch_of_all(app: App) -> None:
    # Faust's set is live: emptied while the call waits, it would be "no filter" when aiokafka looks at it again
    broker = Broker({SOURCE: [0, 1], CHANGELOG: [0]})
    consumer = consumer_on(app, broker)
    consumer._set_active_tps({CHANGELOG})
    fetch = asyncio.ensure_future(consumer._getmany(consumer._get_active_partitions(), 1.0))
    await asyncio.sleep(0)
    consumer.pause_partitions({CHANGELOG})
    assert set(await fetch) == {CHANGELOG}


# --- seeking ---------------------------------------------------------------------------------------------------------


async def test_partition_without_a_commit_starts_at_the_earliest_offset(app: App) -> None:
    other = TP("tasks", 1)
    broker = Broker({SOURCE: [5, 6], other: [3, 4]}, committed={SOURCE: None, other: 0})
    broker.positions = {SOURCE: 7, other: 5}  # where the fetcher happened to be
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert broker.positions == {SOURCE: 5, other: 3}
    assert sorted(await read(consumer)) == [3, 4, 5, 6]


async def test_commit_beyond_the_end_is_refused_with_the_way_out(app: App) -> None:
    consumer = consumer_on(app, Broker({SOURCE: [0]}, committed={SOURCE: 900}))
    with pytest.raises(LogError, match=r"tasks\[0\].*has committed 900, but the partition ends at 1"):
        await consumer.perform_seek()


async def test_commit_below_the_first_record_is_refused_with_the_choice(app: App) -> None:
    # aiokafka would start at 7, in silence
    consumer = consumer_on(app, Broker({SOURCE: [7, 8]}, committed={SOURCE: 3}))
    told = r"tasks\[0\]: group streamward.streams is at 3.* is 7: 4 records.*offsets skip --group streams`"
    with pytest.raises(LogError, match=told):
        await consumer.perform_seek()


async def test_records_deleted_under_a_reader_end_it(app: App) -> None:
    broker = Broker({SOURCE: list(range(9))})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert await read(consumer, rounds=1) == [0, 1, 2]
    broker.log[SOURCE] = [7, 8]
    broker.positions[SOURCE] = 7  # as aiokafka does when the broker says that 3 is out of range
    with pytest.raises(LogError, match=r"tasks\[0\].*is at 3.*first record there is 7: 4 records"):
        await read(consumer)


async def test_records_deleted_up_to_the_end_under_a_reader_end_it(app: App) -> None:
    # no later record shows the hole
    broker = Broker({SOURCE: list(range(9))})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert await read(consumer, rounds=1) == [0, 1, 2]
    broker.log[SOURCE] = []
    broker.positions[SOURCE] = 9
    with pytest.raises(LogError, match=r"is at 3.*first record there is 9: 6 records"):
        await fixes.look_behind(consumer)


# --- changelogs that lost records ------------------------------------------------------------------------------------


def both(changelog: list[int], *, end: int | None = None) -> Broker:
    """A source of nine records, five of them committed when the changelog held 0 to 3."""
    broker = Broker({SOURCE: list(range(9)), CHANGELOG: changelog}, committed={SOURCE: 5})
    broker.notes = {SOURCE: f'{{"v":1,"changelogs":{{"{CHANGELOG.topic}":[0,4]}}}}'}
    if end is not None:
        broker.ends[CHANGELOG] = end
    return broker


@pytest.mark.parametrize(("changelog", "end"), [([0, 1, 2, 3], 4), ([0, 3, 7], 8), ([0], 9)])
async def test_whole_changelog_is_gone_on_from(app: App, changelog: list[int], end: int) -> None:
    # compacted until it has gaps, and until its end holds no record any more
    broker = both(changelog, end=end)
    await consumer_on(app, broker).perform_seek()
    assert broker.positions[SOURCE] == 5


@pytest.mark.parametrize(
    ("changelog", "why"),
    [([0, 1], "ends at 2, but 3 had been written"), ([2, 3], "begins at 2"), ([], "recreated or emptied")],
)
async def test_changelog_that_lost_records_is_rebuilt_from_the_sources_once(
    app: App, changelog: list[int], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = both(changelog)
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    assert broker.positions[SOURCE] == 0 and broker.committed[SOURCE] == 0
    assert why in caplog.text and "are rebuilt from tasks[0]@0" in caplog.text
    messages = [message async for _, message in consumer.getmany(timeout=1.0) if message.topic == "tasks"]
    assert messages[0].offset == 0
    messages[0].tracked = True
    consumer.ack(messages[0])
    await consumer.commit()
    assert broker.committed[SOURCE] == 1
    await consumer.perform_seek()  # a crash in the middle of the rebuild, which continues from there
    assert broker.positions[SOURCE] == 1


async def test_changelog_whose_sources_were_cut_says_what_cannot_be_rebuilt(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    broker = both([])
    broker.log[SOURCE] = [3, 4, 5, 6]
    await consumer_on(app, broker).perform_seek()
    assert broker.committed[SOURCE] == broker.positions[SOURCE] == 3
    assert "cannot be rebuilt; it begins at 3" in caplog.text


async def test_changelog_that_goes_back_under_the_worker_ends_the_process(app: App, exits: list[int]) -> None:
    await ready(app, [0])
    for offset in (7, 0):
        publish(app).set_result(SimpleNamespace(partition=0, offset=offset))
        await asyncio.sleep(0)
    assert exits == [75]


@pytest.mark.parametrize("path", ["_resume_streams", "on_recovery_completed"])
async def test_partitions_are_sought_before_any_record_may_come_in(app: App, path: str) -> None:
    broker = Broker({SOURCE: list(range(9))}, committed={SOURCE: 4})
    consumer = consumer_on(app, broker)
    consumer.pause_partitions({SOURCE})
    consumer.stop_flow()
    open_at_seek: list[Any] = []
    broker.on_committed = lambda: open_at_seek.extend(
        [*consumer._active_partitions, *([app.flow_control] if app.flow_control.is_active() else [])]
    )
    app._fetcher.maybe_start = _nothing  # type: ignore[method-assign]
    app.assignor._assignment = SimpleNamespace(standbys={}, actives={})
    app.rebalancing = True
    app._rebalancing_sensor_state = {}
    await getattr(app.tables.recovery, path)(generation_id=1)
    assert open_at_seek == []
    assert consumer._active_partitions == {SOURCE}
    assert consumer.flow_active and app.flow_control.is_active() and not app.rebalancing
    assert await read(consumer) == [4, 5, 6, 7, 8]


async def _nothing() -> None: ...


async def test_rebalance_that_came_in_between_lets_no_record_in(app: App) -> None:
    broker = Broker({SOURCE: [0]})
    consumer = consumer_on(app, broker)
    consumer.pause_partitions({SOURCE})
    broker.on_committed = lambda: setattr(app, "consumer_generation_id", 2)
    await app.tables.recovery._resume_streams(generation_id=1)
    assert consumer._active_partitions == set()


# --- committing ------------------------------------------------------------------------------------------------------


async def ready(app: App, offsets: list[int]) -> tuple[Any, Broker, list[Any]]:
    broker = Broker({SOURCE: offsets})
    consumer = consumer_on(app, broker)
    await consumer.perform_seek()
    messages = [message for _ in range(6) async for _, message in consumer.getmany(timeout=1.0)]
    for message in messages:
        message.tracked = True  # as a stream does when it takes one up
    return consumer, broker, messages


async def test_offset_behind_one_that_is_not_done_is_not_committed(app: App) -> None:
    consumer, broker, messages = await ready(app, list(range(6)))
    for message in [messages[0], messages[1], messages[4]]:
        consumer.ack(message)
    await consumer.commit()
    assert broker.committed[SOURCE] == 2
    await consumer._add_gap(SOURCE, 2, 4)  # stock Faust fills the hole here, and commits 5
    await consumer.commit()
    assert broker.committed[SOURCE] == 2
    assert not consumer._gap[SOURCE]
    for message in messages[2:4]:
        consumer.ack(message)
    await consumer.commit()
    assert broker.committed[SOURCE] == 5


async def test_message_of_an_earlier_generation_or_that_no_stream_took_up_is_not_done(app: App) -> None:
    consumer, broker, messages = await ready(app, [0, 1])
    messages[0].tracked = False
    assert not consumer.ack(messages[0])
    app.consumer_generation_id = 2
    assert not consumer.ack(messages[1])
    await consumer.commit()
    assert broker.committed.get(SOURCE) is None


# --- publishing ------------------------------------------------------------------------------------------------------


def publish(app: App) -> FutureMessage:
    """Put one changelog record into the producer's buffer, which nobody empties."""
    channel = next(iter(app.tables.values())).changelog_topic
    pending = PendingMessage(
        channel=channel, key=b"k", value=b"v", partition=0, timestamp=None, headers=None, key_serializer=None,
        value_serializer=None, callback=None,
    )  # fmt: skip
    fut = FutureMessage(pending)
    app.producer.buffer.put(fut)
    return fut


async def test_offset_is_committed_only_after_the_publishes_before_it_are_acknowledged(app: App) -> None:
    # stock Faust waits 0.1 s, and commits
    consumer, broker, messages = await ready(app, [0, 1])
    fut = publish(app)
    consumer.ack(messages[0])
    commit = asyncio.ensure_future(consumer.commit())
    await asyncio.sleep(0.3)
    assert broker.committed.get(SOURCE) is None
    fut.set_result(SimpleNamespace(partition=0, offset=0))
    assert await commit
    assert broker.committed[SOURCE] == 1


async def test_publish_that_failed_ends_the_process(
    app: App, exits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    await ready(app, [0])
    publish(app).set_exception(TimeoutError("no leader"))
    await asyncio.sleep(0)
    assert exits == [75]
    assert "open-groups-changelog was not published: TimeoutError('no leader')" in caplog.text


async def test_publish_that_the_client_refuses_ends_the_process_and_says_what_is_too_large(
    app: App, exits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    # aiokafka raises at once for a record that is too large; stock Faust's buffer dies of it, and every commit hangs
    await ready(app, [0])
    fut = publish(app)
    app.producer._producer = SimpleNamespace(send=_refuse)
    app.producer._started.set()
    await app.producer.buffer._send_pending(fut)
    assert exits == [75]
    assert "The key b'k' has 2 bytes, and a restart makes the same of it: raise topics.max_record_bytes" in caplog.text


async def _refuse(*_: Any, **__: Any) -> None:
    raise MessageSizeTooLargeError("5000000 bytes")


async def test_stopping_producer_does_not_wait_for_ever(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "STOP_FLUSH_S", 0.05)
    await ready(app, [0])
    publish(app)
    app.producer.buffer._stopped.set()
    await app.producer.buffer.flush()


# --- recovery --------------------------------------------------------------------------------------------------------


def recovering(app: App, broker: Broker, *, have: int, need: int) -> Any:
    consumer_on(app, broker)
    recovery = app.tables.recovery
    recovery.in_recovery = app.in_recovery = True
    recovery.active_offsets[CHANGELOG], recovery.active_highwaters[CHANGELOG] = have, need
    return recovery


async def test_recovery_ends_when_the_last_offsets_of_a_changelog_hold_no_record(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    # records up to 6, then markers of transactions up to 9: Faust waits for a record at 9
    monkeypatch.setattr(fixes, "CHANGELOG_QUIET_S", 0.01)
    broker = Broker({CHANGELOG: [4, 6]})
    broker.ends[CHANGELOG] = broker.positions[CHANGELOG] = 10
    recovery = recovering(app, broker, have=6, need=9)
    ended = asyncio.ensure_future(recovery.signal_recovery_end.wait())
    watch = asyncio.ensure_future(fixes._end_recovery_at_the_end(recovery, app.consumer))
    await until(lambda: bool(broker.seeks))
    assert recovery.in_recovery  # first it reads again, in case records were lost on the way
    broker.take(CHANGELOG, 3)
    await asyncio.gather(watch, ended)
    assert broker.seeks == [{CHANGELOG: 7}]
    assert not recovery.need_recovery() and not recovery.in_recovery


async def test_recovery_goes_on_when_the_second_read_finds_records(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "CHANGELOG_QUIET_S", 0.01)
    broker = Broker({CHANGELOG: [4, 6, 9]})
    recovery = recovering(app, broker, have=4, need=9)
    broker.positions[CHANGELOG] = 10  # 6 and 9 were handed over, and dropped
    watch = asyncio.ensure_future(fixes._end_recovery_at_the_end(recovery, app.consumer))
    await until(lambda: bool(broker.seeks))
    assert [message.offset async for _, message in app.consumer.getmany(1.0)] == []  # 6 is not 5: read again
    assert [message.offset async for _, message in app.consumer.getmany(1.0)] == [6, 9]
    assert recovery.in_recovery and recovery.active_offsets[CHANGELOG] == 4
    app.consumer_generation_id = 2
    await watch


async def test_recovery_starts_behind_the_last_record_that_was_applied(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker({CHANGELOG: [4, 6]})
    recovery = recovering(app, broker, have=4, need=6)
    await recovery._seek_offsets(app.consumer, {CHANGELOG}, recovery.active_offsets, "standby")
    assert broker.positions[CHANGELOG] == 5


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


def test_fixes_are_in_place_after_build_app(app: faust.App) -> None:
    for owner, functions in fixes.FIXES.items():
        assert [getattr(owner, function.__name__) for function in functions] == list(functions)


class Cluster:
    """What a leader knows of the cluster."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1} if topic == "tasks" else None


class Member:
    subscription = ("tasks", "rewards")


async def test_record_for_which_there_is_room_is_delivered_without_a_task(app: App) -> None:
    async def deliver() -> str:
        return "delivered"

    suspended = asyncio.Event()
    won = await app.consumer.wait_first(deliver(), suspended.wait())
    assert (won.results, won.stopped, len(asyncio.all_tasks())) == (["delivered"], False, 1)


@pytest.mark.parametrize("first", ["room", "suspended"])
async def test_record_for_which_there_is_no_room_waits_until_there_is_or_the_flow_is_suspended(
    app: App, first: str
) -> None:
    delivered = []
    events = {"room": asyncio.Event(), "suspended": asyncio.Event()}

    async def deliver() -> None:
        await asyncio.sleep(0)
        try:
            await events["room"].wait()
        except asyncio.CancelledError:
            delivered.append("cancelled")
            raise
        delivered.append("delivered")

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(app.consumer.wait_first(deliver(), events["suspended"].wait()))
        await asyncio.sleep(0.01)
        assert not waiting.done() and not delivered
        events[first].set()
    await asyncio.sleep(0.01)
    assert delivered == (["delivered"] if first == "room" else ["cancelled"])


def test_leader_that_misses_a_topic_does_not_assign_the_rest() -> None:
    with pytest.raises(metadata.UnknownTopics, match="the broker does not know rewards, which the workers read"):
        metadata._perform_assignment(None, Cluster(), {"a worker": Member()})


# --- 8. uvloop for the consumer's thread too


def test_the_worker_and_its_consumers_thread_have_loops_of_uvloop_and_nobody_else(app: faust.App) -> None:
    async def consumers_thread() -> Any:
        return app.consumer._new_consumer_thread()

    loop = fixes.new_event_loop()
    thread = loop.run_until_complete(consumers_thread())
    others = asyncio.new_event_loop()
    assert isinstance(loop, uvloop.Loop) and isinstance(thread.thread_loop, uvloop.Loop)
    assert not isinstance(others, uvloop.Loop)
    for each in (loop, thread.thread_loop, others):
        each.close()


# --- 10. Answer every call of the consumer's thread


class Unconnected(fixes.ConsumerThread):
    """A consumer's thread without a consumer, that ends in two steps: it takes no more calls, and it is over."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.takes_no_more, self.may_end = threading.Event(), threading.Event()

    async def on_start(self) -> None: ...

    async def on_thread_stop(self) -> None:
        await super().on_thread_stop()
        self.takes_no_more.set()
        await asyncio.to_thread(self.may_end.wait)

    async def double(self, number: int) -> int:
        return 2 * number


async def test_a_call_that_the_consumers_thread_no_longer_takes_is_refused_and_nothing_is_committed(app: App) -> None:
    thread = Unconnected(app.consumer, loop=asyncio.get_running_loop(), thread_loop=fixes.new_event_loop())
    await thread.start()
    assert await thread.call_thread(thread.double, 21) == 42
    thread._stopped_set()
    await asyncio.to_thread(thread.takes_no_more.wait)
    commit = asyncio.create_task(thread.commit({SOURCE: 1}))
    await asyncio.sleep(0)
    thread.may_end.set()
    assert await asyncio.wait_for(commit, 60) is False
    thread._thread.join()
    assert await thread.commit({SOURCE: 1}) is False
    with pytest.raises(ConsumerStoppedError):
        await thread.call_thread(thread.double, 21)


# --- an unreachable broker --------------------------------------------------------------------------------------------


def test_an_unreachable_broker_is_asked_for_metadata_after_a_pause(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetcher that knows no leader asks again at once, and a node that is gone refuses in microseconds."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def ask() -> bool:
        client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1", retry_backoff_ms=250)
        monkeypatch.setattr(metadata.asyncio, "sleep", paused)
        return bool(await client._metadata_update(client.cluster, []))

    assert asyncio.run(ask()) is False
    assert pauses == [0.25]
