"""The recorder with all that it needs, from a log and an engine.

trajectories, turns of the last serve.longest_s ──► Conversations ─┐
adapters ──► ServedVersions, in a thread ──────────────────────────┴──► Recorder ──► TurnWriter, in a thread
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from schemas.events import TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.engines.protocol import Rendering, TokenEngine
from streams.errors import StreamwardError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.conversations import Conversations
from streams.stages.agents.recorder import Recorder
from streams.stages.agents.served_versions import ServedVersions
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
    """Return the trajectories of this policy with events in the last serve.longest_s. Raises as `opened`."""
    labels, named = ("trajectories", "turns"), topics(settings.topics)
    kinds = {named[label].name: named[label].event for label in labels}
    ends = {tp: end for tp, (_, end) in outage.ask(lambda: offsets(settings, labels), "to where topics end").items()}
    since_ms = max(0, now_ms - int(settings.serve.longest_s * 1000))
    found = outage.ask(lambda: offsets_at(settings, labels, since_ms), "to where a time is")
    starts = {tp: found[tp] if found[tp] >= 0 else end for tp, end in ends.items()}
    conversations, count = Conversations(), 0
    for record in read(settings, starts, ends, outage=outage):
        event = record.decode(kinds[record.at.topic])
        if isinstance(event, Poison):
            log.warning("skipped: %s", event.error, extra=record.log_extra)
        elif isinstance(event, Turn | TrajectoryEvent) and event.policy == settings.policy.name:
            conversations.take(event)
            count += isinstance(event, Turn)
    if count:
        log.info("%d turns of %d trajectories are remembered", count, len(conversations.by_id))
    return conversations
