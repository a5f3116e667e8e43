"""A membership, and aiokafka's own objects under it; only the broker below them is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import CommitFailedError, UnknownMemberIdError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streams.processes import watchdog
from streams.settings.model import Settings
from streams.worker.faust import fixes, membership as membership_module, pinned_sources
from streams.worker.faust.faust_app import build_app
from streams.worker.faust.membership import REPLACED, Membership, membership

CHANGELOG = TopicPartition("streams-open-groups-changelog", 0)
OK, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER, LOADING, OTHER_PROTOCOL = 0, 27, 25, 14, 23


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds since boot, as the membership of a worker that just started sees them; its session lasts 6 s."""
    build_app(Settings(), worker_name="unit")
    now = [1000.0]
    monkeypatch.setattr(membership, "clock", lambda: now[0])
    yield now
    membership.reset(float("inf"))


class Ended(Exception):
    """With the exit code the process would have ended with."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process ends by an exception, so that what stands behind the end is not run."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(watchdog.os, "_exit", end)
    yield


def member(*errors: int) -> Any:
    """A group coordinator of aiokafka that is in generation 3; the broker answers with these error codes."""
    coordinator = GroupCoordinator.__new__(GroupCoordinator)
    answers = iter(errors)

    async def send(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(error_code=next(answers), topics=[])

    coordinator._client = SimpleNamespace(send=send)
    coordinator.coordinator_id, coordinator.group_id, coordinator.member_id = 1, "streams", "me"
    coordinator.generation = 3
    coordinator._closing = asyncio.get_running_loop().create_future()
    coordinator._rejoin_needed_fut = asyncio.get_running_loop().create_future()
    coordinator._commit_lock = asyncio.Lock()
    return coordinator


class Outbox:
    """A sender of aiokafka with one changelog row in hand; what leaves it is counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.accumulator = MessageAccumulator(None, 1000, 0, 60)
        self.sender = Sender(
            self,
            acks=-1,
            txn_manager=None,
            message_accumulator=self.accumulator,
            retry_backoff_ms=1,
            request_timeout_ms=9,
        )

    async def fill(self) -> None:
        await self.accumulator.add_message(CHANGELOG, b"k", b"row", 1)

    async def send(self, *_: Any, **__: Any) -> Any:
        self.sent += 1
        return SimpleNamespace(API_VERSION=3, topics=[(CHANGELOG.topic, [(CHANGELOG.partition, OK, 7, -1)])])

    def flush(self) -> Awaitable[None]:
        batch = self.accumulator._batches[CHANGELOG].popleft()
        self.sender._in_flight.add(1)
        self.sender._muted_partitions.add(CHANGELOG)
        batch.drain_ready()
        return asyncio.ensure_future(self.sender._send_produce_req(1, {CHANGELOG: batch}))


def test_every_function_that_is_replaced_is_installed_and_guarded_by_its_hash(now: list[float]) -> None:
    for owner, functions in REPLACED.items():
        for function in functions:
            assert getattr(owner, function.__name__) is function
            assert (owner, function.__name__) in pinned_sources.READ_AND_CHECKED
    assert set(REPLACED) <= set(fixes.FIXES)


def test_membership_is_in_doubt_once_the_last_answer_is_older_than_the_session() -> None:
    now = [0.0]
    one = Membership(6, clock=lambda: now[0])
    now[0] = 100
    assert not one.in_doubt()  # not a member yet
    one.join(now[0])
    now[0] = 106
    assert not one.in_doubt()
    now[0] = 106.1
    assert one.in_doubt()
    one.confirm(106)
    assert not one.in_doubt()


async def test_answer_of_the_group_counts_from_when_it_was_asked_for(now: list[float]) -> None:
    # stopped while the answer was on its way: the group may have expired the member since
    coordinator = member(OK, OK)
    await coordinator._send_req(SyncGroupRequest("streams", 3, "me", "", []))
    send = coordinator._client.send

    async def slow(*_: Any, **__: Any) -> Any:
        now[0] += 8
        return await send()

    coordinator._client.send = slow
    assert await coordinator._do_heartbeat()
    assert membership.in_doubt()


async def test_a_group_of_workers_of_the_other_driver_is_asked_again_until_it_is_free(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # aiokafka ends for good at this answer; at LOADING it asks again
    monkeypatch.setattr(membership_module, "ASK_AGAIN_S", 0.0)
    coordinator = member(OTHER_PROTOCOL, OK)
    join = JoinGroupRequest("streams", 6000, 12000, "", None, "consumer", [])
    assert (await coordinator._send_req(join)).error_code == LOADING
    assert membership.waits and not membership.lost
    await coordinator._send_req(SyncGroupRequest("streams", 3, "me", "", []))
    assert not membership.waits


@pytest.mark.parametrize("error", [OK, REBALANCE_IN_PROGRESS])
async def test_heartbeat_that_is_answered_confirms_the_membership(now: list[float], error: int) -> None:
    membership.join(now[0])
    now[0] += 100  # a broker that was away
    assert membership.in_doubt()
    assert await member(error)._do_heartbeat()
    assert not membership.in_doubt() and not membership.lost


async def test_heartbeat_that_is_rejected_ends_the_membership_until_the_next_join(now: list[float]) -> None:
    membership.join(now[0])
    coordinator = member(UNKNOWN_MEMBER, OK)
    assert not await coordinator._do_heartbeat()
    assert membership.lost and membership.epoch == 1
    await coordinator._send_req(SyncGroupRequest("streams", 4, "me", "", []))
    assert not membership.lost and membership.epoch == 1


async def test_member_that_leaves_by_itself_has_lost_nothing(now: list[float]) -> None:
    # what a stopping worker still has to send, it sends
    membership.join(now[0])
    coordinator = member()
    coordinator._closing.set_result(None)
    coordinator.reset_generation()
    assert not membership.lost


async def test_row_waits_for_the_group_to_answer_and_is_sent_then(now: list[float]) -> None:
    # a broker that was away for longer than the session: nobody took over
    outbox = Outbox()
    membership.join(now[0])
    await outbox.fill()
    now[0] += 100
    sending = outbox.flush()
    await asyncio.sleep(0.1)
    assert outbox.sent == 0
    membership.confirm(now[0])
    await sending
    assert outbox.sent == 1


@pytest.mark.parametrize("joined_again", [False, True])
async def test_row_of_a_membership_that_was_lost_is_not_sent_and_the_process_ends(
    now: list[float], exits: None, joined_again: bool
) -> None:
    outbox = Outbox()
    membership.join(now[0])
    await outbox.fill()
    now[0] += 100
    membership.lose()
    if joined_again:
        membership.join(now[0])
    with pytest.raises(Ended, match="75"):
        await outbox.flush()
    assert outbox.sent == 0


async def test_commit_of_a_worker_that_is_no_member_is_not_sent(now: list[float]) -> None:
    # a group whose members are all gone takes commits without a generation, also those that go back
    coordinator = member()
    coordinator.generation = OffsetCommitRequest.DEFAULT_GENERATION_ID
    offsets = {TopicPartition("tasks", 0): OffsetAndMetadata(3, "")}
    with pytest.raises(UnknownMemberIdError):
        await coordinator._do_commit_offsets(None, offsets)
    with pytest.raises(CommitFailedError, match="already rebalanced"):
        await coordinator.commit_offsets(None, offsets)
