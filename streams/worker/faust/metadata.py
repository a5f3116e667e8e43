"""Wait for metadata that a broker does not have yet.

    leader of the group ──► a topic without metadata ──► ask again, MISSING_S at most ──► assign all, or exit 75
    no node is reached ──► a pause ──► ask again

A broker that is slow, or has just started, may not list a topic that exists. A leader of stock Faust assigns none of
such a topic's partitions, logs a warning and never checks again: a group of workers that all look healthy and read
nothing.

aiokafka's fetcher asks for the leaders of its partitions until it knows them, without a pause where no node was
reached. Without this one, a worker whose only node was killed takes a whole core from the node that starts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance
from aiokafka.errors import KafkaError
from faust.assignor.partition_assignor import PartitionAssignor

from streams.kafka.retry import MISSING_S
from streams.processes.watchdog import end_process
from streams.worker.faust.membership import ASK_AGAIN_S
from streams.worker.faust.pinned_sources import STOCK

log = logging.getLogger("streamward.faust")


class UnknownTopics(Exception):
    """The metadata of the group's leader lack topics that members read."""


def _perform_assignment(self: Any, cluster: Any, member_metadata: Mapping[str, Any]) -> Any:
    """In place of PartitionAssignor._perform_assignment: raise UnknownTopics unless every topic can be assigned."""
    subscribed = {topic for member in member_metadata.values() for topic in member.subscription}
    if unknown := sorted(topic for topic in subscribed if not cluster.partitions_for_topic(topic)):
        raise UnknownTopics(f"the broker does not know {', '.join(unknown)}, which the workers read")
    return STOCK[PartitionAssignor, "_perform_assignment"](self, cluster, member_metadata)


async def _on_join_leader(self: Any, response: Any) -> Any:
    """In place of CoordinatorGroupRebalance._on_join_leader: wait for unknown topics, MISSING_S at most.

    The group may consider a leader dead that waits for longer than its session timeout; it then joins again.
    Returns None if the worker stops meanwhile; aiokafka then decides what to do next.
    """
    coordinator, loop = self._coordinator, asyncio.get_running_loop()
    began_s: float | None = None
    while not coordinator._closing.done() and self._subscription.active:
        try:
            return await STOCK[CoordinatorGroupRebalance, "_on_join_leader"](self, response)
        except KafkaError as exc:
            if not isinstance(exc.__cause__, UnknownTopics):
                raise
            if began_s is None:
                began_s = loop.time()
                log.warning("%s: waiting, %g s at most", exc.__cause__, MISSING_S)
            elif loop.time() - began_s > MISSING_S:
                end_process(f"{exc.__cause__}, after {MISSING_S:g} s")
        await asyncio.wait([coordinator._closing], timeout=ASK_AGAIN_S)
        await coordinator._client.force_metadata_update()
    return None


async def _metadata_update(self: Any, cluster_metadata: Any, topics: Any) -> bool:
    """In place of AIOKafkaClient._metadata_update: pause, as after any other failure, where no node has answered."""
    updated = await STOCK[AIOKafkaClient, "_metadata_update"](self, cluster_metadata, topics)
    if not updated:
        await asyncio.sleep(self._retry_backoff)
    return bool(updated)


REPLACED: dict[type, tuple[Any, ...]] = {
    PartitionAssignor: (_perform_assignment,),
    CoordinatorGroupRebalance: (_on_join_leader,),
    AIOKafkaClient: (_metadata_update,),
}
