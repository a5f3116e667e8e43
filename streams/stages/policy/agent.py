"""Answer tasks with the adapter version in force, or with the candidate that has a share of them.

    tasks ──► which version? known? room to train on it? ──► round ──► engine ──► all slots of a sampling ──► responses
    adapters, batches, groups of this policy ──┘ (streams/stages/policy/state.py, arms.py, admission.py)

One sampling is one attempt at all slots of a task by one version, and what served is checked against what the engine
says it served. Its responses are written one after the other and acknowledged before the task counts as done; offsets
are committed contiguously. A task that is delivered again is sampled again under another sampling_id, and the join
takes the first; but one whose answer was there before this agent, or whose group is out, is passed over. While the
broker is away the agent waits (streams/kafka/retry.py).

`eval` and `serve` never wait for the trainer, `train` does (streams/stages/policy/admission.py). A task whose deadline
has passed is not sampled, as its answers could not count; a `serve` task is, since somebody may still read the answer.

A round is of one version, and the task that came first decides which: with a canary under way both arms get their turn.
What the log says of versions is looked at before each round, after a version was loaded, and after every longer pause,
so that nothing begins on a version that was replaced; a round that is under way ends on the version it began with.

Not covered: while `policy.max_waiting` tasks are held back nothing is read, so an eval task behind them waits as well.
A version whose adapter cannot be loaded is not tried again before a restart.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Self

from schemas import serde
from schemas.events import Response, Task, derive_id
from streams.adapters import signing
from streams.engines import Engine, SamplingRequest
from streams.errors import EventError
from streams.kafka.client import POLL_S
from streams.kafka.consumer import GroupConsumer, OffsetTracker
from streams.kafka.producer import Producer
from streams.kafka.reader import fetch
from streams.kafka.record import Record, TopicPartition, dead_letter
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import catalog, metrics
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.advantages.state import deadline_ms
from streams.stages.policy import sampling
from streams.stages.policy.adapter_cache import AdapterCache
from streams.stages.policy.rounds import (
    SamplingBatch,
    ServedVersion,
    WaitingTask,
    all_failed,
    choose,
    response,
    unusable,
)
from streams.stages.policy.state import PolicyState, answered, give_up_ms
from streams.stages.policy.versions import BASE, route

STAGE = "policy"
HELD_POLL_S = 0.05
"""Longest wait for new tasks while others wait for room, which comes from other topics."""

LINGER_S = 0.2
"""How long a train round that is not full waits for more: places come free one by one, and large rounds are cheaper."""
AWAY_S = 30.0
"""How long a candidate that the store does not give gives its tasks to the primary before it is tried again."""
START_S = 3600.0
"""How long an engine may take to start without being taken for stuck: it may have a model to fetch."""
SWEEP_S = 1.0
"""How often all waiting tasks are asked whether their time is over."""

log = logging.getLogger("streamward.policy")


def run(settings: Settings, *, stop: threading.Event, engine: Engine | None = None) -> None:
    """Answer tasks until `stop` is set; the round in hand is finished, written and committed.

    Without `engine`, the one that the settings name is built, and closed at the end. Raises SettingsError or
    NotFoundError if it cannot start, LogError if the log refuses, EventError (store_unreachable) if an adapter cannot
    be fetched now, StreamwardError if the engine serves another version than it was told to.
    """
    with (
        metrics.served(settings, "policy", waits_for=("kafka", "engine")) as meter,
        tracing.opened(settings, "policy", meter) as tracer,
    ):
        if engine is not None:
            _run(settings, stop, engine, meter, tracer)
            return
        from streams import engines

        meter.begin("building the engine", within_s=START_S)
        built = engines.build(settings)
        try:
            _run(settings, stop, built, meter, tracer)
        finally:
            built.close()


def _run(settings: Settings, stop: threading.Event, engine: Engine, meter: Meter, tracer: Tracer) -> None:
    signing.check_verify_key(settings.adapters)
    meter.ready("engine")
    try:
        schema_registry.wait(settings, meter, stop)
        with PolicyAgent(settings, engine, BrokerOutage(settings.kafka, stop, meter), meter, tracer) as agent:
            while not stop.is_set():
                agent.step()
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class PolicyAgent:
    """One policy agent. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, engine: Engine, patience: BrokerOutage, meter: Meter = OFF, tracer: Tracer = NO_TRACER
    ) -> None:
        self._settings, self._meter, self._tracer = settings, meter, tracer
        self._patience = patience
        self._engine = engine
        self._sampler = sampling.Sampler(engine, settings.policy, meter)
        self._nonce = uuid.uuid4().hex
        self._attempts, self._arrivals = count(), count()
        self._response_topic = topics(settings.topics)["responses"].name
        self._waiting: dict[TopicPartition, dict[int, WaitingTask]] = {}
        self._progress: dict[TopicPartition, OffsetTracker] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._answered: dict[TopicPartition, set[str]] = {}
        self._assigned: set[TopicPartition] = set()  # new since the last step
        self._paused = False
        self._swept = 0.0
        self._lingers_until: float | None = None
        self._standing = PolicyState(settings)
        self._shelf = AdapterCache(settings, engine, self._standing.arms)
        self._back_at = 0.0
        self._producer = Producer(settings, patience=patience, meter=meter, stage=STAGE)
        self._consumer = GroupConsumer(
            settings,
            f"{STAGE}-{settings.policy.name}",
            ["tasks"],
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            patience=patience,
            meter=meter,
            stage=STAGE,
        )
        meter.collect(self._report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._consumer.close()
        self._standing.__exit__()
        self._shelf.close()
        self._producer.__exit__(kind)

    def step(self) -> bool:
        """Read what came, answer one round if there is one, commit. Return whether a round was answered."""
        self._meter.begin("looks for tasks")
        self._standing.follow(self._patience)
        self._read(POLL_S if not any(self._waiting.values()) else 0.0 if self._next_round() else HELD_POLL_S)
        self._sweep()
        self._standing.follow(self._patience)  # what came while this waited for tasks decides who answers them
        chosen = self._next_round()
        if chosen is not None:
            self._answer(chosen)
        self._commit()
        return chosen is not None

    # --- reading ------------------------------------------------------------------------------------------------------

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._assigned.update(partitions)

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._assigned.difference_update(partitions)
        for tp in partitions:
            for kept in (self._waiting, self._progress, self._committed, self._answered):
                kept.pop(tp, None)

    def _read(self, wait_s: float) -> None:
        self._breathe()
        records = self._consumer.poll(timeout_s=wait_s)
        self._begin()
        for record in records:
            self._take(record)

    def _breathe(self) -> None:
        """Stop reading when too much is held back, and begin again when half of it is gone."""
        waiting, most = sum(map(len, self._waiting.values())), self._settings.policy.max_waiting
        if not self._paused and waiting >= most:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        elif self._paused and waiting <= most // 2:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _begin(self) -> None:
        """Look what is answered already in the partitions that were just assigned."""
        if not self._assigned:
            return
        partitions, self._assigned = self._assigned, set()
        self._paused = False  # a partition is never assigned paused
        committed = self._consumer.committed(partitions)
        self._standing.poll()
        found = answered(self._settings, committed, self._standing, now_ms=_now_ms(), patience=self._patience)
        for tp in partitions:
            self._waiting[tp], self._progress[tp] = {}, OffsetTracker()
            self._committed[tp], self._answered[tp] = committed[tp], found[tp[1]]

    def _take(self, record: Record) -> None:
        tp, offset = (record.at.topic, record.at.partition), record.at.offset
        if tp not in self._progress:
            return  # it was taken from us within this very poll
        progress = self._progress[tp]
        progress.read(offset)
        task = record.decode(Task)
        if isinstance(task, serde.Poison):
            log.warning("dead-lettered, %s: %s", task.reason, task.error, extra=record.log_extra)
            self._producer.send(dead_letter(record, stage=STAGE, reason=task.reason, error=task.error))
            progress.done(offset)
        elif task.policy != self._settings.policy.name or task.task_id in self._answered[tp]:
            progress.done(offset)
        else:
            until_ms = deadline_ms(task, record.timestamp_ms, self._settings.advantages)
            trace = self._tracer.taken(task, record)
            self._waiting[tp][offset] = WaitingTask(task, record.at, until_ms, next(self._arrivals), trace)

    def _sweep(self) -> None:
        """Now and then, let go of what time has overtaken."""
        if time.monotonic() < self._swept + SWEEP_S:
            return
        self._swept = now = time.monotonic()
        if now >= self._back_at:
            self._standing.arms.away.clear()
        for task_id in self._standing.admission.expire(_now_ms()):
            log.warning("task %s: its group did not come; it holds no place in training any more", task_id)
        self._pass_over(list(self._all_waiting()))

    def _pass_over(self, candidates: Sequence[WaitingTask]) -> bool:
        """Let go of tasks that no answer can reach any more; their group says why. Return whether there were any."""
        now_ms, before = _now_ms(), sum(map(len, self._waiting.values()))
        for waiting in candidates:
            if waiting.task.purpose == "serve":
                continue
            is_over = waiting.deadline_ms is not None and waiting.deadline_ms < now_ms
            if is_over or self._standing.admission.is_out(waiting.task.task_id):
                why = "its deadline has passed" if is_over else "its group is out already"
                log.info(
                    "task %s is not sampled: %s",
                    waiting.task.task_id,
                    why,
                    extra={"at": waiting.at, "trace": waiting.trace},
                )
                self._meter.add(catalog.DROPS, STAGE, "too_late" if is_over else "group_is_out")
                self._done(waiting)
        return sum(map(len, self._waiting.values())) < before

    def _all_waiting(self) -> Iterable[WaitingTask]:
        return (waiting for of_partition in self._waiting.values() for waiting in of_partition.values())

    # --- answering ----------------------------------------------------------------------------------------------------

    def _next_round(self) -> SamplingBatch | None:
        """Return the round to answer now, or None. Unless somebody is urgent, a part of a round waits for more."""
        chosen = self._choose()
        while chosen is not None and self._pass_over(chosen.tasks):
            chosen = self._choose()
        if chosen is None:
            self._lingers_until = None
            return None
        if len(chosen.tasks) == self._settings.policy.round_tasks or any(waiting.urgent for waiting in chosen.tasks):
            return chosen
        if self._lingers_until is None:
            self._lingers_until = time.monotonic() + LINGER_S
        return chosen if time.monotonic() >= self._lingers_until else None

    def _choose(self) -> SamplingBatch | None:
        serving, admission = self._standing.arms.serving, self._standing.admission

        def room(version: int) -> int:
            # A version too old for any batch gains nothing by waiting: its group will be recorded as stale. Only the
            # primary waits, for the next one; unless a canary is under way, which would wait for it in turn.
            waits = version == serving.primary and serving.candidate is None
            return sys.maxsize if admission.hopeless(version) and not waits else admission.room(version)

        most = self._settings.policy.round_tasks
        return choose(self._all_waiting(), version_for=partial(route, serving), room=room, most=most)

    def _answer(self, chosen: SamplingBatch) -> None:
        self._lingers_until = None
        began = time.monotonic()
        refused = self._serve(chosen.version)
        serving = self._standing.arms.serving
        if any(route(serving, waiting.task) != chosen.version for waiting in chosen.tasks):
            return  # another version answers them now: choose again
        requests = [
            SamplingRequest(sampling_id=self._sampling_id(w, chosen.version), task=w.task, trace=w.trace)
            for w in chosen.tasks
        ]
        started = time.monotonic()
        if refused is None:
            answers = self._sampler.sample(requests, chosen.version)
        else:
            answers = [all_failed(request, refused) for request in requests]
        served = ServedVersion(
            adapter_version=chosen.version,
            engine=self._engine.name,
            base_digest=self._engine.base_digest,
            tokenizer_digest=self._engine.tokenizer_digest,
            created_at=_now_ms(),
            latency_ms=(time.monotonic() - started) * 1000,
        )
        for waiting, request, completions in zip(chosen.tasks, requests, answers, strict=True):
            if not waiting.urgent and not self._standing.admission.hopeless(chosen.version):
                give_up = give_up_ms(self._settings, served.created_at, waiting.deadline_ms)
                self._standing.admission.start(waiting.task.task_id, give_up_ms=give_up)
            for completion in completions:
                self._write(response(request, completion, served), waiting)
        self._producer.flush()
        for waiting in chosen.tasks:
            self._done(waiting)
        self._meter.observe(catalog.PROCESSING, time.monotonic() - began, STAGE)
        log.info("version %d answered %d tasks in %.0f ms", chosen.version, len(chosen.tasks), served.latency_ms)

    def _sampling_id(self, waiting: WaitingTask, version: int) -> str:
        return derive_id(waiting.task.task_id, version, *waiting.at, self._nonce, next(self._attempts))

    def _serve(self, version: int) -> str | None:
        """Make the engine serve `version`; return why it cannot. Raises EventError if it is not the adapter's fault."""
        arms = self._standing.arms
        if version in arms.useless:
            return f"the adapter of version {version} could not be loaded; see the dead letters of stage {STAGE}"
        if arms.is_retired(version):
            return f"version {version} is retired and its files are gone; pin the task to one that is not"
        before = self._engine.served_version
        try:
            self._shelf.serve(version)
        except EventError as exc:
            if exc.reason == "store_unreachable" and version == arms.candidate:
                arms.away.add(version)
                self._back_at = time.monotonic() + AWAY_S
                log.warning("version %d has the canary's tasks for %g s: %s", arms.primary, AWAY_S, exc)
            elif version == BASE or exc.reason == "store_unreachable":
                raise  # nothing to fall back on; or it may pass: whoever starts this process again tries again
            else:
                self._condemn(version, exc)
            return str(exc)
        if before != version:
            self._standing.follow(self._patience)  # loading takes its time
        return None

    def _condemn(self, version: int, error: EventError) -> None:
        """Go on without `version`, and say so where people look."""
        arms, at = self._standing.arms, self._standing.trained_at[version]
        goes_on = "its canary's tasks go to" if version == arms.candidate else "unpinned tasks go to"
        arms.useless.add(version)
        log.error("%s: version %d cannot be used, %s version %d: %s", at, version, goes_on, arms.primary, error)
        record = fetch(self._settings, [at], patience=self._patience)[at]
        self._producer.send(dead_letter(record, stage=STAGE, reason=error.reason, error=str(error)))

    def _write(self, slot: Response, waiting: WaitingTask) -> None:
        """Hand one response to the log; one that cannot be written becomes one that failed."""
        try:
            payload = serde.encode(slot)
            if len(payload) > self._settings.topics.max_record_bytes:
                raise serde.EncodeError(
                    f"the response has {len(payload)} bytes, and topics.max_record_bytes is "
                    f"{self._settings.topics.max_record_bytes}; ask for fewer tokens, or raise it"
                )
        except serde.EncodeError as exc:
            log.error("task %s: slot %d failed: %s", slot.task_id, slot.slot, exc)
            slot = unusable(slot, str(exc))
            payload = serde.encode(slot)
        sampling.count(self._meter, slot)
        trace = self._tracer.follows(waiting.trace, slot.response_id)
        told, headers = self._tracer.on_ack(slot, trace), tracing.headers_of(trace)
        self._producer.send_bytes(self._response_topic, slot.task_id.encode(), payload, on_ack=told, headers=headers)

    def _report(self) -> None:
        """Tell what is asked for now and then; called in the thread of the server, so it only reads."""
        policy, serving = self._settings.policy.name, self._standing.arms.serving
        self._meter.set(catalog.WAITING, sum(map(len, list(self._waiting.values()))), policy)
        self._meter.set(catalog.ADAPTER, 1, policy, "served", str(self._engine.served_version))
        self._meter.set(catalog.PRIMARY, serving.primary, policy)
        self._meter.set(catalog.CANDIDATE, serving.candidate, policy)
        self._meter.set(catalog.SHARE, serving.share, policy)

    # --- done ---------------------------------------------------------------------------------------------------------

    def _done(self, waiting: WaitingTask) -> None:
        tp = (waiting.at.topic, waiting.at.partition)
        self._waiting[tp].pop(waiting.at.offset)
        self._progress[tp].done(waiting.at.offset)

    def _commit(self) -> None:
        """Commit what is done, once everything that was written for it is acknowledged."""
        due = {
            tp: progress.next_offset
            for tp, progress in self._progress.items()
            if progress.next_offset is not None and progress.next_offset > self._committed[tp]
        }
        if not due:
            return
        self._producer.flush()
        self._consumer.commit(due)
        self._committed |= due


def _now_ms() -> int:
    return int(time.time() * 1000)
