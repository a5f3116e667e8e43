"""Evaluate an adapter version on a suite of held-out tasks.

    suite, version ──► `eval` tasks pinned to that version ──► (the loop) ──► `evaluated`
    trained        ──► the guard's suite is due ──► tasks for it, and for the primary to compare with

The tasks go through the same agents and scorers as all others; their version is pinned, so the score is exactly that
adapter's. Ids are derived from suite, policy, version and index: submitting a suite twice adds nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

from schemas.events import AdapterEvent, Task, derive_id
from streams.evaluation.suite import Suite
from streams.settings.model import Guard

TURN = 16
"""Number of tasks of one version before those of the next: a round of the policy agent, which uses one version."""


def evaluation(
    suite: Suite, *, policy: str, version: int, now_ms: int, deadline_ms: int | None = None
) -> Iterator[Task]:
    """Yield the tasks of a suite, pinned to `version`; without `deadline_ms` they have the default deadline."""
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
    """Yield the tasks of a suite for several versions, TURN of each in turn, so that all run at about the same time."""
    per_version = [
        evaluation(suite, policy=policy, version=version, now_ms=now_ms, deadline_ms=deadline_ms)
        for version in versions
    ]
    for _ in range(0, len(suite.questions), TURN):
        for tasks in per_version:
            yield from itertools.islice(tasks, TURN)


def is_due(event: AdapterEvent, rule: Guard) -> bool:
    """Return whether the guard evaluates the version in `event`: each `rule.every`th trained one."""
    return event.kind == "trained" and event.version % rule.every == 0


def tasks_for(suite: Suite, event: AdapterEvent, *, primary: int, evaluated: Collection[int]) -> Iterator[Task]:
    """Yield the tasks for a version that is due and for the primary, except for versions that are `evaluated` already.

    A function of its arguments: a stage that reads the event again adds nothing new.
    """
    versions = [version for version in dict.fromkeys((event.version, primary)) if version not in evaluated]
    yield from in_turns(suite, policy=event.policy, versions=versions, now_ms=event.created_at)
