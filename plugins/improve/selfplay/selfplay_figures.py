"""Results of a policy in a catalogue, by category, scenario, version or cell.

groups with the catalogue in their metadata ──► answers, failed, success with its interval, mean reward
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from plugins.improve.selfplay.catalogue_tasks import CATEGORY
from plugins.improve.selfplay.curriculum import CATALOGUE, CELL, SCENARIO
from schemas.conventions import has_scores
from schemas.events import AdvantagedGroup
from streams.evaluation.intervals import wilson
from streams.evaluation.results import is_right

Facet = Literal["category", "scenario", "version", "cell"]
FACETS: tuple[Facet, ...] = ("category", "scenario", "version", "cell")
_METADATA = {"category": CATEGORY, "scenario": SCENARIO, "cell": CELL}


@dataclass(slots=True)
class _Figures:
    answers: int = 0
    failed: int = 0
    right: int = 0
    scored: int = 0
    reward: float = 0.0


def figures(catalogue: str, groups: Iterable[AdvantagedGroup], facet: Facet = "category") -> list[dict[str, Any]]:
    """Return a row for each value of the facet, in order; a group that is there twice counts once."""
    by_value: defaultdict[str, _Figures] = defaultdict(_Figures)
    group_ids: set[str] = set()
    for group in groups:
        if group.metadata.get(CATALOGUE) != catalogue or group.group_id in group_ids:
            continue
        group_ids.add(group.group_id)
        value = str(group.adapter_version) if facet == "version" else group.metadata.get(_METADATA[facet], "")
        row = by_value[value]
        row.answers += len(group.responses)
        row.failed += len(group.left_out)
        if has_scores(group):
            row.scored += len(group.responses)
            row.right += sum(is_right(response) for response in group.responses)
            row.reward = math.fsum([row.reward, *(response.reward for response in group.responses)])
    ordered = sorted(by_value.items(), key=lambda item: (len(item[0]), item[0]) if facet == "version" else (0, item[0]))
    return [{facet: value, **_row(row)} for value, row in ordered]


def _row(row: _Figures) -> dict[str, Any]:
    whole: dict[str, Any] = {"answers": row.answers, "failed": row.failed, "success": None, "mean_reward": None}
    if not row.scored:
        return whole
    share = row.right / row.scored
    low, high = wilson(share, row.scored)
    return whole | {
        "success": share,
        "success_low": low,
        "success_high": high,
        "mean_reward": row.reward / row.scored,
    }
