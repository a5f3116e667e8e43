"""Ask a broker that is unreachable for its metadata ten times a second, not thousands of times.

    no leader known ──► aiokafka's fetcher asks for metadata ──► refused at once ──► it asks again ──► …
                                                                          └──► and now after a pause

aiokafka pauses after every other failure. Without this one, a worker whose only node was killed takes a whole core from
whatever starts the node again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.client import AIOKafkaClient

from streams.worker.faust.pinned_sources import STOCK


async def _metadata_update(self: Any, cluster_metadata: Any, topics: Any) -> bool:
    """In place of AIOKafkaClient._metadata_update: pause, as after any other failure, where nobody has answered."""
    updated = await STOCK[AIOKafkaClient, "_metadata_update"](self, cluster_metadata, topics)
    if not updated:
        await asyncio.sleep(self._retry_backoff)
    return bool(updated)


REPLACED: dict[type, tuple[Any, ...]] = {AIOKafkaClient: (_metadata_update,)}
