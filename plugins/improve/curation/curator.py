"""Judge the runs in the log: one machine verdict each, by a rubric.

    consumer group over `curation` ──► which runs are ours
    curation, from its beginning ──► CurationState: which have a verdict, how well judges agree with people
    FinishedReader, in rounds ──► EndedRun ──► gates ──► judge, some runs at once ──► CurationEvent ──► curation

The log is the only state. A curator that is killed loses nothing: the next one reads `curation` first, and writes the
missing verdicts with the ids that the dead one would have used. Several curators share the runs by key.

While the judge is unreachable, or refuses every request, runs wait: an outage decides nothing. A run that waits for a
person does not delay others.

Not covered: feedback after a verdict. `improve curate run` checks every run again, and judges again those that lacked
a figure for a gate; `improve curate follow` does so when it starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Self

from plugins.improve import improve_metrics
from plugins.improve.curation.agreement import kappa_interval
from plugins.improve.curation.curation_state import CurationState
from plugins.improve.curation.ended_run import EndedRun, ended_run
from plugins.improve.curation.promotion_guard import (
    STAGE,
    GroundedVerdict,
    PromotionGuardAgent,
    event_of,
    needs_verdict,
)
from plugins.improve.curation.verifier import JudgeVerdict
from schemas.events import CurationEvent
from streams.kafka import times
from streams.kafka.admin import offsets
from streams.kafka.client import POLL_S
from streams.kafka.history import LogHistory
from streams.kafka.key_membership import KeyMembership
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, StoppedWaiting
from streams.observability import metrics
from streams.scorers.execution import JUDGE_THREADS
from streams.scorers.verdict import ScoreError
from streams.settings.model import Settings
from streams.tools.query.finished import Finished, FinishedReader, FinishedSelection

LOOK_S = 1.0
"""How often a curator without a run looks for new ones."""

log = logging.getLogger("streamward.curation")


def follow(settings: Settings, selection: FinishedSelection, *, stop: threading.Event) -> None:
    """Judge runs as they end, until `stop` is set.

    Raises NotFoundError for a missing topic, LogError if the broker refuses, SettingsError if metrics.port is taken.
    """
    try:
        with metrics.serve_meter(settings, "curate") as meter:
            schema_registry.wait(settings, meter, stop)
            with Curator(settings, selection, BrokerOutage(settings.kafka, stop, meter), stop) as curator:
                while not stop.is_set():
                    try:
                        if not curator.step():
                            stop.wait(LOOK_S)
                    except ScoreError as exc:
                        log.warning("runs wait: %s", exc)
                        curator.pause(settings.scoring.pause_s)
    except StoppedWaiting as exc:
        log.warning("%s", exc)


def run_once(settings: Settings, selection: FinishedSelection, *, stop: threading.Event) -> Counter[str]:
    """Judge the runs that have ended by now, and return how many got which verdict; `elsewhere`: another curator's.

    Raises ScoreError if the judge cannot be reached, and as `follow`.
    """
    with Curator(settings, selection, BrokerOutage(settings.kafka, stop), stop) as curator:
        while not stop.is_set() and not curator.is_done:
            curator.step()
        return curator.counts


def curator_group(policy: str | None, purpose: str | None) -> str:
    """Return the consumer group of the curators of runs of a policy and a purpose; None: of all."""
    return f"curate-{purpose or '*'}-{policy or '*'}"


class Curator:
    """One curator. Use as a context manager, and call `step` from one thread."""

    def __init__(
        self, settings: Settings, selection: FinishedSelection, outage: BrokerOutage, stop: threading.Event
    ) -> None:
        """Raises ScoreError if the settings of the judge are incomplete, NotFoundError without the topic, LogError."""
        self._settings, self._selection, self._outage, self._stop = settings, selection, outage, stop
        self._state = CurationState(settings)
        self._guard = PromotionGuardAgent(settings)
        self.counts: Counter[str] = Counter()
        self.is_done = False
        """Whether every run that had ended was looked at."""
        self._waiting: list[EndedRun] = []
        """Runs whose judge could not be reached."""
        self._runs: Iterator[Finished] = iter(())
        bounds = self._bounds()
        self._ends = {tp: end for tp, (_, end) in bounds.items()}
        self._reader = PartitionReader(settings, {tp: low for tp, (low, _) in bounds.items()}, outage=outage)
        self._producer = Producer(settings, outage=outage, stage=STAGE)
        self._finished = FinishedReader(settings, LogHistory(settings, outage), selection)
        self._judges = ThreadPoolExecutor(JUDGE_THREADS, thread_name_prefix="judge")
        group = curator_group(selection.policy, selection.purpose)
        self._members = KeyMembership(settings, group, "curation", outage, self._on_gain)
        self._has_joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._guard.close()
        self._judges.shutdown(cancel_futures=True)
        self._members.close()
        self._reader.__exit__()
        self._producer.__exit__(kind)

    def step(self) -> bool:
        """Judge some runs; return whether there may be more at once. Raises ScoreError if the judge is unavailable."""
        self._members.poll(timeout_s=0.0)  # only to be a member: the reader has the records
        self._read_verdicts()
        if not self._has_joined:
            self._members.poll(timeout_s=POLL_S)
            return True
        if not self._has_caught_up():
            return True
        runs = self._waiting or list(islice(self._new_runs(), JUDGE_THREADS))
        self._waiting = []
        if not runs:
            self.is_done = True
            return False
        self._judge(runs)
        return True

    def pause(self, seconds: float) -> None:
        """Wait, as a member of the group."""
        deadline = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < deadline:
            self._members.poll(timeout_s=min(POLL_S, seconds))

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read_verdicts(self) -> None:
        while records := self._reader.poll(timeout_s=0.0 if self._has_caught_up() else POLL_S):
            for record in records:
                self._state.take(record)

    def _has_caught_up(self) -> bool:
        position = self._reader.position
        return all(position[tp] >= end for tp, end in self._ends.items())

    def _on_gain(self) -> None:
        """Look at every run again: those of the new partitions were skipped before."""
        self._has_joined, self.is_done = True, False
        self._ends = {tp: end for tp, (_, end) in self._bounds().items()}
        self._finished = FinishedReader(self._settings, LogHistory(self._settings, self._outage), self._selection)
        self._runs, self._waiting = iter(()), []
        self.counts["elsewhere"] = 0

    def _new_runs(self) -> Iterator[EndedRun]:
        """Yield the runs that are ours and need a verdict, those of one round at most."""
        round_began = False
        while True:
            finished = next(self._runs, None)
            if finished is None:
                if round_began:
                    return
                self._runs, round_began = self._finished.round(), True
            elif not self._members.has(finished.task_id):
                self.counts["elsewhere"] += 1
            elif needs_verdict(run := ended_run(finished, self._settings), self._state.fold):
                yield run

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, runs: list[EndedRun]) -> None:
        """Write the verdicts on these runs. Raises the first ScoreError, once the others are written."""
        failed: ScoreError | None = None
        futures = [self._judges.submit(self._guard.ask_judge, run) for run in runs]
        for run, future in zip(runs, futures, strict=True):
            judge_verdict: JudgeVerdict | None = None
            try:
                judge_verdict = future.result()
            except ScoreError as exc:
                failed = failed or exc
                self._waiting.append(run)
                continue
            self._write(run, self._guard.verdict(run, judge_verdict, self._state.judges()))
        self._producer.flush()
        if failed is not None:
            raise failed

    def _write(self, run: EndedRun, verdict: GroundedVerdict) -> None:
        """Write a verdict, unless the run has one by now, or is another curator's."""
        self._members.poll(timeout_s=0.0)
        self._read_verdicts()
        if not self._members.has(run.row.task_id) or not needs_verdict(run, self._state.fold):
            return
        before = self._state.fold.effective(run.row.answer_id)
        event = event_of(run, verdict, before=before, now_ms=times.now_ms())
        self._producer.send(event)
        self.counts[event.verdict] += 1
        self._report(event)
        log.info("run %s: %s by %s", event.answer_id, event.verdict, event.labeller)

    def _report(self, event: CurationEvent) -> None:
        meter = self._outage.meter
        meter.add(improve_metrics.CURATION_VERDICTS, event.policy, event.labeller, event.verdict)
        if event.judge is not None and event.judge.cost_usd is not None:
            meter.add(improve_metrics.CURATION_JUDGE_COST, event.policy, by=event.judge.cost_usd)
        for judge, agreement in self._state.agreements().items() if meter.on and event.judge is not None else ():
            meter.set(improve_metrics.CURATION_KAPPA, kappa_interval(agreement.table)[0], judge.model)

    def _bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        return self._outage.ask(lambda: offsets(self._settings, ["curation"]), "to where topics end")
