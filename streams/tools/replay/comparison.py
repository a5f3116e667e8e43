"""Held-out scores of two experiments or policies, side by side.

    adapters of each log: evaluated ──► score by suite and version ──► rows: one suite, one version, both sides

Each side is an experiment, or a policy of this log. Suites of the same name have the same questions. `streamward
replay evaluate` evaluates the versions of an experiment, and `streamward evaluate` those of a policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.faults import nearest
from streams.adapters import versions as adapters
from streams.errors import NotFoundError
from streams.settings.model import Settings
from streams.tools.replay import experiments
from streams.tools.replay.experiments import Experiment

SIGMAS = 1.96
"""Standard errors on either side of a difference, for 95 %."""


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """An experiment or policy, and the scores of its versions."""

    name: str
    is_experiment: bool
    newest: int
    scores: Mapping[tuple[str, int], Mapping[str, float]]
    """By suite and version."""


def side(settings: Settings, name: str, recorded: Mapping[str, Experiment] | None = None) -> ComparisonSide:
    """Return the experiment called `name`, or else the policy. Raises NotFoundError if neither is there.

    `recorded` is the result of `experiments.read`, if it was read before.
    """
    recorded = experiments.read(settings) if recorded is None else recorded
    if name in recorded:
        log, policy = experiments.of(settings, recorded[name]), name
    else:
        log, policy = settings, name
    try:
        state = adapters.read_state(log, policy)
    except NotFoundError:
        if name not in recorded:
            raise
        return ComparisonSide(name, True, 0, {})  # it was stopped before its topics existed
    scores = {
        (suite, number): metrics
        for number, version in state.versions.items()
        for suite, metrics in version.evaluated.items()
    }
    if name not in recorded and not state.newest and not scores and name != settings.policy.name:
        raise NotFoundError(
            f"{name!r} is neither an experiment nor a policy with an adapter or a score; experiments: "
            f"{nearest(name, recorded)}"
        )
    return ComparisonSide(name, name in recorded, state.newest, scores)


def rows(first: ComparisonSide, second: ComparisonSide) -> list[dict[str, Any]]:
    """Return one row for each suite and version that either side answered; a missing score is None.

    `difference` is second minus first in `exact`; `within` is its 95 % interval around 0 if both were equally good and
    the questions drawn again (normal approximation). Both are None unless both sides answered.
    """
    table = []
    for suite, number in sorted(first.scores.keys() | second.scores.keys()):
        left, right = first.scores.get((suite, number), {}), second.scores.get((suite, number), {})
        table.append(
            {
                "suite": suite,
                "version": number,
                first.name: left.get("exact"),
                second.name if second.name != first.name else f"{second.name} again": right.get("exact"),
                "difference": _difference(left, right),
                "within": _within(left, right),
                "n": [int(side.get("n", 0)) for side in (left, right)],
                "mean_reward": [side.get("mean_reward") for side in (left, right)],
            }
        )
    return table


def _difference(left: Mapping[str, float], right: Mapping[str, float]) -> float | None:
    return right["exact"] - left["exact"] if "exact" in left and "exact" in right else None


def _within(left: Mapping[str, float], right: Mapping[str, float]) -> float | None:
    if _difference(left, right) is None or not left.get("n") or not right.get("n"):
        return None
    return SIGMAS * math.sqrt(sum(side["exact"] * (1 - side["exact"]) / side["n"] for side in (left, right)))
