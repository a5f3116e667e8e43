"""Copy the records of the chosen tasks into an experiment's own log.

    tasks, responses, rewards, group-control of the source ──► those under a chosen key ──► policy renamed ──► the same
    topics, partitions, order and times of the experiment

A record under a chosen key that cannot be decoded is counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.events import GroupControl, Response, Reward, RewardSource, Task
from schemas.serde import Poison, encode
from streams.kafka import admin
from streams.kafka.record import Record
from streams.kafka.topics import Topic, topics
from streams.settings.model import Settings
from streams.tools.replay.replay_context import Replay
from streams.tools.replay.selection import bounds

LABELS = ("tasks", "responses", "rewards", "group-control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """The changes to a copy: the policy's name and, if given, its scorers."""

    policy: str
    name: str
    scorers: tuple[RewardSource, ...] = ()

    def payload(self, record: Record, topic: Topic) -> bytes | None:
        """Return the payload for the experiment, or None for a record that cannot be decoded.

        An event of another policy than the source's stays as it is: the join found it contradictory, and still does.
        """
        event = record.decode(topic.event)
        if isinstance(event, Poison):
            return None
        if isinstance(event, GroupControl):
            return record.payload
        assert isinstance(event, (Task, Response, Reward))  # noqa: S101 - the topic's own type
        if event.policy == self.policy:
            event = replace(event, policy=self.name)
        if isinstance(event, Task) and self.scorers:
            event = replace(event, reward_sources=self.scorers)
        return encode(event)


def copy(replay: Replay) -> Counter[str]:
    """Copy the records of the chosen tasks; return how many of each topic, and how many were `unreadable`.

    With scorers of its own an experiment gets its own rewards, so those of the source are not copied.

    Raises Stopped, LogError if either log fails, EventError for a record that the experiment's topic does not take.
    """
    counts: Counter[str] = Counter()
    renaming = Renaming(policy=replay.about.policy, name=replay.settings.policy.name, scorers=replay.scorers)
    for label in LABELS:
        if label == "rewards" and replay.scorers:
            continue
        topic = topics(replay.source.topics)[label]
        starts, ends = bounds(replay.about.ranges, topic.name)
        total = sum(ends[tp] - starts[tp] for tp in starts)
        for record in replay.progress.track(f"copying {label}", replay.history.read(starts, ends), total):
            if record.key not in replay.keys:
                continue
            payload = renaming.payload(record, topic)
            if payload is None:
                counts["unreadable"] += 1
                continue
            counts[label] += 1
            replay.writer.write(label, record.at.partition, record.key, payload, record.timestamp_ms)
    replay.writer.flush()
    return counts


def commit_ends(settings: Settings, groups: Mapping[str, str]) -> None:
    """Commit, for each of these consumer groups of the experiment, the end of its topic.

    The copies were answered and scored in the source; an agent that runs on the experiment starts after it.
    Raises LogError if the broker refuses.
    """
    import confluent_kafka as ck

    from streams.errors import LogError
    from streams.kafka.client import consumer

    for group, label in groups.items():
        ends = admin.offsets(settings, [label])
        client = consumer(settings.kafka, {"group.id": settings.topics.prefix + group})
        try:
            client.commit(offsets=[ck.TopicPartition(*tp, end) for tp, (_, end) in ends.items()], asynchronous=False)
        except ck.KafkaException as exc:
            raise LogError(f"group {settings.topics.prefix}{group}: {exc.args[0].str()}; run the same again") from exc
        finally:
            client.close()
