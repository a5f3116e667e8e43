"""The recorder with all that it needs, from a log and an engine.

trajectories, and responses and turns of the last serve.longest_s ──► Conversations ─┐
adapters ──► ServedVersions, in a thread ────────────────────────────────────────────┴──► Recorder ──► TurnWriter
the same for every policy of a fleet ──► FleetRecorder
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from schemas.events import Event, Response, TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.engines.protocol import TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.errors import StreamwardError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.conversations import Conversations
from streams.stages.agents.recording.fleet import FleetConversations, FleetRecorder, FleetVersions
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.served_versions import ServedVersions
from streams.stages.agents.recording.server_metrics import ServerMetrics
from streams.stages.agents.recording.turn_writer import TurnWriter

log = logging.getLogger("streamward.agents")


@contextlib.contextmanager
def opened(
    settings: Settings, engine: TokenEngine, rendering: Rendering, stop: threading.Event, meter: Meter
) -> Iterator[Recorder]:
    """Yield a recorder. If it cannot continue it sets `stop`, and the error is raised at the end of the block.

    Raises LogError if the broker does not answer, NotFoundError for a topic that is missing.
    """
    outage = BrokerOutage(settings.kafka, stop, meter)
    conversations = remembered(settings, outage, times.now_ms())
    ServerMetrics(meter, engine, conversations)
    with ServedVersions(settings, engine, outage) as versions, _writing(settings, stop, meter, versions) as writer:
        yield Recorder(settings.serve, engine, rendering, versions, writer, conversations)


@contextlib.contextmanager
def opened_fleet(
    settings: Settings, engine: TokenEngine, rendering: Rendering, stop: threading.Event, meter: Meter
) -> Iterator[FleetRecorder]:
    """Yield a recorder for every policy of the fleet. Ends and raises as `opened`."""
    outage = BrokerOutage(settings.kafka, stop, meter)
    conversations = FleetConversations(settings)
    remember(settings, outage, times.now_ms(), conversations.of)
    ServerMetrics(meter, engine, conversations)
    with (
        FleetVersions(settings, engine, outage, meter) as versions,
        _writing(settings, stop, meter, versions) as writer,
    ):
        yield FleetRecorder(settings, rendering, versions, writer, conversations)


@contextlib.contextmanager
def _writing(
    settings: Settings, stop: threading.Event, meter: Meter, versions: ServedVersions | FleetVersions
) -> Iterator[TurnWriter]:
    """Yield a writer, and follow the versions while the block runs. Raises what either ended with."""
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

    with TurnWriter(settings, stop, meter, failed) as writer:
        follower = threading.Thread(target=follow, name="follows-adapters")
        follower.start()
        try:
            yield writer
        finally:
            stop.set()
            follower.join()
    if errors:
        raise errors[0]


def remembered(settings: Settings, outage: BrokerOutage, now_ms: int) -> Conversations:
    """Return the trajectories of this policy that may be continued, or have no end yet. Raises as `opened`.

    Of one that is older than serve.longest_s only the name is remembered, and until it is ended how many turns it has.
    """
    found = Conversations(int(settings.serve.remembered_mb * 1_000_000))
    remember(settings, outage, now_ms, lambda policy: found if policy == settings.policy.name else None, found)
    return found


def remember(
    settings: Settings,
    outage: BrokerOutage,
    now_ms: int,
    of: Callable[[str], Conversations | None],
    others: Conversations | None = None,
) -> None:
    """Have each policy's trajectories taken in, `of` says by whom. `others` gets the names of those of no such policy.

    Raises as `opened`.
    """
    bounds = outage.ask(lambda: offsets(settings, ("trajectories", "responses", "turns")), "to where topics end")
    ends = {tp: end for tp, (_, end) in bounds.items()}
    oldest_ms = now_ms - int(settings.serve.longest_s * 1000)
    every: list[Conversations] = []

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
            if (own := of(event.policy)) is not None:
                own.restore(event, oldest_ms)
                every += [] if own in every else [own]
            elif others is not None:
                others.is_of_another(event.trajectory_id)
    whole = [known for own in every for known in own.by_id.values()]
    if ended := [known.end.created_at for known in whole if known.end is not None]:
        for event in since("responses", min(ended)):
            if isinstance(event, Response) and (own := of(event.policy)) is not None:
                own.take_response(event.response_id)
    count = 0
    for event in since("turns", min([oldest_ms, *(known.begun_at for known in whole)])):
        if isinstance(event, Turn) and (own := of(event.policy)) is not None:
            own.take(event)
            count += 1
    if count:
        log.info("%d turns of %d trajectories are remembered", count, sum(own.count for own in every))
