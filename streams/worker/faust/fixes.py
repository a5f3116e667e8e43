"""Faust 0.15.3 on a real broker, without losing events.

    aiokafka ──► deliver, contiguous ──► agent ──► publishes, acknowledged ──► commit, contiguous
        ▲ a hole: seek back, read again                 │ failed                   │ stuck
        └───────────────────────────────                └──► exit 75 ◄─────────────┘

Stock Faust resumes partitions before it seeks them, hands aiokafka a live set that means "everything" when it is empty,
commits over records it never delivered, and commits before the publishes of an event are acknowledged. Under kills and
rebalances that silently loses events. Each section below is one fix: its reason, then the functions that replace
Faust's. `install` replaces them only if their source is the one that the fix was written for (`pinned_sources.py`).

`header_names.py` reads headers with names that are not text. `metadata.py` waits for missing metadata of a broker.
`seek.py` decides where a partition starts and what a commit notes about the changelogs; `membership.py` and
`faust_table.py` limit the writes of a worker that was stopped beyond its session timeout.

The fixes assume one consumer per process, at-least-once delivery, no standby replicas and no windowed tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import faust
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError, MessageSizeTooLargeError
from faust.tables.recovery import Recovery
from faust.transport.consumer import Consumer, ThreadDelegateConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer as AIOKafkaDriver
from faust.transport.producer import ProducerBuffer
from faust.types import TP
from mode.services import WaitResults
from mode.utils.futures import maybe_set_exception

from streams.errors import LogError
from streams.processes.watchdog import end_process
from streams.worker.faust import header_names, metadata
from streams.worker.faust.delivery import contiguous
from streams.worker.faust.membership import REPLACED, membership
from streams.worker.faust.pinned_sources import STOCK, check_sources
from streams.worker.faust.seek import _commit, changelogs_of, delivery_of, perform_seek, refuse_cut, seek_to_committed
from streams.worker.faust.stall_watch import StallWatch

log = logging.getLogger("streamward.faust")

CHANGELOG_QUIET_S = 0.5
"""How often a recovering worker checks whether its changelogs end before the offset Faust waits for."""

# --- 1. Deliver what is contiguous, and read again what is not -------------------------------------------------------
# aiokafka moves its position when it hands records over, Faust may then drop them (paused, flow stopped, another
# generation), and both continue after the hole. So every record of a source partition must follow the one before. A
# hole is read again from its start, and accepted (transaction markers) only if a second read shows the same hole; one
# that retention made ends the worker. Changelogs are compacted, so only the first record after a seek can be checked.


async def getmany(self: Any, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
    """In place of Consumer.getmany."""
    records, active = await self._wait_next_records(timeout)
    generation = self.app.consumer_generation_id
    if records is None or self.should_stop:
        return
    delivery = delivery_of(self)
    read_again: dict[TP, int] = {}

    def current() -> bool:
        return bool(self.flow_active) and generation == self.app.consumer_generation_id

    delivery.delivering = bool(records)
    try:
        for tp, record in self.scheduler.iterate(records):
            if not current():
                break  # `expected` stays, so the rest is read again after the next seek
            if tp in read_again or not (active is None or tp in active or tp in self._buffered_partitions):
                continue
            admitted = delivery.admit(tp, record.offset, changelog=self._is_changelog_tp(tp))
            if admitted is None:
                read_again[tp] = delivery.expected[tp]
                log.info("%s[%d]@%d came where %d was expected: reading again", *tp, record.offset, read_again[tp])
            elif admitted:
                yield tp, self._to_message(tp, record)
    finally:
        delivery.delivering = False
    if read_again and current():
        try:
            await refuse_cut(self, read_again)
            await self._thread.seek_wait(read_again)  # the thread's own: `_doubted` must survive this seek
        except LogError:
            raise
        except Exception as exc:  # a partition was revoked meanwhile; the next owner reads from the last commit
            log.warning("reading again from %s failed: %r", read_again, exc)


async def seek_wait(self: Any, partitions: Mapping[TP, int]) -> None:
    """In place of ThreadDelegateConsumer.seek_wait, which table recovery uses for its changelogs."""
    for tp, offset in partitions.items():
        delivery_of(self).position(tp, offset)
    await self._thread.seek_wait(partitions)


async def look_behind(consumer: Any) -> None:
    """Find records that were lost at the end of a partition, where no later one reveals the hole. Called once a
    second."""
    delivery = delivery_of(consumer)
    if delivery.delivering or not consumer.flow_active:
        return
    for tp, expected in list(delivery.expected.items()):
        if consumer._is_changelog_tp(tp) or tp not in consumer.assignment():
            continue  # `expected` keeps partitions that another worker has now
        if (consumer.highwater(tp) or 0) <= expected:
            continue
        position = await consumer.position(tp) or 0
        if position <= expected or delivery.delivering:
            continue  # still to be fetched, or on its way
        try:
            await refuse_cut(consumer, {tp: expected})
        except KafkaError:
            continue  # the broker does not answer; try again at the next look
        verdict = delivery.passed(tp, position)
        if verdict is None:
            await consumer._thread.seek_wait({tp: expected})


# --- 2. Give aiokafka a frozen set of partitions ---------------------------------------------------------------------
# Faust passes its live set of active partitions. When it becomes empty while a call waits (changelogs are paused at the
# end of recovery), aiokafka reads it as "no filter" and returns records of paused partitions, which Faust drops.


async def _getmany(self: Any, active_partitions: Iterable[TP] | None, timeout: float) -> Any:
    """In place of ThreadDelegateConsumer._getmany."""
    if active_partitions is not None:
        active_partitions = frozenset(active_partitions)
        if not active_partitions:
            return {}
    return await self._thread.getmany(active_partitions, timeout)


# --- 3. Seek first, clear the queues, only then let records in -------------------------------------------------------
# Both resume paths of Faust resume the partitions before they seek, so records from the old position are delivered, and
# acknowledged, in between. Besides, aiokafka does not seek where nothing, or 0, was committed.


async def _let_records_in(recovery: Any, generation_id: int) -> None:
    app, consumer = recovery.app, recovery.app.consumer
    assignment = consumer.assignment()
    if app.consumer_generation_id != generation_id:
        return
    if assignment:
        await recovery._wait(consumer.perform_seek(), timeout=app.conf.broker_request_timeout)
        if app.consumer_generation_id != generation_id:
            return
    app.flow_control.resume()  # clears the queues of the streams
    if assignment:
        consumer.resume_partitions({tp for tp in assignment if not recovery._is_changelog_tp(tp)})
    recovery.tables.on_actives_ready()
    if not app.assignor.assigned_standbys():
        recovery.tables.on_standbys_ready()
    recovery.completed.set()
    app.on_rebalance_end()  # before the first record: an event handled before this counts as interrupted
    consumer.resume_flow()
    await app._fetcher.maybe_start()
    log.info("reading %d partitions, generation %d", len(assignment), generation_id)


async def _resume_streams(self: Any, generation_id: int = 0) -> None:
    """In place of Recovery._resume_streams: the path of an app without tables."""
    await self.app.on_rebalance_complete.send()
    await _let_records_in(self, generation_id)


async def on_recovery_completed(self: Any, generation_id: int = 0) -> None:
    """In place of Recovery.on_recovery_completed: the path of an app with tables."""
    await self.app.on_rebalance_complete.send()
    self._set_recovery_ended()
    for table in self.tables.values():
        await table.on_recovery_completed(self.actives_for_table[table], self.standbys_for_table[table])
    await _let_records_in(self, generation_id)


# --- 4. Commit what is contiguous from the committed offset, and was worked on ---------------------------------------
# Faust invents "gaps" for offsets it has not seen and commits over them; and its pure Python stream acknowledges
# messages that it skips as being of an earlier generation.


def _new_offset(self: Any, tp: TP) -> int | None:
    """In place of Consumer._new_offset: the next offset to commit, or None."""
    acked, base = self._acked[tp], self._committed_offset[tp]
    holes = delivery_of(self).holes.get(tp, [])
    if base is None:
        return None
    acked.sort()
    offset, used, filled = contiguous(base, acked, holes)
    self._acked_index[tp].difference_update(acked[:used])
    del acked[:used], holes[:filled]
    return offset if offset > base else None


async def _add_gap(self: Any, tp: TP, offset_from: int, offset_to: int) -> None:
    """In place of Consumer._add_gap: holes are accepted in `Delivery.admit`, nowhere else."""


def ack(self: Any, message: Any) -> bool:
    """In place of Consumer.ack: a message that no stream took, or of an earlier generation, is not done."""
    if message.tracked and message.generation_id == self.app.consumer_generation_id:
        return bool(STOCK[Consumer, "ack"](self, message))
    message.acked = True
    self._unacked_messages.discard(message)
    return False


# --- 5. Commit after every publish issued before it was acknowledged -------------------------------------------------
# Faust's flush gives up after 100 ms, so an offset may be committed before the changelog records of its event are
# written; and a publish that failed goes unnoticed.

STOP_FLUSH_S = 5.0
"""How long a stopping producer waits for publishes. What is not acknowledged by then has no committed offset either."""

_unacknowledged: WeakKeyDictionary[Any, set[asyncio.Future[Any]]] = WeakKeyDictionary()


def put(self: Any, fut: Any) -> None:
    """In place of ProducerBuffer.put: remember the publish until it is acknowledged."""
    waiting = _unacknowledged.setdefault(self, set())
    waiting.add(fut)

    def on_settled(_: Any) -> None:
        waiting.discard(fut)
        if fut.cancelled():
            return
        topic = fut.message.channel.get_topic_name()
        if (failure := fut.exception()) is not None:
            end_process(_not_published(fut.message, failure))
        elif topic in self.app.tables.changelog_topics:
            contradiction = changelogs_of(self.app).acknowledged((topic, fut.result().partition), fut.result().offset)
            if contradiction is not None:
                end_process(f"{contradiction}: the changelog was cut or recreated while this worker ran")

    fut.add_done_callback(on_settled)
    STOCK[ProducerBuffer, "put"](self, fut)


async def _send_pending(self: Any, fut: Any) -> None:
    """In place of ProducerBuffer._send_pending: a record that the client refuses (too large) has failed, too."""
    try:
        await STOCK[ProducerBuffer, "_send_pending"](self, fut)
    except Exception as exc:  # whatever it is, the record is not in the log
        end_process(_not_published(fut.message, exc))


def _not_published(message: Any, failure: BaseException) -> str:
    """Return the message about a record that is not in the log. A too large one stays so after a restart."""
    message_text = f"a record for {message.channel.get_topic_name()} was not published: {failure!r}"
    if not any(isinstance(cause, MessageSizeTooLargeError) for cause in (failure, failure.__cause__)):
        return message_text
    size = len(message.key or b"") + len(message.value or b"")
    return (
        f"{message_text}. The key {message.key!r:.100} has {size} bytes, and a restart makes the same of it: raise "
        "topics.max_record_bytes, and max.message.bytes of that topic"
    )


async def flush(self: Any) -> None:
    """In place of ProducerBuffer.flush, which Consumer._commit_offsets awaits before it commits."""
    waiting = list(_unacknowledged.get(self, ()))
    if not waiting:
        return
    _, late = await asyncio.wait(waiting, timeout=STOP_FLUSH_S if self.should_stop else None)
    if late:
        log.warning("stopping with %d publishes unacknowledged; their events will be processed again", len(late))


# --- 6. Recover from changelogs that end early -----------------------------------------------------------------------
# Recovery waits until it has read the last offset of each changelog. A changelog whose last offsets hold no record
# (transaction markers, records deleted or expired meanwhile) keeps it waiting for ever.


async def _seek_offsets(self: Any, consumer: Any, tps: set[TP], offsets: Any, title: str) -> None:
    """In place of Recovery._seek_offsets: to the record after the last one applied, and watch for the end."""
    await consumer.seek_wait({tp: offsets[tp] + 1 for tp in tps})
    if title == "active":
        self.add_future(_end_recovery_at_the_end(self, consumer))


async def _end_recovery_at_the_end(recovery: Any, consumer: Any) -> None:
    """End the recovery once aiokafka is past the last offset of every changelog, twice, and nothing comes."""
    generation = recovery.app.consumer_generation_id
    before: Any = None
    read_again: dict[TP, int] = {}
    while not recovery.should_stop:
        await recovery.sleep(CHANGELOG_QUIET_S)
        if recovery.should_stop or not recovery.in_recovery or generation != recovery.app.consumer_generation_id:
            return
        offsets, ends = recovery.active_offsets, recovery.active_highwaters
        unfinished = {tp: offsets[tp] for tp, left in recovery.active_remaining().items() if left > 0}
        busy = delivery_of(consumer).delivering or not recovery.tables.changelog_queue.empty()
        try:
            at_end = {tp for tp in unfinished if (await consumer.position(tp) or 0) > ends[tp]}
        except IllegalStateError:  # revoked meanwhile
            return
        now = (unfinished, at_end)
        if busy or not at_end or now != before:
            before = now
            continue
        before = None
        doubted = {tp: offsets[tp] + 1 for tp in at_end if read_again.get(tp) != offsets[tp]}
        if doubted:
            read_again |= {tp: offsets[tp] for tp in doubted}
            await consumer.seek_wait(doubted)
            continue
        for tp in at_end:
            log.warning("%s[%d]: no record from %d up to the end, %d (read twice)", *tp, offsets[tp] + 1, ends[tp])
            offsets[tp] = ends[tp]
        if not recovery.need_recovery():
            recovery.flush_buffers()
            recovery._set_recovery_ended()
            recovery.signal_recovery_end.set()
            return


# --- 7. Read committed records, and seek without waiting for a long poll ---------------------------------------------
# Without transactions of its own Faust reads those of others uncommitted: aborted tasks came, which no other reader
# gets. A partition ends for everybody at its last stable offset.
# Faust has aiokafka wait 1.5 s in a fetch that finds nothing, and a seek takes effect when that fetch returns: each
# rebalance, with its two seeks, took 3 s longer than it had to.

FETCH_WAIT_MS = 200


def _create_worker_consumer(self: Any, transport: Any) -> Any:
    """In place of AIOKafkaConsumerThread._create_worker_consumer."""
    consumer = STOCK[AIOKafkaConsumerThread, "_create_worker_consumer"](self, transport)
    consumer._fetch_max_wait_ms = FETCH_WAIT_MS
    consumer._isolation_level = "read_committed"
    return consumer


def highwater(self: Any, tp: TP) -> int | None:
    """In place of AIOKafkaConsumerThread.highwater: the last stable offset; None before the first fetch."""
    offset: int | None = self._ensure_consumer().last_stable_offset(tp)
    return offset


# --- 8. uvloop for the consumer's thread too -------------------------------------------------------------------------
# Faust gives that thread one of asyncio's own loops. An event loop policy would do, but is deprecated.


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop loop; where there is no uvloop (Windows), one of asyncio's, which is slower."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _new_consumer_thread(self: Any) -> Any:
    """In place of aiokafka's Consumer._new_consumer_thread."""
    thread = ConsumerThread(self, loop=self.loop, thread_loop=new_event_loop(), beacon=self.beacon)
    thread._close_thread_loop_on_stop = True
    return thread


# --- 9. Deliver a record without four tasks -------------------------------------------------------------------------
# Faust puts each record into the queues in a task of its own, beside three that wait for a suspended flow, a stop and a
# crash: a fifth of the worker's time. Nearly always there is room and nothing to wait for.


async def wait_first(self: Any, *waits: Any, timeout: float | None = None) -> Any:
    """In place of Service.wait_first: begin a coroutine at once, and make tasks only if it has to wait."""
    first, *rest = waits
    if asyncio.iscoroutine(first):
        try:
            waits = (_AlreadyStarted(first, first.send(None)), *rest)
        except StopIteration as done:
            for other in rest:
                other.close()
            return WaitResults([first], [done.value], False)
    return await STOCK[Consumer, "wait_first"](self, *waits, timeout=timeout)


class _AlreadyStarted(Awaitable[Any]):
    """The rest of a coroutine that was begun by hand and waits for `future`."""

    def __init__(self, coroutine: Any, future: Any) -> None:
        self._coroutine, self._future = coroutine, future

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            while True:
                try:
                    step, value = self._coroutine.send, (yield self._future)
                except BaseException as exc:  # whatever is thrown in is for the coroutine, a cancellation too
                    step, value = self._coroutine.throw, exc
                self._future = step(value)
        except StopIteration as done:
            return done.value


# --- 10. Answer every call of the consumer's thread ------------------------------------------------------------------
# A crash ends that thread at once, and then stops the worker, which commits what is done. A call that comes after the
# thread has emptied its queue for the last time is never answered: the worker waited in that commit until it was ended
# with 75, which asks for a restart, in place of the crash's own exit code.


class ConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]
    """The thread in which a worker's consumer runs. A call that it ends without answering is refused."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unanswered: set[asyncio.Future[Any]] = set()

    async def call_thread(self, fun: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        """Run `fun` in the thread and return its result; ConsumerStoppedError if the thread ends before."""
        answer: asyncio.Future[Any] = self.parent_loop.create_future()
        self._unanswered.add(answer)
        try:
            if self._shutdown.is_set():
                raise ConsumerStoppedError
            await self.method_queue.call(answer, fun, *arguments, **options)
            return await answer
        except RuntimeError:
            if not self.thread_loop.is_closed():
                raise
            raise ConsumerStoppedError from None
        finally:
            self._unanswered.discard(answer)

    def set_shutdown(self) -> None:
        """Mark that the thread takes no more calls; called in it, after its last call."""
        super().set_shutdown()
        self.parent_loop.call_soon_threadsafe(self._refuse)

    def _refuse(self) -> None:
        for answer in self._unanswered:
            maybe_set_exception(answer, ConsumerStoppedError())

    async def commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit the next offset of each partition; False, and nothing is committed, once the thread has ended."""
        try:
            return bool(await super().commit(offsets))
        except ConsumerStoppedError:
            return False


# --- 11. Install -----------------------------------------------------------------------------------------------------

FIXES: dict[type, tuple[Any, ...]] = {
    Consumer: (getmany, perform_seek, ack, _add_gap, _new_offset, wait_first),
    ThreadDelegateConsumer: (seek_wait, _getmany),
    Recovery: (_resume_streams, on_recovery_completed, _seek_offsets),
    ProducerBuffer: (put, flush, _send_pending),
    AIOKafkaDriver: (_new_consumer_thread,),
    AIOKafkaConsumerThread: (_create_worker_consumer, highwater, seek_to_committed, _commit),
    **header_names.REPLACED,
    **metadata.REPLACED,
    **REPLACED,
}


def install(app: faust.App, *, hole_s: float = 10, stuck_s: float = 60, frozen_s: float = 30) -> None:
    """Put the fixes in place of Faust's functions, in this whole process, and give `app` its watchdog.

    `hole_s`, `stuck_s` and `frozen_s` are the seconds a watchdog waits before it ends the process (see StallWatch).
    Raises SettingsError if Faust, aiokafka or mode are not the versions the fixes were written for.
    """
    check_sources()
    membership.reset(app.conf.broker_session_timeout)
    for owner, functions in FIXES.items():
        for function in functions:
            setattr(owner, function.__name__, function)
    header_names.keep_bytes()
    app.add_dependency(StallWatch(app, look_behind, hole_s=hole_s, stuck_s=stuck_s, frozen_s=frozen_s))
