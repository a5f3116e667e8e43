"""Run a reward source: every part where it belongs, with retries, always ending in an outcome.

    task, response, source ──► parts ──► inline | worker process | judge ──► ScoreOutcome(value | error, version, …)

A failed score is an outcome with an error, never 0 and never an exception. Threads may call `score` at the same time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from schemas.events import Response, RewardSource, Task
from streams.observability.tracing.context import Context
from streams.scorers.judge import Judge, JudgeOptions, unconfigured
from streams.scorers.registry import MixPart, blend, find, parts
from streams.scorers.sandbox import Sandbox
from streams.scorers.verdict import MAX_RATIONALE, MAX_VERSION, ScoreError, Verdict, checked, options, storable
from streams.settings.model import Scoring

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Longest pause between two tries; the first is doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutcome:
    """The result of one reward source for one response: a value, or an error and its short reason."""

    value: float | None
    error: str | None = None
    reason: str | None = None
    version: str
    components: dict[str, float] = field(default_factory=dict)
    rationale: str | None = None
    latency_ms: float
    tries: int


class Scorers:
    """Every scorer, ready to run. Call `close` at the end: it may own processes and connections."""

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._sandbox = Sandbox(scoring.processes, scoring.timeout_s)
        self._judge: Judge | None = None
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

    def missing(self, task: Task) -> str | None:
        """Return what this process lacks to score `task`, with the way out; None if nothing."""
        return unconfigured(self._scoring) if any(map(_asks_judge, task.reward_sources)) else None

    def score(
        self, task: Task, response: Response, source: RewardSource, *, trace: Context | None = None
    ) -> ScoreOutcome:
        """Return the outcome: an error for whatever a task, a response or a scorer did.

        `trace` is that of the score, for a scorer that asks another server.
        """
        started, tries, name = time.perf_counter(), 1, source.name
        try:
            mixed = parts(source)
            verdicts = []
            for part in mixed:
                name = part.name
                verdict, used = self._persist(task, response, part, trace)
                tries = max(tries, used)
                verdicts.append(verdict)
            verdict = verdicts[0] if source.name != "mix" else blend(mixed, verdicts)
        except Exception as exc:  # a bug costs this score, not the agent
            failed = exc if isinstance(exc, ScoreError) else _raised(name, exc)
            version = (failed.version or _version(name))[:MAX_VERSION]
            return ScoreOutcome(
                value=None,
                error=storable(f"{failed.reason}: {failed}"[:MAX_RATIONALE]),
                reason=failed.reason,
                version=storable(f"mix/1[{version}]" if source.name == "mix" and name != "mix" else version),
                latency_ms=_since(started),
                tries=max(tries, failed.tries),
            )
        return ScoreOutcome(
            value=verdict.value,
            version=verdict.version,
            components=verdict.components,
            rationale=verdict.rationale,
            latency_ms=_since(started),
            tries=tries,
        )

    def stop(self) -> None:
        """No further tries: scores that run end at their first failure."""
        self._stopping.set()

    def close(self) -> None:
        """End workers and connections."""
        self.stop()
        self._sandbox.close()
        if self._judge is not None:
            self._judge.close()

    def _persist(self, task: Task, response: Response, part: MixPart, trace: Context | None) -> tuple[Verdict, int]:
        for used in range(1, self._scoring.retries + 2):
            try:
                return self._once(task, response, part, trace), used
            except ScoreError as exc:
                last = not exc.again or used > self._scoring.retries
                if last or self._stopping.wait(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (used - 1))):
                    raise _after(exc, used) from exc
        raise AssertionError("unreachable: the loop returns or raises")

    def _once(self, task: Task, response: Response, part: MixPart, trace: Context | None) -> Verdict:
        scorer = find(part.name)
        if scorer.home == "sandbox":
            verdict = self._sandbox.score(part.name, part.settings, task, response)
        elif scorer.home == "judge":
            verdict = self._the_judge().score(task, response, options(JudgeOptions, part.settings, "judge"), trace)
        else:
            verdict = scorer(task, response, part.settings)
        return checked(verdict, part.name)

    def _the_judge(self) -> Judge:
        with self._lock:
            if self._judge is None:
                self._judge = Judge(self._scoring)
            return self._judge


def _raised(name: str, exc: Exception) -> ScoreError:
    return ScoreError(f"{name} raised {type(exc).__name__}: {exc}", reason="exception")


def _after(exc: ScoreError, tries: int) -> ScoreError:
    text = f"{exc} (after {tries} tries)" if tries > 1 else str(exc)
    error = ScoreError(text, reason=exc.reason, again=exc.again, version=exc.version)
    error.tries = tries
    return error


def _asks_judge(source: RewardSource) -> bool:
    try:
        return any(find(part.name).home == "judge" for part in parts(source))
    except ScoreError:
        return False  # it fails for good, whoever scores it


def _version(name: str) -> str:
    try:
        return find(name).version
    except ScoreError:
        return f"{name}/unknown"


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
