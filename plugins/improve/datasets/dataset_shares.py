"""Choose the promoted runs that become rows, and their side: limited shares, and no cluster on both sides.

    promoted ──► at most max_machine_share by machines, max_scenario_share of a scenario ──► kept, left out by reason
    kept ──► clusters (streams/tools/query/splits.py) ──► the task of the oldest run of each ──► train or eval

Runs over a share are dropped by a hash of the run, those promoted by a person last, so the rest does not depend on the
order in which runs ended. New runs are younger than the oldest of a cluster, so a cluster keeps its side.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from plugins.improve.datasets.dataset_rule import DatasetRule
from plugins.improve.datasets.judged_runs import JudgedRun
from streams.tools.query.examples import ExportOptions, split_of
from streams.tools.query.splits import clusters_of, origin_of

DatasetSplit = Literal["train", "eval"]
SPLITS: tuple[DatasetSplit, ...] = ("train", "eval")
OVER_MACHINES = "over the share of runs that no person promoted"
OVER_SCENARIO = "over the share of its scenario"


class PlacedRun(NamedTuple):
    """A run that is a row."""

    split: DatasetSplit
    cluster: int
    """The place of the first run of its cluster."""
    run: JudgedRun
    rejected: JudgedRun | None
    """A rejected run of the same question, if there is one."""


def keep_shares(promoted: Sequence[JudgedRun], rule: DatasetRule) -> tuple[list[JudgedRun], Counter[str]]:
    """Return the runs that fit both shares, in their order, and how many do not, by reason."""
    kept, left_out = list(promoted), Counter[str]()
    while True:
        before = len(kept)
        kept = _keep(kept, _machine_limit(kept, rule.max_machine_share), _machine, rule.seed)
        left_out[OVER_MACHINES] += before - len(kept)
        of_machines = len(kept)
        kept = _keep(kept, _scenario_limit(kept, rule.max_scenario_share), _scenario, rule.seed)
        left_out[OVER_SCENARIO] += of_machines - len(kept)
        if len(kept) == before:
            return kept, +left_out


def place(kept: Sequence[JudgedRun], rejected: Sequence[JudgedRun | None], rule: DatasetRule) -> list[PlacedRun]:
    """Return the runs with their sides, in their order; `rejected`: what each is compared with."""
    rows = [[run] if rival is None else [run, rival] for run, rival in zip(kept, rejected, strict=True)]
    origins = [[origin_of(run.finished) for run in runs] for runs in rows]
    merged = [first._replace(keys=sum((origin.keys for origin in more), first.keys)) for first, *more in origins]
    clusters = clusters_of(merged, rule.near_duplicate)
    oldest: dict[int, JudgedRun] = {}
    for row, run in enumerate(kept):
        root = clusters.root(row)
        oldest[root] = min(oldest.get(root, run), run, key=lambda run: (run.ended_ms, run.finished.answer_id))
    options = ExportOptions(policy=rule.policy, test_share=rule.eval_share, seed=rule.seed)
    sides: dict[int, DatasetSplit] = {
        root: "eval" if split_of(run.finished.task_id, options) == "test" else "train" for root, run in oldest.items()
    }
    roots = [clusters.root(row) for row in range(len(kept))]
    return [PlacedRun(sides[root], root, run, rival) for root, run, rival in zip(roots, kept, rejected, strict=True)]


def _keep(
    runs: Sequence[JudgedRun], limit: int | None, key: Callable[[JudgedRun], str | None], seed: int
) -> list[JudgedRun]:
    """Return the runs without those beyond `limit` of any key; None as a key: not limited."""
    if limit is None:
        return list(runs)
    counts: Counter[str] = Counter()
    fitting: set[str] = set()
    for run in sorted(runs, key=lambda run: _rank(run, seed)):
        name = key(run)
        if name is None or counts[name] < limit:
            fitting.add(run.finished.answer_id)
        counts[name or ""] += 1
    return [run for run in runs if run.finished.answer_id in fitting]


def _machine_limit(runs: Sequence[JudgedRun], share: float) -> int | None:
    """Return how many rows of machines fit with those of persons: m ≤ share (m + persons)."""
    if share >= 1:
        return None
    persons = sum(_machine(run) is None for run in runs)
    return math.floor(share * persons / (1 - share) + 1e-9)


def _scenario_limit(runs: Sequence[JudgedRun], share: float) -> int | None:
    """Return the most rows of a scenario in the largest set in which none has more than its share."""
    if share >= 1:
        return None
    counts, total = Counter(map(_scenario, runs)), len(runs)
    while (limit := math.floor(share * total + 1e-9)) and (
        fewer := sum(min(count, limit) for count in counts.values())
    ) < total:
        total = fewer
    return limit


def _rank(run: JudgedRun, seed: int) -> tuple[bool, bytes]:
    digest = hashlib.sha256(f"{seed}\x1f{run.finished.answer_id}".encode()).digest()
    return _machine(run) is not None, digest


def _machine(run: JudgedRun) -> str | None:
    return None if run.verdict.labeller == "person" else "machine"


def _scenario(run: JudgedRun) -> str:
    return run.verdict.scenario
