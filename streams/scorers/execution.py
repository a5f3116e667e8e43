"""Run a reward source: every part in its place, with retries, always ending in an outcome.

    task, response, source ──► parts ──► inline | worker process | judge ──► ScoreOutcome(value | error, version, …)

A failed score is an outcome with an error, never 0 and never an exception. Threads may call `score` at the same time;
`start` has its own threads, some for worker processes and others for the judge, in which tasks take turns: one with
many responses to an endless pattern delays another for at most one time limit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from schemas.events import Response, RewardSource, Task
from streams.egress.retry_budget import budget_of
from streams.scorers.judge import Judge, JudgeOptions
from streams.scorers.judge_client import missing_setting
from streams.scorers.module_names import check_module_names
from streams.scorers.ranking_judge import ALONE, RankingJudge, RankingOptions, share_of_each
from streams.scorers.registry import MixPart, blend, find, parts
from streams.scorers.retries import persist, sum_of
from streams.scorers.sandbox import Sandbox
from streams.scorers.term_swaps import SWAPPED, SwappedScorer, TermSwaps, average
from streams.scorers.verdict import (
    MAX_RATIONALE,
    MAX_VERSION,
    ScoreError,
    Verdict,
    check_steps,
    check_verdict,
    json_object,
    options,
    storable,
)

if TYPE_CHECKING:
    from streams.settings.model import Scoring

T = TypeVar("T")

NOT_LISTED = "module_not_listed"
"""Reason of a score and of a dead letter: the settings do not let the module of an entry point be imported."""
JUDGE_THREADS = 8
MAX_TIMEOUTS = 3
"""Timeouts of one task and source, in worker processes, after which its further responses fail at once."""
REMEMBERED = 10_000
"""Number of tasks and sources with counted timeouts; the oldest is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutcome:
    """The result of one reward source for one response: a value, an error and its reason, or neither, without an
    opinion."""

    value: float | None
    error: str | None = None
    reason: str | None = None
    version: str
    components: dict[str, float] = field(default_factory=dict)
    rationale: str | None = None
    steps: tuple[float, ...] = ()
    """The value of each turn of the response; empty: only the whole is scored."""
    latency_ms: float
    tries: int

    @property
    def is_abstention(self) -> bool:
        """Whether the source has no opinion."""
        return self.value is None and self.error is None


class MissingScorer(NamedTuple):
    """Why this process cannot score a task: the reason of the dead letter, and a sentence with the way out."""

    reason: str
    error: str


class Scorers:
    """Every scorer, ready to run. Call `close` at the end: it may own processes and connections."""

    def __init__(self, scoring: Scoring) -> None:
        """Raises SettingsError if a module of the working folder cannot be imported by its name."""
        self._scoring = scoring
        check_module_names(scoring)
        folders = [os.getcwd()] if "." in scoring.importable else []
        self._sandbox = Sandbox(scoring.processes, scoring.timeout_s, folders=folders, variables=scoring.variables)
        self._working = TurnPool(scoring.processes, "scorer")
        self._judging = TurnPool(JUDGE_THREADS, "judge")
        self._timeouts: OrderedDict[tuple[str, str], int] = OrderedDict()  # by task and source
        self._judge: Judge | None = None
        self._ranking_judge: RankingJudge | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def __enter__(self) -> Scorers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_quick(self, source: RewardSource) -> bool:
        """Whether every part runs inline, so that it needs no thread."""
        try:
            return all(find(part.name).home == "inline" for part in parts(source))
        except ScoreError:
            return True  # it fails at once

    def missing(self, sources: Iterable[RewardSource]) -> MissingScorer | None:
        """Return the first requirement of these that this process lacks, or None."""
        for part in parts_of(sources):
            if find(part.name).home == "judge" and (error := missing_setting(self._scoring)) is not None:
                return MissingScorer("no_judge", error)
            if (error := self._import_refusal(part.name)) is not None:
                return MissingScorer(NOT_LISTED, error)
        return None

    def load(self, sources: Iterable[RewardSource]) -> None:
        """Import each function named by these, in a worker process. Raises ScoreError for the first that fails."""
        for name in dict.fromkeys(part.name for part in parts_of(sources)):
            if ":" in name:
                self._sandbox.load(name)

    def start(self, task: Task, source: RewardSource, job: Callable[[], T]) -> Future[T]:
        """Run `job`, which scores with `source`, in a thread for such scorers, in the task's turn."""
        asks = any(find(part.name).home == "judge" for part in parts_of([source]))
        return (self._judging if asks else self._working).submit(task.task_id, job)

    def score(self, task: Task, response: Response, source: RewardSource) -> ScoreOutcome:
        """Return the outcome; any failure of a task, a response or a scorer is an outcome with an error."""
        started, tries, name, prefix = time.perf_counter(), 1, source.name, ""
        try:
            mixed = parts(source)
            verdicts = []
            for part in mixed:
                name = part.name
                prefix = f"{part.label or name}." if source.name == "mix" else ""
                verdict, used = self._persist(task, response, part, source.name)
                tries = max(tries, used)
                verdicts.append(verdict)
            if source.name == SWAPPED:
                settings = json_object(source.settings, SWAPPED, reason="bad_settings")
                swaps = TermSwaps(options(SwappedScorer, settings, SWAPPED).terms)
                copy = swaps.swap_task(task), swaps.swap_response(response)
                other, used = self._persist(*copy, mixed[0], source.name)
                return _outcome(average(verdicts[0], other), started, max(tries, used))
            verdict = verdicts[0] if source.name != "mix" else blend(mixed, verdicts)
        except Exception as exc:  # a bug costs this score, not the agent
            failed = exc if isinstance(exc, ScoreError) else _exception_error(name, exc)
            version = (failed.version or _version(name))[:MAX_VERSION]
            failed.spent = {prefix + key: number for key, number in failed.spent.items()}
            whole_version = f"mix/1[{version}]" if source.name == "mix" and name != "mix" else version
            return _failed_outcome(failed, whole_version, started, tries)
        return _outcome(verdict, started, tries)

    def rank(self, task: Task, responses: Sequence[Response], source: RewardSource) -> list[ScoreOutcome]:
        """Return one outcome for each response, from a source that compares them; a failure is the outcome of all."""
        started, tries = time.perf_counter(), 1
        try:
            settings = options(RankingOptions, parts(source)[0].settings, source.name)
            if len(responses) < 2:
                raise ScoreError(f"{source.name}: {len(responses)} response of this group can be compared, expected 2 "
                                 "or more", reason="alone")  # fmt: skip
            once = partial(self._the_ranking_judge().rank, task, responses, settings)
            budget = budget_of(self._scoring.judge_url or "")
            verdicts, tries, spent = persist(once, self._scoring.retries, self._stopping, budget=budget)
            share = share_of_each(spent, len(responses))
            checked = [check_verdict(verdict, source.name) for verdict in verdicts]
        except Exception as exc:  # a bug costs this group's scores, not the agent
            failed = exc if isinstance(exc, ScoreError) else _exception_error(source.name, exc)
            failed.spent = share_of_each(failed.spent, max(1, len(responses)))
            outcome = _failed_outcome(failed, failed.version or _version(source.name), started, tries)
            return [outcome] * len(responses)
        return [
            _outcome(replace(verdict, components=sum_of(verdict.components, share)), started, tries)
            for verdict in checked
        ]

    def stop(self) -> None:
        """Stop retrying: running scores end at their first failure."""
        self._stopping.set()

    def close(self) -> None:
        """End workers and connections; jobs of `start` that have not begun are cancelled."""
        self.stop()
        self._working.cancel()
        self._judging.cancel()
        self._sandbox.close()
        self._working.join()
        self._judging.join()
        for judge in (self._judge, self._ranking_judge):
            if judge is not None:
                judge.close()

    def _persist(self, task: Task, response: Response, part: MixPart, source: str) -> tuple[Verdict, int]:
        if find(part.name).home == "sandbox":
            self._refuse(task.task_id, source)

        def count_timeout(exc: ScoreError) -> None:
            if exc.reason == "timeout" and find(part.name).home == "sandbox":
                self._count_timeout(task.task_id, source)

        once = partial(self._once, task, response, part)
        budget = budget_of(self._scoring.judge_url or "") if find(part.name).home == "judge" else None
        verdict, tries, spent = persist(once, self._scoring.retries, self._stopping, count_timeout, budget=budget)
        return replace(verdict, components=sum_of(verdict.components, spent)), tries

    def _once(self, task: Task, response: Response, part: MixPart) -> Verdict:
        scorer = find(part.name)
        if scorer.of_group:
            raise ScoreError(ALONE, reason="needs_group")
        if (error := self._import_refusal(part.name)) is not None:
            raise ScoreError(error, reason=NOT_LISTED)
        if scorer.home == "sandbox":
            verdict = self._sandbox.score(part.name, part.settings, task, response)
        elif scorer.home == "judge":
            verdict = self._the_judge().score(task, response, options(JudgeOptions, part.settings, "judge"))
        else:
            verdict = scorer(task, response, part.settings)
        return check_steps(check_verdict(verdict, part.name), response, part.name)

    def _import_refusal(self, name: str) -> str | None:
        """Return why the module of an entry point may not be imported; None if it may, or is not an entry point."""
        module, colon, _ = name.partition(":")
        if not colon or self._scoring.lists(module):
            return None
        return (
            f"scorer {name} is not run: scoring.modules lists {self._scoring.modules or 'no module'}, and a task can "
            f"only name what is listed; add {module} to scoring.modules, and `.` if it is in the working folder"
        )

    def _refuse(self, task_id: str, source: str) -> None:
        with self._lock:
            timeouts = self._timeouts.get((task_id, source), 0)
        if timeouts >= MAX_TIMEOUTS:
            raise ScoreError(
                f"{source} was not tried: {timeouts} responses to task {task_id} ran into the time limit; make it "
                "faster, or raise scoring.timeout_s, and start the agent again",
                reason="too_slow",
            )

    def _count_timeout(self, task_id: str, source: str) -> None:
        with self._lock:
            self._timeouts[task_id, source] = self._timeouts.pop((task_id, source), 0) + 1
            if len(self._timeouts) > REMEMBERED:
                self._timeouts.popitem(last=False)

    def _the_ranking_judge(self) -> RankingJudge:
        with self._lock:
            if self._ranking_judge is None:
                self._ranking_judge = RankingJudge(self._scoring)
            return self._ranking_judge

    def _the_judge(self) -> Judge:
        with self._lock:
            if self._judge is None:
                self._judge = Judge(self._scoring)
            return self._judge


def _outcome(verdict: Verdict, started: float, tries: int) -> ScoreOutcome:
    return ScoreOutcome(
        value=verdict.value,
        version=verdict.version,
        components=verdict.components,
        rationale=verdict.rationale,
        steps=verdict.steps,
        latency_ms=_since(started),
        tries=tries,
    )


def _failed_outcome(failed: ScoreError, version: str, started: float, tries: int) -> ScoreOutcome:
    return ScoreOutcome(
        value=None,
        error=storable(f"{failed.reason}: {failed}"[:MAX_RATIONALE]),
        reason=failed.reason,
        version=storable(version),
        components=failed.spent,
        latency_ms=_since(started),
        tries=max(tries, failed.tries),
    )


def _exception_error(name: str, exc: Exception) -> ScoreError:
    return ScoreError(f"{name} raised {type(exc).__name__}: {exc}", reason="exception")


def parts_of(sources: Iterable[RewardSource]) -> Iterator[MixPart]:
    """Yield the parts of each source, except those that fail for good in any process."""
    for source in sources:
        with contextlib.suppress(ScoreError):
            yield from parts(source)


def _version(name: str) -> str:
    try:
        return find(name).version
    except ScoreError:
        return f"{name}/unknown"


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


class TurnPool:
    """At most `threads` threads, which start with the first jobs and share their time among keys.

    A key with many jobs does not delay the others: one job of each key runs in turn.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._max_threads, self._name = threads, name
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._idle = self._waiting = 0  # threads, jobs
        self._closed = False

    def submit(self, key: str, job: Callable[[], T]) -> Future[T]:
        """Run `job` when it is its key's turn. The future is cancelled if the pool closes first."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._queues.setdefault(key, deque()).append((future, job))
            self._waiting += 1
            if self._idle < self._waiting and len(self._threads) < self._max_threads:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def cancel(self) -> None:
        """Accept no more jobs, and cancel waiting ones."""
        with self._changed:
            self._closed = True
            waiting = [future for queue in self._queues.values() for future, _ in queue]
            self._queues.clear()
            self._changed.notify_all()
        for future in waiting:
            future.cancel()

    def join(self) -> None:
        """Wait for the running jobs; call `cancel` first."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            future, job = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as exc:  # of a thread; raised again where it is waited for
                    future.set_exception(exc)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queues or self._closed)
            self._idle -= 1
            if self._closed:
                return None
            key, queue = self._queues.popitem(last=False)
            entry = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[key] = queue  # at the end: the others come first
            return entry
