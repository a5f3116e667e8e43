"""The functions of Faust and aiokafka that the fixes were written for, pinned by hash.

    installed source of each function ──► sha256 ──► as recorded? ──► install the fixes
                                                         └─ no ──► SettingsError, naming what changed

A replacement is correct only for the source it was written against, so an upgrade must fail loudly and by name.
Functions called by these are not pinned.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.consumer import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher, PartitionRecords
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from faust.app.base import App
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables.base import Collection
from faust.tables.recovery import Recovery
from faust.tables.table import Table as FaustTable
from faust.topics import Topic
from faust.transport.consumer import Consumer, ThreadDelegateConsumer
from faust.transport.drivers.aiokafka import (
    AIOKafkaConsumerThread,
    Consumer as AIOKafkaDriver,
    Producer as AIOKafkaProducer,
)
from faust.transport.producer import ProducerBuffer
from mode.threads import MethodQueue, QueueServiceThread, ServiceThread

from streams.errors import SettingsError

WRITTEN_FOR = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0", "mode-streaming": "0.7.1"}

READ_AND_CHECKED: dict[tuple[type, str], str] = {
    (Consumer, "perform_seek"): "0e8c130ff4b0",
    (Consumer, "getmany"): "4b168d84882a",
    (Consumer, "ack"): "5fcf41cf4515",
    (Consumer, "_add_gap"): "4df2573ded7c",
    (Consumer, "_new_offset"): "1d2c7ea89a7a",
    (Consumer, "wait_first"): "feade6a31f8a",
    (ThreadDelegateConsumer, "_getmany"): "f9d47aa9010b",
    (ThreadDelegateConsumer, "seek_wait"): "e9db5bbc4ceb",
    (Recovery, "_resume_streams"): "d986a6710c1a",
    (Recovery, "on_recovery_completed"): "6ef567acf072",
    (Recovery, "_seek_offsets"): "19598ca63d94",
    (ProducerBuffer, "put"): "bf26dfbc01d9",
    (ProducerBuffer, "flush"): "26fbebb124ad",
    (ProducerBuffer, "_send_pending"): "4a9d5f932b56",
    (AIOKafkaDriver, "_new_consumer_thread"): "0870ec53dea7",
    (AIOKafkaConsumerThread, "_create_worker_consumer"): "c2701bfc3e6f",
    (AIOKafkaConsumerThread, "highwater"): "6f7dbe109ae6",
    (AIOKafkaConsumerThread, "seek_to_committed"): "775ab0adc4b0",
    (AIOKafkaConsumerThread, "_commit"): "932852ce7a23",
    (PartitionAssignor, "_perform_assignment"): "1e0bf2c5c8f4",
    (CoordinatorGroupRebalance, "_on_join_leader"): "c57a3e85197d",
    (GroupCoordinator, "_send_req"): "fa4b12e914ce",
    (GroupCoordinator, "reset_generation"): "537aa37c531b",
    (GroupCoordinator, "_do_commit_offsets"): "c3a3ea5613f3",
    (AIOKafkaClient, "_metadata_update"): "06dc51ed3e0d",
    (MessageAccumulator, "_append_batch"): "4762abfc42cb",
    (Sender, "_send_produce_req"): "aea01ae4b6c7",
    (PartitionRecords, "_unpack_records"): "b803e6d46480",
    (_DefaultRecordBatchPy, "_read_msg"): "0997ab7a5850",
    # not replaced, but the replacements rely on what these do
    (GroupCoordinator, "_perform_assignment"): "a5cf61fa9732",
    (GroupCoordinator, "_do_rejoin_group"): "3cb016c98a08",
    (AIOKafkaClient, "_md_synchronizer"): "e0421bffa9a7",
    (Consumer, "_wait_next_records"): "6218e1969a63",
    (Consumer, "_drain_messages"): "44a2500309e8",
    (Consumer, "_commit_offsets"): "1a6979904118",
    (Consumer, "on_partitions_revoked"): "d04b7ae72c6f",
    (AIOKafkaConsumerThread, "commit"): "d31c8558ba25",
    (QueueServiceThread, "call_thread"): "479edda75b54",
    (QueueServiceThread, "on_thread_stop"): "b58a5dbce24f",
    (ServiceThread, "_shutdown_thread"): "d7377862e734",
    (ServiceThread, "set_shutdown"): "ada84bf0cade",
    (MethodQueue, "call"): "57bd4157ba4e",
    (MethodQueue, "flush"): "fe97a2666990",
    (AIOKafkaConsumerThread, "_fetch_records"): "39a2c6c79fc1",
    (AIOKafkaConsumerThread, "_seek_wait"): "9d221e816d94",
    (AIOKafkaProducer, "flush"): "36d0cb3615f6",
    (Recovery, "_build_highwaters"): "91b4cc0d3724",
    (Recovery, "_build_offsets"): "27eec86be06c",
    (Recovery, "_restart_recovery"): "6bd8a8558a2d",
    (Recovery, "_slurp_changelogs"): "7825c7e50f76",
    (ProducerBuffer, "_handle_pending"): "78d648030fd2",
    (Topic, "_on_published"): "7cfe9ebd6596",
    (Fetcher, "fetched_records"): "be4348896b9b",
    (Fetcher, "_proc_fetch_request"): "59bf948fff47",
    (_MemoryRecordsPy, "next_batch"): "f1779ecb6d0d",
    (AIOKafkaConsumer, "seek_to_committed"): "f6cd85c8b70a",
    (GroupCoordinator, "fetch_committed_offsets"): "6c049c737916",
    (GroupCoordinator, "_heartbeat_routine"): "61d010289522",
    (GroupCoordinator, "_do_heartbeat"): "dc1d6632aaa6",
    (GroupCoordinator, "commit_offsets"): "5cbe31af28d6",
    (MessageAccumulator, "add_message"): "56ff7e6c1918",
    (Sender, "_sender_routine"): "2380dc5e333d",
    (Recovery, "on_rebalance"): "aa4d997a1795",
    # overridden in faust_app.py and faust_table.py, and who calls it
    (Collection, "send_changelog"): "3dd3884e1b5f",
    (Collection, "apply_changelog_batch"): "b980a78d3ae9",
    (Collection, "on_rebalance"): "0812ad692171",
    (Collection, "on_recovery_completed"): "b1526fb39ea0",
    (FaustTable, "on_key_set"): "a370e35ca55c",
    (FaustTable, "on_key_del"): "4f2900b2f9d2",
    (App, "_consumer_wait_empty"): "6bc313c48c06",
    (App, "_create_directories"): "a9f571c3b04a",
    (App, "on_init_dependencies"): "7621a70a9b01",
    (App, "_on_partitions_revoked"): "d5c895bbe57d",
    (App, "_stop_consumer"): "55854a5de12c",
}
"""First 12 hex digits of the sha256 of the source of each function that a fix replaces or relies on."""

STOCK = {(owner, name): inspect.getattr_static(owner, name) for owner, name in READ_AND_CHECKED}
"""The functions as Faust ships them, for the replacements to call."""


def _sha(function: Any) -> str:
    source = inspect.getsource(getattr(function, "fun", function))  # a mode task keeps its function in `fun`
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def check_sources() -> None:
    """Raise SettingsError, naming each function whose source is not the one that the fixes were written against."""
    changed = {f"{o.__module__}.{o.__name__}.{n}": _sha(STOCK[o, n]) for o, n in READ_AND_CHECKED}
    changed = {
        name: actual
        for (name, actual), expected in zip(changed.items(), READ_AND_CHECKED.values(), strict=True)
        if actual != expected
    }
    if not changed:
        return
    installed = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in WRITTEN_FOR)
    written_for = ", ".join(f"{package} {version}" for package, version in WRITTEN_FOR.items())
    raise SettingsError(
        "streams/worker/faust/fixes.py replaces or relies on functions that have changed: "
        + ", ".join(f"{name} (sha256 {actual})" for name, actual in changed.items())
        + f". Installed: {installed}; the fixes are for {written_for}. Install what requirements.lock names; or read "
        "the new source, adapt the fix, run tests/log/test_app.py and record the new hash in READ_AND_CHECKED"
    )
