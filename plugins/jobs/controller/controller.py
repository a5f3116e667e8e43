"""Run jobs: fold the log, and write what each needs next.

    consumer group over `jobs` ──► which jobs are ours
    jobs, adapters and topics with costs from their beginning,
    groups from where a job's figures end, dead letters
    from its newest event on                                   ──► due ──► tasks, jobs, adapters

The log is the only state. A controller that is killed loses nothing: the next one folds the same records and derives
the same ids. It first checks which tasks are in the log, since the dead one may have written some; an event that is
written twice has one effect, as events of a job compare and swap. Several controllers share the jobs.

One job of a policy at a time: the next begins when the one before has ended. One that is paused has not. Jobs of other
types (job_types.py) have their turn, too, and are run by other processes.

A job's environment is tried before the job begins, since a record in `jobs` may name one that no gateway has tried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Self

from plugins.jobs.controller import job_episodes, job_reducer
from plugins.jobs.controller.job_metrics import JobMetrics, WatchedJob
from plugins.jobs.controller.job_reducer import STAGE, Effect, OpenJob
from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.monthly_spending import MonthBudget, month_of
from plugins.jobs.fold.state import JobState, cost_usd
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.rl_training import is_by_rewards
from schemas.conventions import SCORELESS
from schemas.events import AdapterEvent, AdvantagedGroup, DeadLetter, JobEvent, Task
from schemas.serde import EncodeError, Poison
from streams.adapters import versions as adapters
from streams.adapters.versions import AdapterState
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.client import POLL_S
from streams.kafka.key_membership import KeyMembership
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import Record, TopicPartition, cut, partition_of, source_key
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import WITH_COSTS, topics
from streams.observability import metrics
from streams.settings.model import Settings

FROM_BEGINNING = ("jobs", "adapters", *WITH_COSTS)
"""Topics that are read from their first record: the last ones for the spending of tenants."""
CLOCK_SKEW_MS = 60_000
"""How far the clocks of controllers may differ when `tasks` is searched by time."""
CLOSING_S = 60.0
"""How often months are looked at that may be over."""

log = logging.getLogger("streamward.jobs")


def run(settings: Settings, *, stop: threading.Event) -> None:
    """Run jobs until `stop` is set.

    Raises NotFoundError for a missing topic, LogError if the broker refuses, SettingsError if metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "jobs") as meter:
            schema_registry.wait(settings, meter, stop)
            with JobController(settings, BrokerOutage(settings.kafka, stop, meter)) as controller:
                while not stop.is_set():
                    controller.step()
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class JobController:
    """One controller. Use as a context manager, and call `step` from one thread."""

    def __init__(self, settings: Settings, outage: BrokerOutage) -> None:
        self._settings, self._outage = settings, outage
        by_label = topics(settings.topics)
        self._topics = {by_label[label].name: by_label[label] for label in (*FROM_BEGINNING, "groups", "dead-letters")}
        self._groups = by_label["groups"].name
        self._jobs = by_label["jobs"].name
        self._all = AllJobs(settings.topics.policy_partitions)
        self._event_ms: dict[str, int] = {}
        """Timestamp of the newest event of each job."""
        self._adapters: dict[str, AdapterState] = {}
        self._open: dict[str, OpenJob] = {}
        self._tasks: dict[str, set[str]] = {}
        """By job that is open: ids of tasks that are in the log, or were written."""
        self._events: set[str] = set()
        """Ids of events that were written."""
        self._problems: dict[str, str | None] = {}
        """By job whose environment was played: why it cannot be."""
        self._news = True
        """Whether something came since `_act`."""
        self._ends: dict[TopicPartition, int] = {}
        """Where each partition ended when it was last assigned: nothing is decided before."""
        starts = {tp: low for tp, (low, _) in self._bounds(*FROM_BEGINNING).items()}
        self._ends = {tp: end for tp, (_, end) in self._bounds(*FROM_BEGINNING).items()}
        self._reader = PartitionReader(settings, starts, outage=outage)
        self._producer = Producer(settings, outage=outage, stage=STAGE)
        self._metrics, self._next_closing = JobMetrics(outage.meter), 0.0
        self._members = KeyMembership(settings, STAGE, "jobs", outage, self._on_gain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._members.close()
        self._reader.__exit__()
        self._producer.__exit__(kind)

    def step(self) -> None:
        """Take in new records; then write what the jobs that are ours need."""
        self._members.poll(timeout_s=0.0)  # only to be a member: the reader has the records
        for record in self._reader.poll(timeout_s=POLL_S):
            self._take(record)
            self._news = True
        if not self._has_caught_up():
            return
        if self._news and self._open_and_close():
            self._act()
            self._news = False
        self._metrics.look(self._own_jobs, self._months)
        if time.monotonic() >= self._next_closing:
            self._next_closing = time.monotonic() + CLOSING_S
            self.close_months(times.now_ms())

    def _on_gain(self) -> None:
        self._news = True

    # --- taking in ----------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        topic = self._topics[record.at.topic]
        if (label := topic.label) == "jobs":
            self._on_job(record)
        elif label in WITH_COSTS:
            self._all.take_cost(record, topic)
        elif label == "adapters":
            adapter = record.decode_placed(AdapterEvent, self._settings.topics.policy_partitions)
            if not isinstance(adapter, Poison):
                self._adapters[adapter.policy] = adapters.fold(self._versions(adapter.policy), adapter)
        elif label == "dead-letters":
            self._on_letter(record)
        else:
            self._on_group(record)

    def _on_job(self, record: Record) -> None:
        folded = self._all.take(record)
        if folded is None:
            return
        event, _, job = folded
        if folded.took_effect:
            self._event_ms[event.job_id] = record.timestamp_ms
        if event.job_id in self._open:
            self._open[event.job_id] = job_reducer.after_event(self._open[event.job_id], job)
        if event.kind != "created" and folded.took_effect:
            log.info("job %s is %s: %s: %s", job.job_id, job.status, event.kind, job.reason, extra=record.log_extra)

    def _on_group(self, record: Record) -> None:
        concerned = [name for name, state in self._open.items() if self._partition(state.job) == record.at.partition]
        if not concerned:
            return
        group = record.decode(AdvantagedGroup)
        if isinstance(group, Poison):
            return  # the batch stage reads the same record and writes its dead letter
        for name in concerned:
            if self._open[name].job.policy == group.policy:
                self._open[name] = job_reducer.after_group(
                    self._open[name], group, record.at.offset, record.timestamp_ms
                )

    def _on_letter(self, record: Record) -> None:
        letter = record.decode(DeadLetter)
        if isinstance(letter, DeadLetter) and letter.reason in SCORELESS:
            task_id = source_key(letter)
            self._open = {name: job_reducer.after_failed_score(state, task_id) for name, state in self._open.items()}

    def _versions(self, policy: str) -> AdapterState:
        return self._adapters.get(policy) or adapters.empty(policy)

    def _partition(self, job: JobState) -> int:
        """Return the partition of the job's groups."""
        return partition_of(job.policy, self._settings.topics.policy_partitions)

    def _has_caught_up(self) -> bool:
        position = self._reader.position
        return all(position[tp] >= end for tp, end in self._ends.items() if tp in position)

    # --- ownership --------------------------------------------------------------------------------------------------

    def _is_ours(self, job: JobState | JobEvent) -> bool:
        return self._members.has(job.job_id)

    def _runs_here(self, job: JobState) -> bool:
        """Return whether a job is run by this process: those of other types are run by others."""
        return is_by_rewards(job.spec) and self._is_ours(job)

    def _open_and_close(self) -> bool:
        """Follow the groups of each job that runs and is ours, and of no other. Return whether that was so already."""
        running = {
            name: job for name, job in self._all.states.items() if job.status == "running" and self._runs_here(job)
        }
        for name in self._open.keys() - running.keys():
            del self._open[name]
            self._tasks.pop(name, None)
        new = {name: job for name, job in running.items() if name not in self._open}
        if not new:
            return True
        bounds = self._bounds("groups")
        began = max(0, min(job.updated_at for job in running.values()) - CLOCK_SKEW_MS)
        letters = self._outage.ask(lambda: offsets_at(self._settings, ["dead-letters"], began), "to where a time is")
        assigned_anew = {self._groups, *(topic for topic, _ in letters)}
        starts = {tp: offset for tp, offset in self._reader.position.items() if tp[0] not in assigned_anew}
        starts |= {
            tp: letters[tp] if letters[tp] >= 0 else end for tp, (_, end) in self._bounds("dead-letters").items()
        }
        for name, job in new.items():
            self._open[name] = job_reducer.begin(job, self._settings.batches, self._settings.learning.stop_after)
        for state in self._open.values():
            tp = (self._groups, self._partition(state.job))
            offset = max(state.next_offset, bounds[tp][0])
            starts[tp] = min(starts.get(tp, offset), offset)
        self._ends |= {tp: end for tp, (_, end) in bounds.items()}
        self._reader.assign(starts)
        return False

    def _own_jobs(self) -> Iterator[WatchedJob]:
        for name, job in self._all.states.items():
            if self._is_ours(job):
                cost = job.cost_usd
                if job.spec.prices is not None and (state := self._open.get(name)) is not None:
                    cost = cost_usd(job_reducer.usage(state, self._versions(job.policy)), job.spec.prices)
                yield WatchedJob(job, self._event_ms[name], cost)

    def _months(self, now_ms: int) -> Iterator[MonthBudget]:
        """Yield what each tenant has spent in the month of a time."""
        months, limit_usd = self._all.months, self._settings.of_plugin(Jobs).tenant_month_usd
        for tenant in months.tenants:
            month = month_of(now_ms)
            yield MonthBudget(tenant, month, months.figures(tenant, month).cost_usd, limit_usd)

    # --- acting -------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        for job in self._all.next_of_each_policy():
            if job.status == "queued" and self._runs_here(job):
                self._write(job, [self._beginning(job)])
        for state in self._open.values():
            versions = self._versions(state.job.policy)
            try:
                self._write(state.job, job_reducer.due(state, versions, self._month(state)))
            except (EncodeError, EventError) as exc:  # an order that no gateway has checked
                log.warning("job %s: %s", state.job.job_id, cut(str(exc)))
                self._write(state.job, [job_reducer.unaskable(state, versions, cut(str(exc)))])
        self._producer.flush()

    def _beginning(self, job: JobState) -> JobEvent:
        """Return the event that starts a queued job, or that ends it because its environment cannot be played."""
        if job.job_id not in self._problems:
            was_started = job.base_version is not None
            problem = None if was_started else job_episodes.problem_of(job.spec, self._settings)
            self._problems[job.job_id] = problem
        if (problem := self._problems[job.job_id]) is not None:
            return job_reducer.refused_event(job, cut(problem))
        end = self._bounds("groups")[self._groups, self._partition(job)][1]
        return job_reducer.start_event(job, self._versions(job.policy), end)

    def _month(self, state: OpenJob) -> MonthBudget | None:
        limit_usd = self._settings.of_plugin(Jobs).tenant_month_usd
        return self._all.months.budget(state.job.tenant, state.last_at, limit_usd)

    def close_months(self, now_ms: int) -> None:
        """Write the records that close past months; each controller writes those of its own partitions."""
        position = self._reader.position
        counted = [position[self._jobs, number] for number in range(self._settings.topics.policy_partitions)]
        for event in self._all.months.to_close(now_ms, counted, STAGE):
            if self._is_ours(event) and event.event_id not in self._events:
                self._producer.send(event)
                self._events.add(event.event_id)
        self._producer.flush()

    def _write(self, job: JobState, effects: Iterable[Effect]) -> None:
        """Write what is not in the log yet."""
        for effect in effects:
            if isinstance(effect, Task):
                written, effect_id = self._tasks_of(job), effect.task_id
            else:
                written, effect_id = self._events, effect.event_id
            if effect_id not in written:
                self._producer.send(effect)
                written.add(effect_id)

    def _tasks_of(self, job: JobState) -> set[str]:
        """Return the ids of the job's tasks that are in the log; an earlier controller may have written some."""
        if (task_ids := self._tasks.get(job.job_id)) is None:
            since = max(0, job.asks_since - CLOCK_SKEW_MS)
            bounds = self._bounds("tasks")
            starts_by_time = self._outage.ask(
                lambda: offsets_at(self._settings, ["tasks"], since), "to where a time is"
            )
            starts = {tp: offset for tp, offset in starts_by_time.items() if offset >= 0}
            records = read(self._settings, starts, {tp: bounds[tp][1] for tp in starts}, outage=self._outage)
            task_ids = {record.key.decode(errors="replace") for record in records if record.key}
            self._tasks[job.job_id] = task_ids
        return task_ids

    def _bounds(self, *labels: str) -> dict[TopicPartition, tuple[int, int]]:
        return self._outage.ask(lambda: offsets(self._settings, labels), "to where topics end")
