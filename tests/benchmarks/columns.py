"""Topic to Arrow and to the archive, against a plain consume and fastavro dictionaries; bytes on disk.

On one core, by turns, over the same records: `streams.arrow.bulk` and `.decode` (every rule of serde checked);
confluent-kafka alone, looking at nothing; confluent-kafka and a fastavro dictionary for each record, nothing checked;
confluent-kafka and pyruhvro, nothing checked and no coordinates, which is the most that these two libraries can reach.
Then the archive: records a second through `streams.tools.archive.sync`, of whole groups on all cores too, and the bytes
of its files against those of the topic's, which hold lz4 batches, with 32 and with 256 tokens a response.

Not covered: how fast an archive is read (the benchmark of the queries).
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import fastavro
import pyruhvro

from schemas import versions
from streams.arrow import bulk
from streams.arrow.decode import CHUNK_BYTES, CHUNK_RECORDS, array_of, decode_rows, frame
from streams.kafka import admin
from streams.kafka.client import client_config
from streams.kafka.topics import topics
from streams.settings.model import Archive, Settings
from streams.tools.archive.sync import sync
from tests.benchmarks.join import PLAIN
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import by_turns, line, median_s, say
from tests.benchmarks.whole_groups import preload

GROUPS = {32: 12_000, 256: 4_000}
"""By tokens of a response."""
ARROW_OF_PLAIN, ARCHIVE_OF_PLAIN = 0.7, 0.4
TIMES_FASTAVRO = 5.0
CASES = {
    "whole groups": ("tasks", "responses", "rewards"),
    "responses": ("responses",),
    "rewards": ("rewards",),
}


def run() -> Iterator[dict[str, Any]]:
    """Yield, per case, two lines in records a second, and two about the archive; targets are for whole groups."""
    cores = os.sched_getaffinity(0)
    with node() as given:
        for tokens, groups in GROUPS.items():
            shapes = given.topics.model_copy(update={"prefix": f"bench.{tokens}."})
            settings = given.model_copy(update={"topics": shapes})
            admin.apply_topics(settings)
            preload(settings, groups, tokens)
            whole = f"whole groups, {tokens} tokens"
            yield from _archiving(settings, whole, CASES["whole groups"], on=f"{len(cores)} cores")
            _keep_to({max(cores)})
            try:
                for case, labels in CASES.items():
                    yield from _decoding(settings, f"{case}, {tokens} tokens", labels)
                    yield from _archiving(settings, f"{case}, {tokens} tokens", labels)
            finally:
                _keep_to(cores)


def _keep_to(cores: set[int]) -> None:
    """Have every thread of this process run on these cores, and those that it begins from here on."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def _decoding(settings: Settings, case: str, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    say(f"columns: {case} to Arrow, a plain consume, and fastavro dictionaries, by turns")
    runs: dict[str, Callable[[], int]] = {
        "arrow": lambda: _arrow(settings, labels),
        "plain": lambda: _consumed(settings, labels, lambda messages: None),
        "fastavro": lambda: _consumed(settings, labels, _dictionaries(settings, labels)),
        "pyruhvro": lambda: _unchecked(settings, labels),
    }
    measured = by_turns(runs)
    (count,) = {each for turns in measured.values() for _, each in turns}
    rates = {name: count / median_s(each) for name, each in measured.items()}
    for against, peer, target, peer_is in (
        ("a plain consume", "plain", ARROW_OF_PLAIN, "confluent-kafka consume of the same bytes, not decoded"),
        ("dictionaries", "fastavro", TIMES_FASTAVRO, "confluent-kafka and fastavro.schemaless_reader"),
        ("pyruhvro alone", "pyruhvro", None, "confluent-kafka and pyruhvro, nothing checked, no coordinates"),
    ):
        yield line(
            "columns",
            f"{case} to Arrow, one core, against {against}",
            ours=rates["arrow"],
            peer=rates[peer],
            unit="records/s",
            ratio=rates["arrow"] / rates[peer],
            target=target if len(labels) > 1 else None,
            peer_is=peer_is,
        )
    yield line(
        "columns",
        f"{case}, pyruhvro alone, one core, against a plain consume",
        ours=rates["pyruhvro"],
        peer=rates["plain"],
        unit="records/s",
        ratio=rates["pyruhvro"] / rates["plain"],
        peer_is="confluent-kafka consume of the same bytes, not decoded",
    )


def _arrow(settings: Settings, labels: Sequence[str]) -> int:
    events = {topic.name: topic.event for topic in topics(settings.topics).values()}
    bounds = admin.offsets(settings, labels)
    starts, ends = {tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()}
    return sum(decode_rows(events[rows.topic], rows).table.num_rows for rows in bulk.read(settings, starts, ends))


def _consumed(settings: Settings, labels: Sequence[str], use: Callable[[list[Any]], object]) -> int:
    bounds = admin.offsets(settings, labels)
    consumer = ck.Consumer({**client_config(settings.kafka), **PLAIN})
    consumer.assign([ck.TopicPartition(topic, partition, low) for (topic, partition), (low, _) in bounds.items()])
    left = count = sum(high - low for low, high in bounds.values())
    while left:
        # no more than there are: `consume` waits out its time for a batch that cannot fill
        messages = [message for message in consumer.consume(min(left, 1000), 1.0) if message.error() is None]
        use(messages)
        left -= len(messages)
    consumer.close()
    return count


def _dictionaries(settings: Settings, labels: Sequence[str]) -> Callable[[list[Any]], object]:
    shapes = [topics(settings.topics)[label] for label in labels]
    schemas = {topic.name: versions.files().newest(topic.event).fastavro_schema for topic in shapes}
    read, kept = fastavro.schemaless_reader, [None]

    def use(messages: list[Any]) -> None:
        kept[:] = [read(io.BytesIO(message.value()[5:]), schemas[message.topic()]) for message in messages]

    return use


def _unchecked(settings: Settings, labels: Sequence[str]) -> int:
    """Consume, and decode what came as one array, as `streams.arrow.decode` does; return the count of records."""
    shapes = {topics(settings.topics)[label].name: topics(settings.topics)[label].event for label in labels}
    waiting: dict[str, list[bytes]] = {name: [] for name in shapes}

    def decode(name: str) -> None:
        payloads, waiting[name] = waiting[name], []
        newest = versions.files().newest(shapes[name])
        pyruhvro.deserialize_array([frame(payloads)], array_of(newest))

    def use(messages: list[Any]) -> None:
        for name, each in groupby(messages, ck.Message.topic):
            waiting[name].extend(map(ck.Message.value, each))
            if len(waiting[name]) >= CHUNK_RECORDS or len(waiting[name]) * len(waiting[name][0]) >= CHUNK_BYTES:
                decode(name)

    count = _consumed(settings, labels, use)
    for name in waiting:
        if waiting[name]:
            decode(name)
    return count


def _archiving(
    settings: Settings, case: str, labels: Sequence[str], *, on: str = "one core"
) -> Iterator[dict[str, Any]]:
    say(f"columns: {case} into the archive, {on}")
    names = [topics(settings.topics)[label].name for label in labels]
    logs = [path for name in names for path in settings.broker.data_dir.rglob(f"{name}-*/*.log")]
    on_disk = sum(path.stat().st_size for path in logs)
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        turn = iter(range(100))

        def archived() -> int:
            store = f"{folder}/{next(turn)}"
            done = sync(settings.model_copy(update={"archive": Archive(store=store)}), labels)
            return sum(each.records for each in done)

        measured = by_turns({"archive": archived, "plain": lambda: _consumed(settings, labels, lambda _: None)})
        size = sum(path.stat().st_size for path in Path(folder, "0").rglob("*.parquet"))
    (count,) = {each for turns in measured.values() for _, each in turns}
    rates = {name: count / median_s(each) for name, each in measured.items()}
    yield line(
        "columns",
        f"{case} into the archive, {on}",
        ours=rates["archive"],
        peer=rates["plain"],
        unit="records/s",
        ratio=rates["archive"] / rates["plain"],
        target=ARCHIVE_OF_PLAIN if len(labels) > 1 else None,
        peer_is="confluent-kafka consume of the same bytes, not decoded",
    )
    if on != "one core":
        return
    yield line(
        "columns",
        f"{case}, bytes on disk",
        ours=size / 2**20,
        peer=on_disk / 2**20,
        unit="MiB",
        ratio=on_disk / size,
        target=1.0 if len(labels) > 1 else None,
        peer_is="the topics' own files, lz4",
    )
