"""Open the queue when a program begins, and give TransferQueue's controller the samples that the log has.

    transfer_queue.init() ──► queues: opened, restored ──► keys, fields, places and tags ──► the new controller

The controller keeps its state in memory; after a crash there is a new one, with other indexes. Each sample comes back
under its key and partition, with the tags of its last put. How far a task had consumed a partition does not: it starts
over there, and a sample is delivered at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from transfer_queue.client import TransferQueueClient
from transfer_queue.storage.bootstrap.provider import StorageBootstrapProvider

from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_fold import FieldPlace, Sample
from plugins.verl.transfer_queue.storage_client import BACKEND, settings_of
from plugins.verl.transfer_queue.storage_manager import tags_of
from streams.errors import SettingsError

log = logging.getLogger("streamward.samples")

RESTORES = ("live", "empty")


@StorageBootstrapProvider.register_provider(BACKEND)  # type: ignore[untyped-decorator]  # it has no types
def open_queue(conf: Any) -> dict[str, Any]:
    """Open the queue that `conf.backend.Streamward` names, and restore the controller. Raises SettingsError."""
    section = conf.backend[BACKEND]
    settings, restore = settings_of(section), section.get("restore", "live")
    if restore not in RESTORES:
        raise SettingsError(f"backend.{BACKEND}.restore is {restore!r}; expected {' or '.join(RESTORES)}")
    with QueueLog(settings) as queue_log:
        restored = QueueOpener(settings, queue_log, section.queue).open("transfer_queue.init()")
    section.epoch = restored.event.epoch
    log.warning("%s, epoch %d", restored, restored.event.epoch)
    client = TransferQueueClient("streamward-restore", controller_info=conf.controller.zmq_info)
    try:
        client.initialize_storage_manager(BACKEND, dict(section))
        samples = in_order(restored.samples.values())
        if restore == "empty":
            client.storage_manager.storage_client.clear_samples(
                [(sample.sample_id, sample.partition) for sample in samples]
            )
            samples = []
        for partition, of_partition in groupby(samples, key=lambda sample: sample.partition):
            _register(client, partition, by_key(of_partition))
    finally:
        client.close()
    return {"queue": section.queue, "epoch": section.epoch}


def in_order(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples by partition, and each partition's as they were first put."""

    def age(sample: Sample) -> tuple[str, int, int]:
        epoch, _, index = sample.sample_id.rpartition("/")[2].partition(".")
        return sample.partition, int(epoch), int(index)

    return sorted(samples, key=age)


def by_key(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples so that each key occurs once: fields that were put under it later replace those before."""
    by_name: dict[str, Sample] = {}
    for sample in samples:
        name = sample.sample_id if sample.key is None else f"key {sample.key}"
        if (earlier := by_name.get(name)) is not None:
            earlier.fields |= sample.fields
            earlier.tags = sample.tags or earlier.tags
        else:
            by_name[name] = sample
    return list(by_name.values())


def _register(client: TransferQueueClient, partition: str, samples: list[Sample]) -> None:
    """Tell the controller of the samples of a partition, as their puts did."""
    keyed = sorted(samples, key=lambda sample: (sample.key is None, sorted(sample.fields)))
    for (is_unnamed, names), group in groupby(keyed, key=lambda sample: (sample.key is None, sorted(sample.fields))):
        members = list(group)
        if is_unnamed:
            meta = client.get_meta(data_fields=names, batch_size=len(members), partition_id=partition, mode="insert")
        else:
            meta = client.kv_retrieve_meta([str(sample.key) for sample in members], partition, create=True)
        if names:
            backend_meta = {
                index: {name: (sample.sample_id, place.places) for name, place in sample.fields.items()}
                for index, sample in zip(meta.global_indexes, members, strict=True)
            }
            schema = {name: _schema([sample.fields[name] for sample in members]) for name in names}
            manager = client.storage_manager
            client._run_coroutine(manager.notify_data_update(partition, meta.global_indexes, schema, backend_meta))
        meta.update_custom_meta([tags_of(sample.tags) for sample in members])
        client.set_custom_meta(meta)


def _schema(fields: list[FieldPlace]) -> dict[str, Any]:
    """Return what TransferQueue says of a field of several samples."""
    first = fields[0]
    if first.encoding != "tensor":
        return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
    shapes = [field.shape if field.encoding == "tensor" else () for field in fields]
    dtype = getattr(torch, first.dtype or "float32")
    if len(set(shapes)) == 1:
        shape = torch.Size(first.shape or (1,))  # TransferQueue itself adds a dimension to numbers
        return {"dtype": dtype, "shape": shape, "is_nested": False, "is_non_tensor": False}
    return {"dtype": dtype, "shape": None, "is_nested": True, "is_non_tensor": False, "per_sample_shapes": shapes}
