"""Pause a scorer that fails on everything, until it works again.

    score ──► note ──► works | fails ── max_failures in a row ──► paused ── a score every pause_s ──► works
                                                                    └── the agent holds its responses

A circuit breaker (Nygard, Release It!, 2007), with one state per scorer. It decides nothing about responses: a paused
scorer spends none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.events import Coordinates, DeadLetter, RewardSource
from streams.scorers import ScoreError, ScoreOutcome, find, parts
from streams.settings.model import Scoring

TASKS_FAULT = ("bad_settings", "bad_verifier", "no_environment", "alone")
"""Reasons that are about the task or the response: no repair of the scorer helps."""
OUT_OF_TIME = ("timeout", "too_slow")

FAILING = (
    "scorer %s fails: %s. Repair it, and try it with `streamward scoring try %s --task FILE:LINE --text TEXT`; a "
    "changed module is loaded again by itself, and `streamward admin rescore --failed` then writes what is missing"
)
FOR_GOOD = {
    "judge_parameter": "until the setting is changed and the agent is started again",
    "judge_budget": "until there is budget again",
}
"""Reasons that hold for every response, and until when: the scorer is paused at its first failure."""
PAUSED = (
    "{scorer} is paused: {last}. {cause}. What it should score is held and not lost, and tried again every "
    "{pause_s:g} s; repair it, or what it needs"
)
PAUSED_REASON = "scorer_paused"
"""Reason of the dead letter about a pause."""
GROUP_WAITS = "Its group is open for it until its deadline: repair the scorer, then `streamward admin rescore --failed`"
"""Ends the dead letter of a failed score."""

Change = Literal["failing", "paused", "resumed"]


def scorer_of(source: RewardSource) -> str:
    """Return the scorers that are paused together: the scorer, or the members of a mix that can fail."""
    try:
        outside = [part.name for part in parts(source) if find(part.name).home != "inline"]
    except ScoreError:
        return source.name
    return "+".join(sorted(set(outside))) or source.name


def paused_scorer(letter: DeadLetter) -> tuple[str, str]:
    """Return the scorer and the message of such a dead letter."""
    error = _without_coordinates(letter)
    return error.partition(" is paused: ")[0], error


def failed_scorer(letter: DeadLetter) -> tuple[str, str]:
    """Return the scorer that gave no score, if such a dead letter names it, and its error."""
    error = _without_coordinates(letter)
    if letter.reason != "score_failed":
        return letter.reason, error
    error = error.partition(f". {GROUP_WAITS}")[0]
    return error.partition(": ")[0], error


def _without_coordinates(letter: DeadLetter) -> str:
    at = Coordinates(letter.source_topic, letter.source_partition, letter.source_offset)
    return letter.error.removeprefix(f"{at}: ")


def pause_message(scorer: str, outcome: ScoreOutcome, scoring: Scoring) -> str:
    """Return the message about a scorer that is paused for this outcome."""
    cause = f"It failed {scoring.max_failures} times in a row (scoring.max_failures)"
    if outcome.reason in FOR_GOOD:
        cause = f"It would fail on every response, {FOR_GOOD[outcome.reason]}"
    return PAUSED.format(scorer=scorer, last=outcome.error, cause=cause, pause_s=scoring.pause_s)


def is_tasks_fault(source: RewardSource, outcome: ScoreOutcome) -> bool:
    """Return whether a score failed because of its task: an unknown scorer, an endless pattern."""
    scorer = scorer_of(source)
    return (
        outcome.reason in TASKS_FAULT
        or (outcome.reason == "unknown_scorer" and ":" not in scorer)
        or (outcome.reason in OUT_OF_TIME and scorer in ("regex", "math", "reasoning-gym"))
    )


def counts(source: RewardSource, outcome: ScoreOutcome) -> bool:
    """Return whether a failed score is one of those that pause a scorer.

    A failure because the task itself took too long does not: one task must not pause a scorer for all.
    """
    return outcome.reason != "too_slow" and not is_tasks_fault(source, outcome)


@dataclass(slots=True)
class ScorerState:
    """One scorer: its consecutive failures, and whether it is paused."""

    failures: int = 0
    reported: bool = False
    """Whether a failure was reported since it last began to work."""
    paused: bool = False
    on_trial: bool = False
    due: float = 0.0
    """Paused: when it is tried again, on the monotonic clock."""


class BreakerRule(Protocol):
    """When something is paused, and for how long; a section of the settings."""

    @property
    def max_failures(self) -> int:
        """Failures in a row that pause it; 0: it is never paused."""

    @property
    def pause_s(self) -> float:
        """Seconds until it is tried again."""


class CircuitBreaker:
    """The state of every scorer. One thread calls `note`; others may call `is_paused`."""

    def __init__(self, rule: BreakerRule) -> None:
        self._max_failures, self._pause_s = rule.max_failures, rule.pause_s
        self._states: dict[str, ScorerState] = {}

    def is_paused(self, scorer: str) -> bool:
        """Whether this scorer is paused."""
        state = self._states.get(scorer)
        return state is not None and state.paused

    def note(self, scorer: str, now: float, *, failed: bool, for_good: bool = False) -> Change | None:
        """Record the outcome of a score; return the change of state. `for_good`: every other response would fail, too.

        `failing` is the first failure since the scorer worked for the first time, or again after a pause.
        """
        state = self._states.setdefault(scorer, ScorerState())
        if not failed:
            was_paused = state.paused
            state.failures, state.paused, state.on_trial = 0, False, False
            state.reported = state.reported and not was_paused
            return "resumed" if was_paused else None
        state.failures += 1
        if state.paused:
            state.on_trial, state.due = False, now + self._pause_s
            return None
        if self._max_failures and (for_good or state.failures >= self._max_failures):
            state.paused, state.due = True, now + self._pause_s
            return "paused"
        first, state.reported = not state.reported, True
        return "failing" if first else None

    def pass_over(self, scorer: str, now: float) -> None:
        """Record that a failed score says nothing about its scorer: a trial is made with another response."""
        state = self._states.get(scorer)
        if state is not None and state.on_trial:
            state.on_trial, state.due = False, now

    def due(self, now: float) -> list[str]:
        """Return the paused scorers that should be tried again."""
        return [
            name for name, state in self._states.items() if state.paused and not state.on_trial and state.due <= now
        ]

    def begin_trial(self, scorer: str) -> None:
        """Record that a paused scorer is being tried, so that only one trial runs at a time."""
        self._states[scorer].on_trial = True
