"""Repeat one recorded call with several versions, and compare their answers with the recorded one.

    TURN ──► Moment ──► a task for each version, with the recorded tokens ──► policy agent ──► answers ──► scores
                                                                                     └── difference to the recorded one

Only the call is repeated: the run of an agent or an environment does not continue after it, and nothing is learned from
it. Scores are made in this process, and are not recorded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from schemas.events import RewardSource, Task
from streams.errors import EventError, NotFoundError
from streams.kafka import times
from streams.settings.model import Settings
from streams.stages.scoring.trial import try_texts
from streams.tools.asking import ask, bare_id, find_answer
from streams.tools.forks.forked_task import ForkOrder, fork
from streams.tools.forks.moments import Moment, find_moment


class VersionAnswer(NamedTuple):
    """The answer of a version to a recorded call."""

    version: int
    text: str
    score: float | None
    """Sum of its scorers; None: there is none."""
    is_recorded: bool = False


def repeat_call(
    settings: Settings, name: str, versions: Sequence[int], scorers: Sequence[RewardSource], *, wait_s: float
) -> list[VersionAnswer]:
    """Return the recorded answer to a call, and that of each version, in their order; `name`: its turn or response.

    Raises NotFoundError, EventError if it cannot be repeated or scored, StreamwardError if no answer comes in time.
    """
    rated = find_answer(settings, name)
    moment = find_moment(settings, rated.task_id, bare_id(name))
    if moment is None:
        raise NotFoundError(f"{name} is neither a turn nor an answer; name one, as `streamward query moments` does")
    tasks = [_task(moment, version, wait_s) for version in versions]
    answers = [VersionAnswer(moment.version, moment.text, None, is_recorded=True)]
    answers += [
        VersionAnswer(version, ask(settings, task, wait_s=wait_s).text, None)
        for version, task in zip(versions, tasks, strict=True)
    ]
    return list(_scored(settings, moment.task or tasks[0], scorers, answers))


def differences(answers: Sequence[VersionAnswer]) -> Iterator[tuple[VersionAnswer, str]]:
    """Yield each answer after the first with its difference to that: removed words in [-…-], new ones in {+…+}."""
    first = answers[0].text.split()
    for answer in answers[1:]:
        words, parts = answer.text.split(), list[str]()
        for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, first, words).get_opcodes():
            old, new = " ".join(first[start:end]), " ".join(words[new_start:new_end])
            parts += [old] if kind == "equal" else [f"[-{old}-]"] * bool(old) + [f"{{+{new}+}}"] * bool(new)
        yield answer, " ".join(parts)


def _task(moment: Moment, version: int, wait_s: float) -> Task:
    """Return the call as a task that a policy agent answers once."""
    order = ForkOrder(mode="recheck", version=version, group_size=1)
    task = fork(moment, order, now_ms=times.now_ms(), purpose="serve")
    deadline = times.now_ms() + int(wait_s * 1000)
    alone = replace(task, agent=None, environment=None, max_turns=None, reward_sources=(), deadline_at=deadline)
    return replace(alone, task_id=f"{task.task_id}/{deadline}")  # repeated later, it is another task


def _scored(
    settings: Settings, task: Task, scorers: Sequence[RewardSource], answers: Sequence[VersionAnswer]
) -> Iterator[VersionAnswer]:
    scores = [0.0] * len(answers)
    for source in scorers:
        outcomes = try_texts(settings.scoring, task, source, [answer.text for answer in answers])
        for place, outcome in enumerate(outcomes):
            if outcome.value is None:
                raise EventError(
                    f"--scorer {source.name}: no score of version {answers[place].version}: {outcome.error}"
                )
            scores[place] += outcome.value
    yield from (
        answer._replace(score=total if scorers else None) for answer, total in zip(answers, scores, strict=True)
    )
