"""The recorder with all that it needs, from a log and an engine.

trajectories, and responses and turns of the last serve.longest_s ──► Conversations ─┐
adapters ──► ServedVersions, in a thread ────────────────────────────────────────────┴──► Recorder ──► TurnWriter
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping

from schemas.events import Event, Response, TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.engines.protocol import Rendering, TokenEngine
from streams.errors import StreamwardError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.conversations import Conversations
from streams.stages.agents.recorder import Recorder
from streams.stages.agents.served_versions import ServedVersions
from streams.stages.agents.server_metrics import ServerMetrics
from streams.stages.agents.turn_writer import TurnWriter

log = logging.getLogger("streamward.agents")


@contextlib.contextmanager
def opened(
    settings: Settings, engine: TokenEngine, rendering: Rendering, stop: threading.Event, meter: Meter
) -> Iterator[Recorder]:
    """Yield a recorder. If it cannot continue it sets `stop`, and the error is raised at the end of the block.

    Raises LogError if the broker does not answer, NotFoundError for a topic that is missing.
    """
    errors: list[StreamwardError] = []

    def failed(exc: StreamwardError) -> None:
        errors.append(exc)
        stop.set()

    def follow() -> None:
        try:
            versions.follow(stop)
        except StoppedWaiting as exc:
            log.warning("%s", exc)
        except StreamwardError as exc:
            failed(exc)

    outage = BrokerOutage(settings.kafka, stop, meter)
    conversations = remembered(settings, outage, times.now_ms())
    ServerMetrics(meter, engine, conversations)
    with ServedVersions(settings, engine, outage) as versions, TurnWriter(settings, stop, meter, failed) as writer:
        follower = threading.Thread(target=follow, name="follows-adapters")
        follower.start()
        try:
            yield Recorder(settings.serve, engine, rendering, versions, writer, conversations)
        finally:
            stop.set()
            follower.join()
    if errors:
        raise errors[0]


def remembered(settings: Settings, outage: BrokerOutage, now_ms: int) -> Conversations:
    """Return the trajectories of this policy that may be continued, or have no end yet. Raises as `opened`.

    Of one that is older than serve.longest_s only the name is remembered, and until it is ended how many turns it has.
    """
    bounds = outage.ask(lambda: offsets(settings, ("trajectories", "responses", "turns")), "to where topics end")
    ends = {tp: end for tp, (_, end) in bounds.items()}
    oldest_ms = now_ms - int(settings.serve.longest_s * 1000)
    conversations = Conversations(int(settings.serve.remembered_mb * 1_000_000))

    def since(label: str, time_ms: int) -> Iterator[Event]:
        found = outage.ask(lambda: offsets_at(settings, (label,), max(0, time_ms)), "to where a time is")
        return events(label, {tp: at if at >= 0 else ends[tp] for tp, at in found.items()})

    def events(label: str, starts: Mapping[TopicPartition, int]) -> Iterator[Event]:
        topic = topics(settings.topics)[label]
        within = {tp: (start, ends[tp]) for tp, start in starts.items() if tp[0] == topic.name}
        firsts, lasts = ({tp: bound[side] for tp, bound in within.items()} for side in (0, 1))
        for record in read(settings, firsts, lasts, outage=outage):
            event = record.decode(topic.event)
            if isinstance(event, Poison):
                log.warning("skipped: %s", event.error, extra=record.log_extra)
            else:
                yield event

    for event in events("trajectories", {tp: first for tp, (first, _) in bounds.items()}):
        if isinstance(event, TrajectoryEvent):
            conversations.restore(event, settings.policy.name, oldest_ms)
    if ended := [known.end.created_at for known in conversations.by_id.values() if known.end is not None]:
        for event in since("responses", min(ended)):
            if isinstance(event, Response):
                conversations.take_response(event.response_id)
    count = 0
    for event in since("turns", min([oldest_ms, *(known.begun_at for known in conversations.by_id.values())])):
        if isinstance(event, Turn) and event.policy == settings.policy.name:
            conversations.take(event)
            count += 1
    if count:
        log.info("%d turns of %d trajectories are remembered", count, len(conversations.by_id))
    return conversations
