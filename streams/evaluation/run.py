"""Ask a suite of held-out questions of one adapter version.

    suite, version ──► `eval` tasks pinned to that version ──► (the loop) ──► `evaluated`
    trained        ──► the guard's suite is due ──► tasks for it, and for the primary it will be compared with

The tasks go through the same agents and scorers as all others; their version is pinned, so the score is of exactly
that adapter. Ids are made of suite, policy, version and index: asking again adds nothing.

Not covered: judging the result. That is the guard's business (streams/stages/rollouts/guard.py).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

from schemas.events import AdapterEvent, Task, derive_id
from streams.evaluation.suites import Suite
from streams.settings.model import Guard

TURN = 16
"""Tasks of one version before the next one's turn: a round of the policy agent, which answers with one version."""


def evaluation(
    suite: Suite, *, policy: str, version: int, now_ms: int, deadline_ms: int | None = None
) -> Iterator[Task]:
    """Yield the tasks of a suite, pinned to `version`; without `deadline_ms` they have the deadline of all tasks."""
    for index, task in enumerate(suite.questions):
        yield dataclasses.replace(
            task,
            task_id=derive_id("evaluation", suite.name, policy, version, index),
            created_at=now_ms,
            policy=policy,
            adapter_version=version,
            deadline_at=deadline_ms,
            metadata={
                **task.metadata,
                "suite": suite.name,
                "suite_size": str(len(suite.questions)),
                "suite_index": str(index),
            },
        )


def in_turns(
    suite: Suite, *, policy: str, versions: Sequence[int], now_ms: int, deadline_ms: int | None = None
) -> Iterator[Task]:
    """Yield the tasks of a suite for several versions, TURN of each in turn, so that all are asked in the same hour."""
    asked = [
        evaluation(suite, policy=policy, version=version, now_ms=now_ms, deadline_ms=deadline_ms)
        for version in versions
    ]
    for _ in range(0, len(suite.questions), TURN):
        for tasks in asked:
            yield from itertools.islice(tasks, TURN)


def is_due(event: AdapterEvent, rule: Guard) -> bool:
    """Return whether the guard asks the version that `event` speaks of: each `rule.every`th that was trained."""
    return event.kind == "trained" and event.version % rule.every == 0


def tasks_for(suite: Suite, event: AdapterEvent, *, primary: int, asked: Collection[int]) -> Iterator[Task]:
    """Yield what to ask when a version is due: it, and the primary, less the versions that were `asked` before.

    A function of the event and these: a stage that reads the event again asks nothing new.
    """
    versions = [version for version in dict.fromkeys((event.version, primary)) if version not in asked]
    yield from in_turns(suite, policy=event.policy, versions=versions, now_ms=event.created_at)
