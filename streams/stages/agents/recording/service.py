"""Build the recorder with everything it needs, from a log and an engine.

trajectories, and responses and turns of the last serve.longest_s ──► ServedConversations ─┐
adapters ──► ServedVersions, in a thread ──────────────────────────────────────────────────┴──► Recorder ──► TurnWriter

One of several servers (serve.peer_url) reads on while another has the place, and the rest once it has the place itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from schemas.events import Coordinates, Event, Response, TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.engines.protocol import EngineCounts, TokenEngine
from streams.engines.rendering.rendering import Rendering
from streams.engines.sampling_step import build_steps
from streams.errors import StreamwardError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.followed import FollowedOnDemand
from streams.kafka.idle_member import SoleMember
from streams.kafka.log_index import LogIndex
from streams.kafka.reader import fetch, read
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.call_guard import build_guard
from streams.stages.agents.recording.call_prompts import CallPrompts
from streams.stages.agents.recording.policy_recorder import RecordingIO
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.served_versions import ServedVersions
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.registered_agents import agent_registry

READ_ON_S = 5.0
"""How often a server that waits for the place reads what came."""

log = logging.getLogger("streamward.agents")


@contextlib.contextmanager
def open_recorder(
    settings: Settings,
    built: tuple[TokenEngine, Rendering],
    stop: threading.Event,
    meter: Meter,
    *,
    fleet: bool = False,
    place: SoleMember | None = None,
) -> Iterator[Recorder]:
    """Yield a recorder of policy.name, or with `fleet` of every policy of fleet.policies.

    `place`: without it nothing is written; one of several servers takes it here.

    If it cannot continue it sets `stop`, and the error is raised at the end of the block. Raises LogError if the broker
    does not answer, NotFoundError for a missing topic.
    """
    (engine, rendering), outage = built, BrokerOutage(settings.kafka, stop, meter)
    with ServedVersions(settings, engine, outage, fleet=fleet) as versions, contextlib.ExitStack() as taken:
        conversations = ServedConversations(int(settings.serve.remembered_mb * 1_000_000), versions.serves)
        logged = LoggedConversations(settings, outage, conversations)
        logged.restore(times.now_ms())
        if place is not None and settings.serve.peer_url:
            taken.enter_context(place.waiting(partial(_read_on, logged, versions)))
            versions.catch_up()
            logged.read_on(times.now_ms())
        ServerMetrics(meter, engine, conversations)
        with (
            _writing(settings, stop, meter, versions, place) as writer,
            FollowedOnDemand(agent_registry(), settings) as agents,
            contextlib.ExitStack() as stack,
        ):
            steps = build_steps(settings, engine)
            for step in steps:
                stack.callback(step.close)
            answers = conversations.logged_answers() if steps else ()
            for answer in sorted(answers, key=lambda answer: answer.turn.created_at):
                for step in steps:
                    step.restore(answer)
            guard = build_guard(settings, meter)
            if guard is not None:
                stack.callback(guard.close)
            io = RecordingIO(settings.serve, rendering, writer, CallPrompts(engine, rendering), steps, guard)
            yield Recorder(settings, versions, conversations, io, agents)


def _read_on(logged: LoggedConversations, versions: ServedVersions) -> None:
    """Read what came in the last READ_ON_S, while another server has the place."""
    if time.monotonic() >= logged.read_at + READ_ON_S:
        versions.catch_up()
        logged.read_on(times.now_ms())


@contextlib.contextmanager
def _writing(
    settings: Settings, stop: threading.Event, meter: Meter, versions: ServedVersions, place: SoleMember | None
) -> Iterator[TurnWriter]:
    """Yield a writer, and follow the versions while the block runs. Raises the error of either."""
    errors: list[StreamwardError] = []

    def fail(exc: StreamwardError) -> None:
        errors.append(exc)
        stop.set()

    def follow() -> None:
        try:
            versions.follow(stop)
        except StoppedWaiting as exc:
            log.warning("%s", exc)
        except StreamwardError as exc:
            fail(exc)

    with TurnWriter(settings, stop, meter, fail, lambda: place is None or place.is_held) as writer:
        follower = threading.Thread(target=follow, name="follows-adapters")
        follower.start()
        try:
            yield writer
        finally:
            stop.set()
            follower.join()
    if errors:
        raise errors[0]


class LoggedConversations:
    """The trajectories in the log, up to the present ends of its topics."""

    def __init__(self, settings: Settings, outage: BrokerOutage, conversations: ServedConversations) -> None:
        self._settings, self._outage, self._topics = settings, outage, topics(settings.topics)
        self._conversations = conversations
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}
        self.read_at = time.monotonic()
        """When the log was last read to its present end."""

    def restore(self, now_ms: int) -> None:
        """Take in each policy's trajectories that may be continued or have no end yet. Of those that ended, only the
        names are remembered if they began more than serve.longest_s ago. Raises as `open_recorder`.
        """
        self._bounds = self._ends()
        oldest_ms = now_ms - int(self._settings.serve.longest_s * 1000)
        self._restore_trajectories(oldest_ms)
        self._take_responses()
        remembered = (conversation for of_policy in self._conversations for conversation in of_policy.by_id.values())
        begun_at = min([oldest_ms, *(conversation.begun_at for conversation in remembered)])
        turns = self._take_turns(self._since("turns", begun_at))
        if turns:
            log.info("%d turns of %d trajectories are remembered", turns, self._conversations.count)

    def read_on(self, now_ms: int) -> None:
        """Take in what came since. Raises as `open_recorder`."""
        self.read_at = time.monotonic()
        starts = {tp: end for tp, (_, end) in self._bounds.items()}
        self._bounds = self._ends()
        oldest_ms = now_ms - int(self._settings.serve.longest_s * 1000)
        for event in self._events("trajectories", starts):
            if isinstance(event, TrajectoryEvent):
                self._conversations.restore(event, oldest_ms)
        self._take_responses()
        self._take_turns(self._events("turns", starts))
        for of_policy in self._conversations:
            of_policy.forget_ended(oldest_ms)

    def _ends(self) -> dict[TopicPartition, tuple[int, int]]:
        labels = ("trajectories", "responses", "turns")
        return self._outage.ask(lambda: offsets(self._settings, labels), "to where topics end")

    def _restore_trajectories(self, oldest_ms: int) -> None:
        """Take in the trajectories; of those before `oldest_ms` an index has the names that were forgotten earlier, and
        the places of the rest."""
        conversations, index = self._conversations, self._run_index(oldest_ms)
        places = [Coordinates(*place) for place in index.notes.get("open", ())]
        present = [place for place in places if place.offset >= self._bounds[place[:2]][0]]
        kept = fetch(self._settings, present, outage=self._outage)
        recent = self._time_starts("trajectories", oldest_ms)
        old: dict[str, list[tuple[str, Coordinates]]] = {}
        for record in chain((kept[place] for place in sorted(kept)), self._records("trajectories", index.starts)):
            event, is_old = self._event(record), record.at.offset < recent[record.at[:2]]
            if is_old and record.at not in kept:
                index.cover(record)
            if isinstance(event, TrajectoryEvent):
                conversations.restore(event, oldest_ms)
                if is_old:
                    old.setdefault(event.trajectory_id, []).append((event.policy, record.at))
        remembered = {run for of_policy in conversations for run in of_policy.by_id}
        for name in old.keys() - remembered:
            conversations.forgotten.add_row(name, *old[name][-1])
        policies = conversations.forgotten.policies
        index.notes = {
            "oldest_ms": oldest_ms,
            "policies": policies,
            "served": [conversations.serves(policy) for policy in policies],
            "open": [place for name in old.keys() & remembered for _, place in old[name]],
        }
        index.save()

    def _run_index(self, oldest_ms: int) -> LogIndex:
        """Return the index of old runs: an empty one if more were forgotten, or other policies served, than now."""
        name, forgotten = self._topics["trajectories"].name, self._conversations.forgotten
        bounds = {tp: bound for tp, bound in self._bounds.items() if tp[0] == name}
        index = self._outage.ask(lambda: LogIndex(self._settings, name, bounds, name="runs"), "to an index")
        policies = index.notes.get("policies", [])
        served = [self._conversations.serves(policy) for policy in policies]
        if index.notes and (index.notes["oldest_ms"] > oldest_ms or index.notes["served"] != served):
            index.clear()
            policies = []
        forgotten.index, forgotten.policies = index, policies
        return index

    def _take_responses(self) -> None:
        """Take in the responses of runs that have ended: one may be in the log before the end that it is made from."""
        runs = (run for of_policy in self._conversations for run in of_policy.by_id.values())
        if ends_ms := [run.end.created_at for run in runs if run.end is not None and not run.responded]:
            for event in self._since("responses", min(ends_ms)):
                if isinstance(event, Response) and (of_policy := self._conversations.of(event.policy)) is not None:
                    of_policy.take_response(event.response_id)

    def _take_turns(self, events: Iterable[Event]) -> int:
        turns = 0
        for event in events:
            if isinstance(event, Turn) and (of_policy := self._conversations.of(event.policy)) is not None:
                of_policy.take(event)
                turns += 1
        return turns

    def _since(self, label: str, time_ms: int) -> Iterator[Event]:
        return self._events(label, self._time_starts(label, time_ms))

    def _time_starts(self, label: str, time_ms: int) -> dict[TopicPartition, int]:
        """Return the first offset of each partition at or after a time."""
        starts = self._outage.ask(lambda: offsets_at(self._settings, (label,), max(0, time_ms)), "to where a time is")
        return {tp: offset if offset >= 0 else self._bounds[tp][1] for tp, offset in starts.items()}

    def _events(self, label: str, starts: Mapping[TopicPartition, int]) -> Iterator[Event]:
        for record in self._records(label, starts):
            if (event := self._event(record)) is not None:
                yield event

    def _records(self, label: str, starts: Mapping[TopicPartition, int]) -> Iterator[Record]:
        firsts = {tp: start for tp, start in starts.items() if tp[0] == self._topics[label].name}
        ends = {tp: self._bounds[tp][1] for tp in firsts}
        if any(firsts[tp] < end for tp, end in ends.items()):
            yield from read(self._settings, firsts, ends, outage=self._outage)

    def _event(self, record: Record) -> Event | None:
        topic = next(topic for topic in self._topics.values() if topic.name == record.at.topic)
        event = record.decode_placed(topic.event, topic.partitions)
        if isinstance(event, Poison):
            log.warning("skipped: %s", event.error, extra=record.log_extra)
            return None
        return event


class ServerMetrics:
    """Reports to a meter whenever it is asked."""

    def __init__(self, meter: Meter, engine: TokenEngine, conversations: ServedConversations) -> None:
        self._meter, self._engine, self._conversations = meter, engine, conversations
        self._counts, self._evicted = EngineCounts(), 0
        self._fates, self._actions = Counter(conversations.fates), Counter(conversations.actions)
        meter.collect(self.report)

    def report(self) -> None:
        """Set the gauges, and add to the counters what is new since the last time."""
        meter, conversations, before = self._meter, self._conversations, self._counts
        self._counts = now = self._engine.counts()
        meter.set(catalog.SERVE_ROWS, now.rows_running, "running")
        meter.set(catalog.SERVE_ROWS, now.rows_waiting, "waiting")
        meter.set(catalog.SERVE_CACHED_TOKENS, now.cached_tokens)
        meter.set(catalog.SERVE_CACHED_BYTES, now.cached_bytes)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "run", by=now.prompt_tokens_run - before.prompt_tokens_run)
        meter.add(catalog.SERVE_PROMPT_TOKENS, "reused", by=now.prompt_tokens_reused - before.prompt_tokens_reused)
        meter.add(catalog.SERVE_TOKENS, by=now.tokens_drawn - before.tokens_drawn)
        meter.set(catalog.SERVE_TRAJECTORIES, conversations.count)
        meter.set(catalog.SERVE_REMEMBERED, conversations.nbytes)
        evicted, self._evicted = conversations.evicted - self._evicted, conversations.evicted
        meter.add(catalog.SERVE_EVICTED, by=evicted)
        fates, self._fates = conversations.fates - self._fates, Counter(conversations.fates)
        for fate in ("delivered", "not_delivered", "failed"):
            meter.add(catalog.SERVE_TURNS, fate, by=fates[fate])
        actions, self._actions = conversations.actions - self._actions, Counter(conversations.actions)
        for use in ("usable", "unusable"):
            meter.add(catalog.SERVE_ACTIONS, use, by=actions[use])
