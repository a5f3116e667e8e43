"""Run tuning jobs: supervised training and preferences.

    jobs ──► JobLog ──► the oldest job of each policy that tunes, and is ours ──► tuned_version.py ──► adapters: trained
    between two steps: cancelled, paused, over its budget? ──► nothing is written      iteration, completed ──► jobs
    each step ──► tuning_metrics.py ──► /metrics, /healthz

It runs one job at a time. The version that it announces makes a job run once: `trained` names the job, so a process
that finds it in `adapters` only writes the job's end. A process that is killed earlier leaves nothing, and the next one
makes the version again, from groups up to the end recorded in `started`: the same bytes, unless the policy has a newer
version meanwhile, from which it then starts. Members of one consumer group share the jobs.

Not covered: continuing a paused or interrupted tuning; it begins again, and the first attempt is not billed.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from plugins.jobs.fold.state import JobState, JobUsage
from plugins.jobs.log.job_log import JobLog
from plugins.tuning import tuning_reducer
from plugins.tuning.api.tuning_request import BETA
from plugins.tuning.tuned_version import StartVersion, TuningOrder, tune, version_of_job
from plugins.tuning.tuner import TuningStep, TuningSteps
from plugins.tuning.tuning_metrics import TuningMetrics, TuningOutcome
from plugins.tuning.tuning_reducer import NO_EXAMPLES, NOT_TUNED
from schemas.events import AdapterEvent, JobTuning
from streams.adapters import training_files
from streams.adapters.decisions import read_history
from streams.adapters.lora_shape import LoraChoice
from streams.arrow.file_rows import TABLES
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.files import Scratch
from streams.kafka import times
from streams.kafka.admin import offsets, outlast
from streams.kafka.history import LogHistory
from streams.kafka.key_membership import KeyMembership
from streams.kafka.record import cut, partition_of
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.kafka.topics import topics
from streams.observability import metrics
from streams.rows.training_gate import TrainingCheck
from streams.settings.model import Settings
from streams.tools.dataset_reader import dataset_reader
from trainer.examples.curation import Curation
from trainer.examples.tuned_examples import DatasetExamples, TunedExample, all_tokens, loss_tokens

GROUP = "tuning"
"""The consumer group that shares the jobs that tune."""
LOOK_S = 0.5
"""How long a process without a job waits until it looks again."""
ODD_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
ACTIONS: dict[type[StreamwardError], str] = {
    NotFoundError: "upload the file again, or ask for less: `streamward tune` says what there is",
    SettingsError: "correct what the reason names, and order it again",
    RefusedError: "do what the reason says, and order it again",
}
"""The suggested action of a failed job, by its error."""

log = logging.getLogger("streamward.jobs")


class _EndedBetweenSteps(Exception):
    """The job is not to be continued now."""


def run(settings: Settings, *, stop: threading.Event) -> None:
    """Run jobs until `stop` is set; the next process begins again a job that is then under way.

    Raises NotFoundError for a missing topic, LogError if the broker refuses or does not answer, SettingsError if
    metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "tune") as meter:
            schema_registry.wait(settings, meter, stop)
            outage = BrokerOutage(settings.kafka, stop, meter)
            with JobLog(settings, outage) as job_log, TuningWorker(settings, job_log, stop, outage) as worker:
                while not stop.is_set():
                    if not outlast(settings, outage, worker.step):
                        stop.wait(LOOK_S)
    except StoppedWaiting as exc:
        log.warning("%s", exc)


class TuningWorker:
    """One process. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, job_log: JobLog, stop: threading.Event, outage: BrokerOutage | None = None
    ) -> None:
        self._settings, self._log, self._stop = settings, job_log, stop
        outage = outage or BrokerOutage(settings.kafka, stop)
        self._members = KeyMembership(settings, GROUP, "jobs", outage)
        self.metrics = TuningMetrics(outage.meter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._members.close()

    def step(self) -> bool:
        """Run a job that is due; return whether there was one. Raises LogError."""
        self.metrics.wait()
        self._members.poll(timeout_s=0.0)
        for job in self._log.next_of_each_policy():
            tuning = job.spec.tuning
            if tuning is None or not self._members.has(job.job_id):
                continue
            if job.status == "queued":
                job = self._start(job, tuning)
            if job.status == "running":
                self.metrics.begin(job.policy)
                outcome: TuningOutcome = "stopped"
                try:
                    outcome = self._carry_out(job, tuning)
                finally:
                    self.metrics.end(job.policy, outcome)
                return True
        return False

    def _start(self, job: JobState, tuning: JobTuning) -> JobState:
        newest = read_history(self._settings, job.policy).state.newest
        groups = topics(self._settings.topics)["groups"].name
        partition = partition_of(tuning.groups_policy or job.policy, self._settings.topics.policy_partitions)
        groups_next = offsets(self._settings, ["groups"])[groups, partition][1]
        return self._log.append(tuning_reducer.start_event(job, newest, groups_next, times.now_ms()))

    def _carry_out(self, job: JobState, tuning: JobTuning) -> TuningOutcome:
        """Make the version of a running job, or find it made; then write its end. Return what came of it."""
        log.info("job %s: %s of %s", job.job_id, tuning.method, job.policy)
        if job.iteration == 0:
            try:
                version_event = self._version_event(job, tuning)
            except _EndedBetweenSteps as exc:
                log.info("job %s: %s", job.job_id, exc)
                return "stopped"
            except LogError:
                raise
            except StreamwardError as exc:
                self._fail(job, exc)
                return "failed"
            job = self._log.append(tuning_reducer.version_event(job, version_event))
        if job.status == "running" and job.iteration == 1:
            self._log.append(tuning_reducer.completion_event(job))
        return "completed"

    def _fail(self, job: JobState, exc: StreamwardError) -> None:
        log.warning("job %s: %s", job.job_id, exc)
        code = NO_EXAMPLES if isinstance(exc, NotFoundError) else NOT_TUNED
        action = next(
            (text for kind, text in ACTIONS.items() if isinstance(exc, kind)), "see the output of the process"
        )
        self._log.append(tuning_reducer.failure_event(job, cut(str(exc)), times.now_ms(), code=code, action=action))

    def _version_event(self, job: JobState, tuning: JobTuning) -> AdapterEvent:
        """Return the event of the job's version, made now or found. Raises what `tune` does, and _EndedBetweenSteps."""
        if (made := version_of_job(read_history(self._settings, job.policy), job.job_id)) is not None:
            return made
        with Scratch("job") as folder:
            start = None
            if tuning.start_version is not None:
                start = StartVersion(tuning.start_policy or job.policy, tuning.start_version)
            order = TuningOrder(
                policy=job.policy,
                steps=TuningSteps(
                    method=tuning.method, epochs=tuning.epochs, batch=tuning.batch, beta=tuning.beta or BETA
                ),
                curation=Curation.of_plain(tuning.method, tuning.selection),
                groups_policy=tuning.groups_policy or job.policy,
                file=self._file(tuning, folder),
                dataset=self._dataset(tuning),
                start=start,
                groups_before=job.groups_next,
                job_id=job.job_id,
                lora=LoraChoice(tuning.lora_rank, tuning.lora_alpha, tuning.lora_targets),
                check=TrainingCheck(self._settings, allowed_by=job.contamination_allowed_by).check_source,
            )
            return tune(self._settings, order, LogHistory(self._settings), _Between(self, job)).event

    def _file(self, tuning: JobTuning, folder: Path) -> Path | None:
        """Return the examples of a job that were uploaded, as a file under the name that they had."""
        if tuning.file_id is None:
            return None
        name = ODD_IN_NAME.sub("_", tuning.file or "")[-100:].lstrip(".") or "examples.jsonl"
        path = folder / (f"{name}.jsonl" if name.lower().endswith(TABLES) else name)  # an upload is JSON lines
        path.write_bytes(training_files.content(self._settings.adapters.store, tuning.file_id))
        return path

    def _dataset(self, tuning: JobTuning) -> DatasetExamples | None:
        """Return the examples of the data set that a job names. Raises as `DatasetReader.examples`."""
        if tuning.dataset is None:
            return None
        build = f"{tuning.dataset}@{tuning.dataset_digest}"
        return dataset_reader().examples(self._settings, build, tuning.method, LogHistory(self._settings))

    def check(self, job: JobState, usage: JobUsage) -> None:
        """Raise _EndedBetweenSteps if a job is not to be continued; over its budget it is ended before."""
        self._members.poll(timeout_s=0.0)
        if self._stop.is_set():
            raise _EndedBetweenSteps("this process is stopping: another one begins it again")
        current = self._log.get(job.job_id)
        if current.status != "running":
            raise _EndedBetweenSteps(f"it is {current.status}: {current.reason}")
        if not self._members.has(job.job_id):
            raise _EndedBetweenSteps("another process has it by now")
        now_ms = times.now_ms()
        event = tuning_reducer.budget_event(current, usage, self._log.month(job.tenant, now_ms), now_ms)
        if event is not None:
            self._log.append(event)
            raise _EndedBetweenSteps(event.reason)


class _Between:
    """Reports and checks between two steps of a job."""

    def __init__(self, worker: TuningWorker, job: JobState) -> None:
        self._worker, self._job = worker, job
        self._began = time.monotonic()
        self._whole: JobUsage | None = None

    def __call__(self, number: int, count: int, examples: Sequence[TunedExample], step: TuningStep) -> None:
        """Report a step, and look whether to take the next one. Raises _EndedBetweenSteps."""
        self._worker.metrics.step(self._job.policy, number, count, loss=step.loss, grad_norm=step.grad_norm)
        if self._whole is None:
            tokens = {"context_tokens": all_tokens(examples) - loss_tokens(examples), "tokens": loss_tokens(examples)}
            self._whole = tuning_reducer.usage_of_version(self._job, tokens)
        seconds = time.monotonic() - self._began
        self._worker.check(self._job, tuning_reducer.usage_after(number, count, self._whole, seconds))
