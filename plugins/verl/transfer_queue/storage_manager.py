"""TransferQueue's storage manager over the log: rows of a TensorDict to samples and back.

    put_data ──► the users' keys (asked of the controller) ──► one record a sample, acknowledged ──► controller is told
    save_checkpoint ──► streamward.json: which saved state of the queue      load_checkpoint ──► restored to that

A sample carries its key, its partition and its tags, so that the controller's state can be made again of the log alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq.asyncio
from tensordict import TensorDict
from transfer_queue.metadata import BatchMeta, extract_field_schema
from transfer_queue.storage.managers.base import (
    TQ_DATA_UPDATE_RESPONSE_TIMEOUT,
    KVStorageManager,
    StorageManagerFactory,
)
from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType, ZMQServerInfo

from plugins.verl.queue_opener import RestoredQueue
from plugins.verl.sample_queue import FieldValue
from plugins.verl.transfer_queue.storage_client import BACKEND, SampleRow, StreamwardStorageClient
from plugins.verl.transfer_queue.values import decode, encode
from schemas.file_text import json_object

CHECKPOINT = "streamward.json"
PACKED = "msgpack"
"""The one key of tags that JSON cannot hold; their bytes are in hexadecimal."""

log = logging.getLogger("streamward.samples")


@StorageManagerFactory.register(BACKEND)
class StreamwardStorageManager(KVStorageManager):  # type: ignore[misc]  # TransferQueue has no types
    """The samples of one process of TransferQueue, in the log."""

    storage_client: StreamwardStorageClient

    def __init__(
        self, controller_info: ZMQServerInfo, config: dict[str, Any], zmq_context: zmq.asyncio.Context | None = None
    ) -> None:
        super().__init__(controller_info, {**config, "client_name": "StreamwardStorageClient"}, zmq_context)

    async def put_data(
        self, data: TensorDict, metadata: BatchMeta, data_parser: Callable[[Any], Any] | None = None
    ) -> None:
        """Put rows, and tell the controller once all of them are in the log."""
        if data_parser is not None:
            raise NotImplementedError(f"data_parser is not supported by {BACKEND}: parse before you put")
        if data.batch_size[0] != metadata.size:
            raise ValueError(f"data has {data.batch_size[0]} rows and metadata {metadata.size}; expected as many")
        if not metadata.size:
            return
        partition = metadata.partition_ids[0]
        keys = await self._keys(partition, metadata.global_indexes)
        names = sorted(data.keys())
        values = self._generate_values(data)
        rows = [
            SampleRow(
                self._sample_id(metadata, number),
                partition,
                key,
                tags_text(tags),
                {name: values[column * metadata.size + number] for column, name in enumerate(names)},
            )
            for number, (key, tags) in enumerate(zip(keys, metadata.get_all_custom_meta(), strict=True))
        ]
        metas = await asyncio.get_running_loop().run_in_executor(None, self.storage_client.put_rows, rows)
        for backend_meta, fresh in zip(metadata._custom_backend_meta, metas, strict=True):
            backend_meta.update(fresh)
        by_index = dict(zip(metadata.global_indexes, metas, strict=True))
        await self.notify_data_update(partition, metadata.global_indexes, extract_field_schema(data), by_index)

    async def clear_data(self, metadata: BatchMeta) -> None:
        """Clear samples, whichever of their fields are named."""
        samples = [
            (self._sample_id(metadata, number), metadata.partition_ids[number]) for number in range(metadata.size)
        ]
        await asyncio.get_running_loop().run_in_executor(None, self.storage_client.clear_samples, samples)

    async def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the state of the queue in the log, and its name in the folder."""
        client = self.storage_client
        saved = await asyncio.get_running_loop().run_in_executor(
            None, lambda: client.opener().save(client.queue.epoch, f"checkpoint {checkpoint_dir}")
        )
        content = {"queue": client.queue.queue, "checkpoint": saved.event.event_id, "samples": saved.event.samples}
        Path(checkpoint_dir, CHECKPOINT).write_text(json.dumps(content, indent=2))

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Restore the queue to a saved state. Raises RefusedError if the log no longer has all of it."""
        client = self.storage_client
        content = json_object(Path(checkpoint_dir, CHECKPOINT).read_bytes())
        restored: RestoredQueue = await asyncio.get_running_loop().run_in_executor(
            None,
            lambda: client.opener().restore(
                client.queue.epoch, f"checkpoint {checkpoint_dir}", str(content["checkpoint"])
            ),
        )
        log.warning("restored from %s: %s", checkpoint_dir, restored)

    def close(self) -> None:
        """Close the sockets and the connections to the log."""
        if (client := self.__dict__.pop("storage_client", None)) is not None:
            client.close()
        super().close()

    def _sample_id(self, metadata: BatchMeta, number: int) -> str:
        """Return the id of a sample in the log: of an earlier program, if that put it first."""
        first = next(iter(metadata._custom_backend_meta[number].values()), None)
        return str(first[0]) if first else self.storage_client.sample_id(metadata.global_indexes[number])

    async def _keys(self, partition: str, indexes: list[int]) -> list[str | None]:
        """Return the keys that users gave these samples; None for one that has none."""
        request = ZMQMessage.create(
            request_type=ZMQRequestType.KV_RETRIEVE_KEYS,
            sender_id=self.storage_manager_id,
            receiver_id=self.controller_info.id,
            body={"global_indexes": indexes, "partition_id": partition},
        ).serialize()
        future = asyncio.run_coroutine_threadsafe(self._request(request), self._notify_loop)
        keys = (await asyncio.wrap_future(future)).body.get("keys")
        return keys or [None] * len(indexes)

    async def _request(self, request: list[Any]) -> ZMQMessage:
        async with self.notify_pool.alease(self.controller_info) as socket:
            try:
                await socket.send_multipart(request)
                answer = await asyncio.wait_for(socket.recv_multipart(copy=False), TQ_DATA_UPDATE_RESPONSE_TIMEOUT)
            except BaseException:  # a timeout or a cancelled put: the socket must not be used again
                socket.close(linger=0)
                raise
            return ZMQMessage.deserialize(answer)


def tags_text(tags: dict[str, Any]) -> str | None:
    """Return the tags of a sample as JSON; None if it has none."""
    if not tags:
        return None
    field = encode(tags)
    return field.data.decode() if field.encoding == "json" else json.dumps({PACKED: field.data.hex()})


def tags_of(text: str | None) -> dict[str, Any]:
    """Return the tags of a sample: `tags_text` backwards."""
    if text is None:
        return {}
    tags: dict[str, Any] = decode(FieldValue("json", text.encode()))
    if list(tags) == [PACKED]:
        packed: dict[str, Any] = decode(FieldValue("msgpack", bytes.fromhex(tags[PACKED])))
        return packed
    return tags
