"""A server reads the runs that ended long ago once: an index has their names, and where those are that did not end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.serde import encode
from streams.errors import CallError
from streams.kafka import log_index, times
from streams.kafka.producer import Producer
from streams.kafka.reader import fetch, read
from streams.kafka.retry import BrokerOutage
from streams.observability.metrics import OFF
from streams.settings.model import Settings
from streams.stages.agents.recording import service
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.service import LoggedConversations
from tests.support.factories import trajectory

pytestmark = pytest.mark.kafka
DAY_MS = 86_400_000
ENDED = 30


def write_run(producer: Producer, settings: Settings, name: str, *kinds: str, days: float, **of_run: Any) -> None:
    at_ms, topic = int(times.now_ms() - days * DAY_MS), settings.topics.prefix + "trajectories"
    about: dict[str, Any] = {"trajectory_id": name, "task_id": name, "sampling_id": None, "slot": None} | of_run
    for kind in kinds:
        event = trajectory(kind, **about, group_size=None, created_at=at_ms)  # type: ignore[arg-type]
        producer.send_bytes(topic, name.encode(), encode(event), timestamp_ms=at_ms)


@pytest.fixture
def old(made: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """A log with runs of three days ago, one of them still open and one of another policy, and two of today."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(log_index, "SAVED_ROWS", 8)
    with Producer(made) as producer:
        for number in range(ENDED):
            write_run(producer, made, f"ended-{number}", "started", "ended", days=3)
        write_run(producer, made, "open", "started", days=3)
        write_run(producer, made, "elsewhere", "started", "ended", days=3, policy="other")
        write_run(producer, made, "today", "started", "ended", days=0.1)
        write_run(producer, made, "now", "started", days=0)
    return made


@pytest.fixture
def offsets_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The coordinates of the records that a start reads."""
    places: list[Any] = []

    def counted_read(*args: Any, **more: Any) -> Iterator[Any]:
        for record in read(*args, **more):
            places.append(record.at)
            yield record

    def counted_fetch(*args: Any, **more: Any) -> dict[Any, Any]:
        records = fetch(*args, **more)
        places.extend(records)
        return records

    monkeypatch.setattr(service, "read", counted_read)
    monkeypatch.setattr(service, "fetch", counted_fetch)
    return places


def started(settings: Settings, *policies: str) -> ServedConversations:
    """Return what a server that starts now knows."""
    conversations = ServedConversations(10**9, (policies or ("default",)).__contains__)
    outage = BrokerOutage(settings.kafka, threading.Event(), OFF)
    LoggedConversations(settings, outage, conversations).restore(times.now_ms())
    return conversations


def check(conversations: ServedConversations) -> None:
    of_policy = conversations.of("default")
    assert of_policy is not None
    assert set(of_policy.by_id) == {"open", "today", "now"}
    for number in range(ENDED):
        with pytest.raises(CallError, match="it has ended"):
            of_policy.check_remembered(f"ended-{number}")
    of_policy.check_remembered("unknown")
    with pytest.raises(CallError, match="is of policy other"):
        conversations.check_policy("default", "elsewhere")
    conversations.check_policy("default", "ended-0")


def test_the_second_start_reads_what_is_recent_or_open(old: Settings, offsets_read: list[Any], tmp_path: Path) -> None:
    check(started(old))
    assert len(offsets_read) == 2 * ENDED + 1 + 2 + 3
    (file,) = (tmp_path / "cache" / "streamward" / "index").iterdir()
    whole = file.read_bytes()

    offsets_read.clear()
    check(started(old))
    assert len(offsets_read) == 1 + 3

    with Producer(old) as producer:
        write_run(producer, old, "open", "ended", days=0)
    offsets_read.clear()
    third = started(old).of("default")
    assert third is not None and set(third.by_id) == {"today", "now"} and "open" in third._forgotten
    assert len(offsets_read) == 1 + 3 + 1

    for damaged in (whole[:-1], b""):
        file.write_bytes(damaged)
        offsets_read.clear()
        again = started(old).of("default")
        assert again is not None and set(again.by_id) == {"today", "now"}
        assert len(offsets_read) == 2 * ENDED + 1 + 2 + 3 + 1
    file.unlink()
    assert "ended-3" in started(old).of("default")._forgotten  # type: ignore[union-attr]


def test_a_server_of_other_policies_or_of_longer_runs_does_not_use_what_another_forgot(
    old: Settings, offsets_read: list[Any]
) -> None:
    check(started(old))
    both = started(old, "default", "other").of("other")
    assert both is not None and not both.by_id and "elsewhere" in both._forgotten
    longer = old.model_copy(update={"serve": old.serve.model_copy(update={"longest_s": 10 * 86400.0})})
    of_policy = started(longer).of("default")
    assert of_policy is not None and len(of_policy.by_id) == ENDED + 3
