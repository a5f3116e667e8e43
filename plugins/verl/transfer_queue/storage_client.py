"""Keys and values of TransferQueue in a queue of the log.

    put ["3@prompts", "4@prompts"], [tensor, tensor] ──► samples q/1.3 and q/1.4, acknowledged ──► where each field is
    get, with what put returned (the controller keeps it) ──► the records at these places ──► values

Not covered: data that stays on a GPU. It is copied to the host, and comes back there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from transfer_queue import StorageKeyNotFoundError
from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient

from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_fold import Place, Sample
from plugins.verl.sample_queue import SamplePut, SampleQueue
from plugins.verl.transfer_queue.values import decode, encode
from streams.errors import SettingsError
from streams.settings.load import load
from streams.settings.model import Settings

BACKEND = "Streamward"
"""The value of `backend.storage_backend`."""

FieldMeta = tuple[str, tuple[Place, ...]]
"""What TransferQueue's controller keeps of a field: the sample's id in the log, and where its bytes are."""


class SampleRow(NamedTuple):
    """One sample to put."""

    sample_id: str
    partition: str
    key: str | None
    tags: str | None
    values: dict[str, Any]


def settings_of(config: Any) -> Settings:
    """Return the settings of the log that the backend's section names. Raises SettingsError."""
    unknown = set(config) - {"queue", "settings", "restore", "epoch", "client_name"}
    if unknown:
        raise SettingsError(f"backend.{BACKEND} has {', '.join(sorted(unknown))}; expected queue, settings and restore")
    if not config.get("queue"):
        raise SettingsError(f"backend.{BACKEND}.queue is not set; expected a name, which a restarted program keeps")
    return load(overrides=[f"{key}={value}" for key, value in dict(config.get("settings") or {}).items()])


@StorageClientFactory.register("StreamwardStorageClient")
class StreamwardStorageClient(StorageKVClient):  # type: ignore[misc]  # TransferQueue has no types
    """One process's samples in the log."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.settings = settings_of(config)
        if config.get("epoch") is None:
            raise SettingsError(f"backend.{BACKEND} has no epoch: the queue is opened by transfer_queue.init()")
        self.queue = SampleQueue(self.settings, config["queue"], int(config["epoch"]))
        self.queue.__enter__()
        self._metas: dict[str, FieldMeta] = {}

    def close(self) -> None:
        """Disconnect."""
        self.queue.__exit__(None)

    def opener(self) -> QueueOpener:
        """Return what restores and saves the queue."""
        return QueueOpener(self.settings, self.queue.log, self.queue.queue)

    def sample_id(self, index: int) -> str:
        """Return the id in the log of a sample that this program puts first."""
        return f"{self.queue.queue}/{self.queue.epoch}.{index}"

    def put_rows(self, rows: Sequence[SampleRow]) -> list[dict[str, FieldMeta]]:
        """Put samples, and return by field what finds it again, once all of it is in the log."""
        puts = [
            SamplePut(
                row.sample_id,
                row.partition,
                {name: encode(value) for name, value in row.values.items()},
                row.key,
                row.tags,
            )
            for row in rows
        ]
        return [
            {name: (row.sample_id, places) for name, places in fields.items()}
            for row, fields in zip(rows, self.queue.put(puts), strict=True)
        ]

    def clear_samples(self, samples: Sequence[tuple[str, str]]) -> None:
        """Clear samples by their id in the log and partition."""
        self.queue.clear([SamplePut(sample_id, partition, {}) for sample_id, partition in samples])

    def put(self, keys: list[str], values: list[Any]) -> list[FieldMeta]:
        """Put values by keys `index@field`; what is returned finds each again, in any process."""
        rows: dict[str, dict[str, Any]] = {}
        for key, value in zip(keys, values, strict=True):
            index, _, name = key.partition("@")
            rows.setdefault(index, {})[name] = value
        samples = [SampleRow(self.sample_id(int(index)), "", None, None, row) for index, row in rows.items()]
        metas = zip(rows, self.put_rows(samples), strict=True)
        by_key = {f"{index}@{name}": meta for index, row in metas for name, meta in row.items()}
        self._metas |= by_key
        return [by_key[key] for key in keys]

    def get(
        self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None
    ) -> list[Any]:
        """Return the values. Raises StorageKeyNotFoundError for a key that is not in the queue."""
        metas = list(custom_backend_meta or [None] * len(keys))
        if any(meta is None for meta in metas):
            metas = [meta or self._locate(key) for key, meta in zip(keys, metas, strict=True)]
        places = [tuple((int(partition), int(offset)) for partition, offset in meta[1]) for meta in metas]
        names = [key.partition("@")[2] for key in keys]
        fields = self.queue.get(list(zip(names, places, strict=True)))
        return [decode(field) for field in fields]

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Clear the samples that these keys are of, with all their fields."""
        metas = custom_backend_meta or [None] * len(keys)
        samples = {
            meta[0] if meta else self.sample_id(int(key.partition("@")[0])): ""
            for key, meta in zip(keys, metas, strict=True)
        }
        self.clear_samples(list(samples.items()))
        for key in keys:
            self._metas.pop(key, None)

    def _locate(self, key: str) -> FieldMeta:
        """Return where a field is that this process put itself, or that the log has."""
        if key in self._metas:
            return self._metas[key]
        index, _, name = key.partition("@")
        sample: Sample | None = self.opener().samples().samples.get(self.sample_id(int(index)))
        if sample is None or name not in sample.fields:
            raise StorageKeyNotFoundError(f"{key}: queue {self.queue.queue} has no such field, or it was cleared")
        return sample.sample_id, sample.fields[name].places
