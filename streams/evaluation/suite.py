"""A suite: held-out questions for every version, in a fixed order, under a name that identifies them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.events import Task
from streams.evaluation.expectations import Expectation

_OWNED = re.compile(r"([a-z]+)/([\w.-]+)")
SUCCESS_REWARD = "success_reward"
"""Metadata key of a task: the minimum reward of a right answer, if the source `exact` does not decide it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions in order, and the name that identifies exactly these."""

    name: str
    """E.g. `sums@1f3c9a2b`. Equal names mean equal questions."""
    questions: tuple[Task, ...]
    """Not pinned to a version yet. The index of a question pairs the outcomes of two versions."""
    thresholds: Mapping[str, Mapping[str, float]]
    """Minimum `success` and `mean_reward`, by scenario, with which the guard promotes a version."""
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    """Expectations about columns of training rows; not part of the name."""


def owner_of(suite: str) -> tuple[str, str] | None:
    """Return the kind and the id of what holds out the questions of a suite by itself; None for any other suite.

    >>> owner_of("job/4adaf3a1-50c7-5e0c-9f3c-2f3a1e9d7c10"), owner_of("sums/n=35/seed=0")
    (('job', '4adaf3a1-50c7-5e0c-9f3c-2f3a1e9d7c10'), None)
    """
    match = _OWNED.fullmatch(suite)
    return None if match is None else (match[1], match[2])


def generated_name(generator: str, count: int, seed: int, options: Mapping[str, Any]) -> str:
    """Return the name of the suite made of a generator's first `count` held-out tasks.

    >>> generated_name("sums", 35, 0, {"terms": 3})
    'sums/n=35/seed=0/{"terms": 3}'
    """
    name = f"{generator}/n={count}/seed={seed}"
    return f"{name}/{json.dumps(dict(options), sort_keys=True)}" if options else name
