"""Warn when a run of the loop learns nothing, with the reason; end it when that lasts.

Progress ──► a step after the other without a difference in reward ──► one warning a cause; the reason to stop
         ──► how the run ended ──► the reason for exit code 1, with the newest version that was an improvement
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from streams.demo.progress import Progress
from streams.errors import LogError
from streams.evaluation.diagnosis import CAUSES, Diagnosis, diagnose, newest_improvement, symptoms_of
from streams.tools.sample_answers import sample_answers
from streams.tools.views.places import PLACES


@dataclass
class LearningWatch:
    """What a run has taught since it began."""

    progress: Progress
    leftovers: int = 0
    """In-flight train tasks of an earlier run: their groups come first, and do not count for this run."""
    _groups_before: int = field(init=False)
    _differed_before: int = field(init=False)
    _trained_before: int = field(init=False)
    _flat_steps_seen: int = field(init=False)
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        history = self.progress.learning
        self._groups_before, self._differed_before = history.groups, history.differed
        self._trained_before = self.progress.places["trained"]
        self._flat_steps_seen = history.steps_without_difference

    def warnings(self) -> Iterator[str]:
        """Yield each scorer's first error, and a diagnosis once for each cause, until groups differ again."""
        for scorer in self.progress.failures.scorers():
            if scorer.scorer not in self._warned:
                self._warned.add(scorer.scorer)
                yield f"scoring: {scorer.first_error}"
        flat_steps = self.progress.learning.steps_without_difference
        if flat_steps == self._flat_steps_seen:  # a diagnosis reads the log: once a step
            return
        self._flat_steps_seen = flat_steps
        if not flat_steps:
            self._warned -= CAUSES.keys()
        diagnosis = self.diagnosis()
        if diagnosis is not None and diagnosis.cause not in self._warned:
            self._warned.add(diagnosis.cause)
            yield f"warning: {diagnosis}"

    def diagnosis(self) -> Diagnosis | None:
        """Return why the newest steps of this run taught nothing; None if they did, or are too few."""
        groups = self.progress.learning.flat_groups()
        if not groups or self._new_groups() < len(groups):
            return None
        errors = [*self.progress.errors, *(scorer.last_error for scorer in self.progress.failures.scorers())]
        try:
            answers = sample_answers(self.progress.settings, groups)
        except LogError:  # a diagnosis can do without answers
            answers = []
        symptoms = symptoms_of(self.progress.learning, answers=answers, errors=errors, primary=self.progress.primary)
        return None if symptoms is None else diagnose(symptoms)

    def stop_reason(self) -> str | None:
        """Return why the run has to end: too many of its steps in a row taught nothing."""
        limit, history = self.progress.settings.learning.stop_after, self.progress.learning
        steps = min(history.steps_without_difference, self._new_groups() // history.step)
        if not limit or steps < limit:
            return None
        return f"{steps} steps in a row taught nothing (learning.stop_after)"

    def failure(self, *, trains: bool) -> str | None:
        """Return why an ended run failed; None if it did not."""
        if (reason := self.stop_reason()) is not None:
            return _sentences(reason, *self._causes(), *self._way_back())
        history, progress = self.progress.learning, self.progress
        if trains and progress.places["trained"] == self._trained_before:
            places = f"nothing was trained: {self._places()}"
            return _sentences(places, *progress.scoring_faults(), *self._causes())
        groups, faults = self._new_groups(), progress.scoring_faults()
        if not groups and faults:
            return _sentences("nothing was learnt: no answer of this run has a score", *faults)
        has_taught = history.differed > self._differed_before or history.last_step_differed  # also of an earlier run
        if groups and not has_taught and progress.settings.learning.stop_after:
            return _sentences(*self._causes() or [f"nothing was learnt: none of {groups} groups differed in reward"])
        return None

    def _new_groups(self) -> int:
        return max(0, self.progress.learning.groups - self._groups_before - self.leftovers)

    def _places(self) -> str:
        """Return where the train tasks are that were not trained on."""
        places, reasons = self.progress.places, self.progress.reasons
        counts = [f"{places[place]} {place}" for place in PLACES if places[place] and place != "trained"]
        counts += [f"{count} of them {reason}" for reason, count in reasons.most_common()]
        return ", ".join(counts) or "there was no task"

    def _causes(self) -> list[str]:
        diagnosis = self.diagnosis()
        return [] if diagnosis is None else [str(diagnosis)]

    def _way_back(self) -> list[str]:
        """Return which version was the newest improvement, and the command that makes it answer again."""
        scores, primary = self.progress.scores(), self.progress.primary
        best = newest_improvement(scores)
        if best is None:
            return ["no version was better than the one before it"]
        named = f"version {best} is the newest that was better than the one before it ({scores[best]:.2f})"
        if best >= primary:
            return [named]
        words = ["streamward", "adapters", "rollback", str(best), "--expected", str(primary)]
        return [f"{named}: `{shlex.join([*words, '--reason', 'later ones learnt nothing'])}`"]


def _sentences(first: str, *rest: str) -> str:
    return ". ".join([first, *(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in rest)])
