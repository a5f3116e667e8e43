"""The topics of a deployment: each of streams/topics with its name, partitions and settings.

    tasks ─► responses ─► rewards ─► groups ─► batches ─► adapters      beside: group-control, dead-letters, experiments
      └─► turns, trajectories ─┘                                        agents; those of plugins
                └─► curation ─► datasets ─► triggers                     tools
    queues ─► samples                                                   of other trainers

Topics keyed by task have equal partition counts, so one worker sees a whole task; the others are keyed by policy
(experiments, agents, and what plugins have by their names), so one policy's groups have one
total order. None is compacted or written in transactions: both leave gaps in the offsets, and a batch is a list of
offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from schemas import events, sealing, versions
from schemas.event_sizes import most_bytes
from streams.errors import SettingsError
from streams.plugins.installed import load_plugins
from streams.settings.model import Topics
from streams.topics.agent_topics import RUNS
from streams.topics.loop_topics import JOIN, LOOP
from streams.topics.shape import TopicShape

DAY_MS = 86_400_000
FRAMING_BYTES = 4096
"""A generous bound for what Kafka adds to a record (headers, batch): the broker's limit is this much above ours."""

OLDEST, NEWEST = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
"""How far a record's time may be before and after the broker's clock (KIP-937, Kafka 3.6)."""
AHEAD_MS = 3_600_000
"""The value of NEWEST here; Kafka's own default since 4.0."""
ANY_MS = 2**63 - 1
"""Means that there is no limit."""

LEAST_ROW_BYTES = 64 * 1024
"""Rows of tables may be this large, even if the records of topics must be smaller."""


class Topic(NamedTuple):
    """One topic as the deployment names it."""

    label: str
    """The name without the prefix, e.g. `group-control`."""
    name: str
    event: type[events.Event]
    key: str
    """The field that is the record key; `` for dead letters, which keep the key of their source."""
    partitions: int
    config: dict[str, str]
    max_bytes: int = 4 * 1024 * 1024
    """Largest key and value together. A dead letter holds a record of any other topic, as base64."""


def _shapes() -> dict[str, TopicShape]:
    """Return every topic by its label. Raises SettingsError if a plugin has a label that is taken."""
    shapes = {shape.label: shape for shape in (*LOOP, *RUNS)}
    for plugin, _, _ in load_plugins():
        own: tuple[TopicShape, ...] = plugin.load_all(plugin.topics)
        for shape in own:
            if shape.label in shapes:
                raise SettingsError(f"plugin {plugin.name}: topic {shape.label} is another's; give it another label")
            if any(shape.event is other.event for other in shapes.values()):
                raise SettingsError(f"plugin {plugin.name}: topic {shape.label} has the event of another topic")
            shapes[shape.label] = shape
        try:
            versions.add_plugin([shape.event for shape in own])
        except versions.SchemaError as exc:
            raise SettingsError(f"plugin {plugin.name}: {exc}") from exc
        groups = shapes["groups"]
        shapes["groups"] = replace(groups, metadata={**groups.metadata, **plugin.metadata})
        sealing.keep_metadata(plugin.metadata)
    return shapes


SHAPES: Mapping[str, TopicShape] = _shapes()
"""Every topic by its label: the core's, then those of plugins."""
LABELS = tuple(SHAPES)
PARTITIONED_AS_TASKS = tuple(label for label, shape in SHAPES.items() if shape.is_keyed_by_task)
"""Topics keyed by task, so that everything about one task is in partitions of the same number."""
KEYED_BY_TASK = tuple(label for label, shape in SHAPES.items() if shape.reader == JOIN)
"""Topics from which groups are made."""
WITH_COSTS = tuple(label for label, shape in SHAPES.items() if shape.cost is not None)
"""Topics whose records cost their tenants something; events of jobs have costs of their own."""
_KEY_FIELDS: dict[Any, str] = {shape.event: shape.key for shape in SHAPES.values()}


@lru_cache(maxsize=64)
def topics(settings: Topics) -> dict[str, Topic]:
    """Return every topic of a deployment by its label."""
    sizes = dict.fromkeys(LABELS, settings.max_record_bytes)
    sizes["dead-letters"] += settings.max_record_bytes // 2 + 64 * 1024
    return {
        label: Topic(
            label=label,
            name=settings.prefix + label,
            event=shape.event,
            key=shape.key,
            partitions=settings.partitions if shape.is_keyed_by_task else settings.policy_partitions,
            max_bytes=min(sizes[label], most_bytes(shape.event) or sizes[label]),
            config={
                "cleanup.policy": "delete",
                "max.message.bytes": str(sizes[label] + FRAMING_BYTES),
                "message.timestamp.type": "CreateTime",
                **_times(0 if shape.kept else settings.retention_days),
            },
        )
        for label, shape in SHAPES.items()
    }


def _times(retention_days: float) -> dict[str, str]:
    """Return the time settings of a topic: its retention (0: for ever), and the times that records may have.

    The broker refuses a record that retention would delete at once, possibly unread, and one from the future. Its
    producer gets INVALID_TIMESTAMP.
    """
    kept_ms = int(retention_days * DAY_MS)
    return {
        "retention.ms": str(kept_ms or -1),
        OLDEST: str(kept_ms or ANY_MS),
        NEWEST: str(AHEAD_MS),
    }


def row_bytes(settings: Topics) -> int:
    """Return the maximum size of a row of a table with its key."""
    return max(settings.max_record_bytes, LEAST_ROW_BYTES)


def key_field(event: Any) -> str:
    """Return the field that is the record key of an event type; `` for dead letters."""
    return _KEY_FIELDS[event]


def topic_of(event: type[events.Event], settings: Topics) -> Topic:
    """Return the topic of an event type."""
    return next(topic for topic in topics(settings).values() if topic.event is event)


def wrong_partitions(topic: Topic, actual: str) -> SettingsError:
    """Return the error for a topic that has `actual` ("16 partitions", "a partition 8") instead of what is set."""
    setting, explanation = "topics.policy_partitions", ""
    if topic.label in PARTITIONED_AS_TASKS:
        setting = "topics.partitions"
        explanation = (
            f"The topics keyed by task ({', '.join(PARTITIONED_AS_TASKS)}) must have equal counts, so that one worker "
            "sees a whole task. "
        )
    return SettingsError(
        f"topic {topic.name} has {actual}, expected {topic.partitions} ({setting}). {explanation}If all of them agree "
        f"since they were created, set {setting} so. Partitions added later move keys: use another topics.prefix "
        "(docs/kafka.md)"
    )
