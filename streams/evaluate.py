"""Ask a fixed set of held-out questions of one adapter version.

    generator, count, seed, version ──► `eval` tasks pinned to that version ──► (the loop) ──► `evaluated`

The tasks go through the same agents and scorers as all others; their version is pinned, so the score is of exactly
that adapter. Ids are made of suite, policy, version and index: asking again adds nothing.

Not covered: judging the result. That is a rule of rollouts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from schemas.events import Task, derive_id
from streams import generators


def suite_name(generator: str, count: int, seed: int) -> str:
    """Return the name under which results are compared: equal names mean equal questions."""
    return f"{generator}/n={count}/seed={seed}"


def evaluation(generator: str, *, count: int, seed: int, policy: str, version: int, now_ms: int) -> Iterator[Task]:
    """Yield the held-out tasks of a suite, pinned to `version`."""
    suite = suite_name(generator, count, seed)
    asked = generators.generate(
        generator, count=count, seed=seed, purpose="eval", policy=policy, group_size=1, now_ms=now_ms
    )
    for index, task in enumerate(asked):
        yield dataclasses.replace(
            task,
            task_id=derive_id("evaluation", suite, policy, version, index),
            adapter_version=version,
            metadata={**task.metadata, "suite": suite, "suite_size": str(count)},
        )
