"""Score each response with every scorer its task asks for.

    responses ──► its task, from the same partition of `tasks` ──► each reward source ──► rewards
    key task_id                                                                           key task_id

Quick scorers run here. Scorers that can hang run in worker processes, the judge in threads; meanwhile the next
responses are read. Offsets are committed once the rewards of all earlier responses are acknowledged; a response
delivered twice is scored twice, under the same `reward_id`. A response that failed (`error`) is not scored: the
advantages stage counts it as answered. A scorer that compares the responses of a group scores it once, with the last of
them in the log (whole_groups.py), and writes a reward for each.

A score that fails for good is a reward with an error and no value if its group can do without it (siblings.py); else
its response goes to `dead-letters` as `score_failed`, and `streamward admin rescore --failed` writes the reward once
the scorer is repaired. A scorer that fails on everything is paused (breaker.py), which a dead letter `scorer_paused`
records: its responses are held, not committed, and scored when the scorer works again, here or after a restart.
MAX_OPEN held responses pause reading.

A response also goes to `dead-letters` if its task does not come within TASK_WAIT_S (`unknown_task`), needs a judge and
none is configured (`no_judge`), or names a module that is not listed (`module_not_listed`): another agent, or this one
once configured, can still score it (`streamward admin dlq retry`), where a reward with an error would be final.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Self

from schemas import serde
from schemas.events import Response, Reward, RewardSource, Task, derive_id
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.client import POLL_S
from streams.kafka.group_names import SCORING
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedReading, StoppedWaiting
from streams.kafka.tracked import TakenRecord, TrackedConsumer
from streams.observability import catalog, metrics, trace_context
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing import tracer as tracing
from streams.observability.tracing.tracer import OFF as NO_TRACER, Trace, Tracer
from streams.scorers import ScoreOutcome, Scorers
from streams.scorers.registry import is_of_group
from streams.settings.model import Settings
from streams.stages.scoring.breaker import (
    FAILING,
    FOR_GOOD,
    GROUP_WAITS,
    PAUSED_REASON,
    Change,
    CircuitBreaker,
    counts,
    is_tasks_fault,
    pause_message,
    scorer_of,
)
from streams.stages.scoring.siblings import Item, Siblings
from streams.stages.scoring.task_lookup import TaskLookup
from streams.stages.scoring.whole_groups import WholeGroups

STAGE = "scoring"
TASK_WAIT_S = 5.0
"""How long a response waits for its task. A policy agent reads the task from the log before it answers, so only other
programs' responses can be early."""
TASK_RETRY_S = 0.5
MAX_OPEN = 512
"""Maximum number of responses in progress; above it, reading pauses."""
DRAIN_S = 5.0
"""Time after SIGTERM for running scores to finish. The next agent scores the others again."""
BUSY_POLL_S = 0.02
"""Wait for new responses while scores are running."""
ScoreFuture = Future[ScoreOutcome | list[ScoreOutcome] | None]
FinishedScore = tuple[Item, RewardSource, ScoreFuture]
UNWRITABLE = (serde.EncodeError, EventError)
"""Errors of a reward that cannot be encoded, or does not fit into a record."""

log = logging.getLogger(__name__)


def run(settings: Settings, *, stop: threading.Event) -> None:
    """Score responses until `stop` is set, then finish what is open (at most DRAIN_S), commit and return.

    While the broker is unreachable the agent waits (streams/kafka/retry.py). Raises LogError if the broker refuses.
    """
    try:
        with (
            metrics.serve_meter(settings, "scoring") as meter,
            tracing.open_tracer(settings, "scoring", meter) as tracer,
        ):
            schema_registry.wait(settings, meter, stop)
            with ScoringAgent(settings, BrokerOutage(settings.kafka, stop, meter), meter, tracer) as agent:
                with suppress(StoppedReading):  # responses that wait for a task are left to the next agent
                    while not stop.is_set():
                        agent.step()
                agent.drain()
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class ScoringAgent:
    """One scoring agent. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, outage: BrokerOutage, meter: Meter = OFF, tracer: Tracer = NO_TRACER
    ) -> None:
        self._meter, self._tracer, self._partitions = meter, tracer, settings.topics.partitions
        self._scoring = settings.scoring
        self._scorers = Scorers(settings.scoring)
        self._finished: queue.SimpleQueue[FinishedScore] = queue.SimpleQueue()
        self._running = 0  # in other threads
        self._breaker = CircuitBreaker(settings.scoring)
        self._held: list[tuple[Item, RewardSource]] = []  # for a paused scorer
        self._waiting: list[Item] = []  # for their task
        self._tried = 0.0
        self._tasks = TaskLookup(settings, outage=outage)
        self._producer = Producer(settings, outage=outage, stage=STAGE)
        self._consumer = TrackedConsumer(settings, SCORING, "responses", self._producer, outage, max_open=MAX_OPEN)
        self._groups = WholeGroups(settings)
        self._siblings = Siblings(settings.advantages, self._consumer.owns)
        meter.collect(lambda: meter.set(catalog.OPEN, self._consumer.open))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._scorers.close()
        self._consumer.close()
        self._tasks.__exit__()
        self._producer.__exit__(kind)

    def step(self) -> None:
        """Read responses, score with quick scorers, start the others, write finished scores, commit."""
        self._meter.begin("reads and scores")
        taken = self._consumer.poll(BUSY_POLL_S if self._consumer.open else POLL_S)
        self._begin([item for one in taken if (item := self._item(one)) is not None], time.monotonic())
        self._retry_waiting()
        self._retry_paused()
        self._collect()
        self._settle()
        self._consumer.commit()

    def drain(self) -> None:
        """Wait for scores that still run, at most DRAIN_S, write and commit them."""
        until = time.monotonic() + DRAIN_S
        while self._running and time.monotonic() < until:
            self._collect(BUSY_POLL_S)
        self._settle()
        self._consumer.commit()
        if self._consumer.open:
            log.info("stopping with %d responses not scored; the next agent starts with them", self._consumer.open)

    # --- the task of each response ------------------------------------------------------------------------------------

    def _item(self, taken: TakenRecord) -> Item | None:
        """Return the response in this record, or None if it needs no score."""
        response = taken.record.decode_placed(Response, self._partitions)
        if isinstance(response, serde.Poison):
            self._consumer.skip(taken, response)
            return None
        item = Item(taken, response)
        self._groups.add(taken, response)
        if response.error is not None:
            self._siblings.add(item)
            if not self._groups.may_complete(taken, response):
                self._finish(item)
                return None
        return item

    def _begin(self, items: Iterable[Item], now: float) -> None:
        """Start the scores of these responses; one whose task is not in the log yet waits for it."""
        by_partition: dict[int, list[Item]] = {}
        for item in items:
            by_partition.setdefault(item.partition, []).append(item)
        for partition, together in by_partition.items():
            tasks = self._tasks.find(partition, {item.response.task_id for item in together})
            for item in together:
                task = tasks.get(item.response.task_id)
                if isinstance(task, Task):
                    self._score(task, item)
                elif item.response.error is not None:
                    self._finish(item)
                elif task is not None:
                    error = f"its task {item.response.task_id} cannot be read: {task.error}"
                    self._consumer.bury(item.taken, "unknown_task", error)
                elif not item.waits_until:
                    item.waits_until = now + TASK_WAIT_S
                    self._waiting.append(item)
                elif item.waits_until <= now:
                    self._consumer.bury(item.taken, "unknown_task", _unknown(item.response, partition))
                else:
                    self._waiting.append(item)

    def _retry_waiting(self) -> None:
        self._waiting = [item for item in self._waiting if self._consumer.owns(item.taken)]
        now = time.monotonic()
        if self._waiting and now - self._tried >= TASK_RETRY_S:
            self._tried = now
            items, self._waiting = self._waiting, []
            self._begin(items, now)

    # --- scoring ------------------------------------------------------------------------------------------------------

    def _score(self, task: Task, item: Item) -> None:
        sources = self._sources(task, item)
        if (missing := self._scorers.missing(sources)) is not None:
            self._consumer.bury(item.taken, missing.reason, missing.error)
            return
        item.task, item.sources_left = task, len(sources)
        if item.response.error is None:
            self._siblings.add(item)
        if not item.sources_left:
            self._finish(item)
        for source in sources:
            self._start(item, source)

    def _sources(self, task: Task, item: Item) -> list[RewardSource]:
        """Return the sources that score this response; those that compare a group, with the one that completes it."""
        if any(map(is_of_group, task.reward_sources)):
            item.group = self._groups.group_of(item.taken, item.response)
        else:
            self._groups.forget(item.response)
        return [
            source
            for source in task.reward_sources
            if (item.group if is_of_group(source) else item.response.error is None)
        ]

    def _start(self, item: Item, source: RewardSource, *, trial: bool = False) -> None:
        """Start one score, or hold it if its scorer is paused and this is no trial of it."""
        assert item.task is not None  # noqa: S101 - `_score` sets it
        if not trial and self._breaker.is_paused(scorer_of(source)):
            self._held.append((item, source))
        elif not is_of_group(source) and self._scorers.is_quick(source):
            self._take(item, source, self._scorers.score(item.task, item.response, source))
        else:
            self._running += 1
            future = self._scorers.start(item.task, source, partial(self._in_turn, item.task, item, source, trial))
            future.add_done_callback(partial(self._on_scored, item, source))

    def _in_turn(
        self, task: Task, item: Item, source: RewardSource, trial: bool
    ) -> ScoreOutcome | list[ScoreOutcome] | None:
        """Score, in another thread: a response, or its group. None if the scorer was paused while this waited."""
        if not trial and self._breaker.is_paused(scorer_of(source)):
            return None
        trace = self._trace(item, derive_id(item.response.response_id, source.name))
        with trace_context.sending(None if trace is None else trace.context):
            if item.group is not None and is_of_group(source):
                return self._scorers.rank(task, item.group, source)
            return self._scorers.score(task, item.response, source)

    def _trace(self, item: Item, reward_id: str) -> Trace | None:
        return self._tracer.follows(trace_context.of_headers(item.taken.record.headers), reward_id)

    def _on_scored(self, item: Item, source: RewardSource, future: ScoreFuture) -> None:
        self._finished.put((item, source, future))  # called in the pool's thread

    def _collect(self, wait_s: float = 0.0) -> None:
        """Write the scores that the pool has finished."""
        while True:
            try:
                item, source, future = self._finished.get(timeout=wait_s) if wait_s else self._finished.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            self._running -= 1
            if (outcome := future.result()) is None:
                self._start(item, source)
            elif isinstance(outcome, list):
                item.ranked = outcome
                self._take(item, source, outcome[0])
            else:
                self._take(item, source, outcome)

    # --- what becomes of a score --------------------------------------------------------------------------------------

    def _take(self, item: Item, source: RewardSource, outcome: ScoreOutcome) -> None:
        """Write a score, or handle a failed one."""
        self._meter.observe(catalog.SCORE_SECONDS, outcome.latency_ms / 1000, source.name)
        owned, failed = self._consumer.owns(item.taken), outcome.error is not None
        change, now = None, time.monotonic()
        if not failed or counts(source, outcome):
            change = self._breaker.note(scorer_of(source), now, failed=failed, for_good=outcome.reason in FOR_GOOD)
        else:
            self._breaker.pass_over(scorer_of(source), now)
        if failed:
            self._meter.add(catalog.SCORE_FAILURES, source.name)
            if change is None:
                extra = item.taken.record.log_extra
                log.warning("response not scored by %s: %s", source.name, outcome.error, extra=extra)
        if owned:
            self._keep(item, source, outcome)
        if change is not None:
            self._changed(change, item, source, outcome)

    def _keep(self, item: Item, source: RewardSource, outcome: ScoreOutcome) -> None:
        if outcome.error is None or is_tasks_fault(source, outcome):
            self._write(item, source, outcome)
        elif self._breaker.is_paused(scorer_of(source)) and counts(source, outcome):
            self._held.append((item, source))
        elif item.task is not None and not is_of_group(source) and self._siblings.can_wait(item.task):
            item.failed.append((source, outcome))
            item.sources_left -= 1
        else:
            self._write(item, source, outcome)

    def _changed(self, change: Change, item: Item, source: RewardSource, outcome: ScoreOutcome) -> None:
        """Report that a scorer fails, is paused, or works again; hold its failed responses, or release the held
        ones."""
        scorer = scorer_of(source)
        if change == "failing":
            log.error(FAILING, source.name, outcome.error, source.name, extra=item.taken.record.log_extra)
        elif change == "paused":
            error = pause_message(scorer, outcome, self._scoring)
            log.error("%s", error, extra=item.taken.record.log_extra)
            self._consumer.dead_letter(item.taken.record, PAUSED_REASON, error)
            for one in self._siblings.failed():
                again = [source for source, _ in one.failed if scorer_of(source) == scorer]
                one.failed = [entry for entry in one.failed if entry[0] not in again]
                one.sources_left += len(again)
                self._held += ((one, source) for source in again)
        else:
            freed = [entry for entry in self._held if scorer_of(entry[1]) == scorer]
            self._held = [entry for entry in self._held if scorer_of(entry[1]) != scorer]
            log.warning("%s works again; %d scores that were held for it follow", scorer, len(freed))
            for one, its_source in freed:
                self._start(one, its_source)

    def _retry_paused(self) -> None:
        """Try each paused scorer that is due on the oldest response held for it."""
        self._held = [entry for entry in self._held if self._consumer.owns(entry[0].taken)]
        for scorer in self._breaker.due(time.monotonic()) if self._held else ():
            entry = next((entry for entry in self._held if scorer_of(entry[1]) == scorer), None)
            if entry is not None:
                self._held.remove(entry)
                self._breaker.begin_trial(scorer)
                self._start(*entry, trial=True)

    def _settle(self) -> None:
        """Write failed scores that are final, and dead letters for responses whose group needs them."""
        for item, is_final in list(self._siblings.settled(time.monotonic())):
            failed, item.failed = item.failed, []
            if is_final:
                item.sources_left = len(failed)
                for source, outcome in failed:
                    self._write(item, source, outcome)
            else:
                errors = "; ".join(f"{source.name}: {outcome.error}" for source, outcome in failed)
                self._consumer.dead_letter(item.taken.record, "score_failed", f"{errors}. {GROUP_WAITS}")
                self._finish(item)

    def _write(self, item: Item, source: RewardSource, outcome: ScoreOutcome) -> None:
        if item.group is not None and is_of_group(source):
            for response, its_outcome in zip(item.group, item.ranked, strict=True):
                self._write_one(item, response, source, its_outcome)
        else:
            self._write_one(item, item.response, source, outcome)
        item.sources_left -= 1
        if not item.sources_left and not item.failed:
            self._finish(item)

    def _write_one(self, item: Item, response: Response, source: RewardSource, outcome: ScoreOutcome) -> None:
        record = item.taken.record
        item.is_scored = item.is_scored and outcome.error is None
        item.has_value = item.has_value or outcome.value is not None
        try:
            self._send(item, response, source, outcome)
        except UNWRITABLE as exc:
            log.warning("the score of %s is recorded as failed: %s", source.name, exc, extra=record.log_extra)
            item.is_scored = False
            try:
                self._send(item, response, source, unwritable(outcome, exc))
            except UNWRITABLE as again:  # the name of the source fills a record
                self._consumer.dead_letter(record, "malformed_reward", f"no reward can be written: {again}")

    def _send(self, item: Item, response: Response, source: RewardSource, outcome: ScoreOutcome) -> None:
        reward = reward_of(response, source, outcome, times.now_ms())
        trace = self._trace(item, reward.reward_id)
        self._producer.send(reward, on_ack=self._tracer.on_ack(reward, trace), headers=tracing.headers_of(trace))

    def _finish(self, item: Item) -> None:
        self._consumer.done(item.taken)
        self._meter.observe(catalog.PROCESSING, time.monotonic() - item.began, STAGE)


def reward_of(response: Response, source: RewardSource, outcome: ScoreOutcome, now_ms: int) -> Reward:
    """Return the reward event for the score of `source` for `response`."""
    return Reward(
        reward_id=derive_id(response.response_id, source.name),
        response_id=response.response_id,
        task_id=response.task_id,
        created_at=now_ms,
        traceparent=response.traceparent,
        subject=response.subject,
        policy=response.policy,
        slot=response.slot,
        source=source.name,
        value=outcome.value,
        error=outcome.error,
        abstained=outcome.is_abstention,
        scorer_version=outcome.version,
        latency_ms=outcome.latency_ms,
        rationale=outcome.rationale,
        components=outcome.components,
        steps=outcome.steps,
    )


def unwritable(outcome: ScoreOutcome, exc: Exception) -> ScoreOutcome:
    """Return the failed score that replaces one with a reward that cannot be written."""
    error = f"malformed: the reward cannot be written: {exc}"
    return ScoreOutcome(value=None, error=error, version=outcome.version, latency_ms=outcome.latency_ms, tries=1)


def _unknown(response: Response, partition: int) -> str:
    return (
        f"task {response.task_id} is not in partition {partition} of tasks, {TASK_WAIT_S:g} s after response "
        f"{response.response_id} came. Write the task first, key both by task_id with murmur2 partitioning, and keep "
        "tasks as long as responses"
    )
