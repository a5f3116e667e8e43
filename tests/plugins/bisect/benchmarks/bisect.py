"""Behaviours that are planted by seed: the version, its groups, and whether they are gone without these.

    python -m tests.benchmarks bisect [SEED ...]   a plant for each seed, of each kind in turn, and a run without

A line of a plant says which versions were named (it began at version 9), what share of the groups that paid for it in
the batch of version 9 is left out, and the outcome of the counterfactual. The tiny model answers.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plugins.bisect import bisect_report
from plugins.bisect.behaviour import Behaviour
from plugins.bisect.bisection import Bisection, BisectRequest
from streams.kafka import admin
from streams.settings.model import Settings
from tests.benchmarks.loop import node
from tests.benchmarks.side_by_side import cpu_s, say
from tests.plugins.bisect.planted import EXPRESSIONS, KINDS, POLICY, TURNING, VERSIONS, Kind, plant

TOKENS, GOOD, LEAST_RISE = 400_000, 6, 0.05


def run(seeds: Sequence[int] = (1,)) -> Iterator[dict[str, Any]]:
    """Yield a line for each plant, and for each run without a change."""
    logging.disable(logging.WARNING)
    with node() as made:
        for seed in seeds:
            for kind in (KINDS[seed % len(KINDS)], "none"):
                say(f"bisect: {kind}, seed {seed}")
                with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
                    yield _line(made, Path(folder), seed, kind)


def _line(made: Settings, folder: Path, seed: int, kind: Kind) -> dict[str, Any]:
    topics = made.topics.model_copy(update={"prefix": f"{kind}{seed}.", "partitions": 2, "policy_partitions": 1})
    own = made.model_copy(update={"topics": topics})
    admin.apply_topics(own)
    run = plant(own, folder, seed, kind)
    began, cpu_before = time.monotonic(), cpu_s()
    behaviour = Behaviour.parse(EXPRESSIONS[kind], 0.5)
    request = BisectRequest(policy=POLICY, good=GOOD, bad=VERSIONS, behaviour=behaviour, least_rise=LEAST_RISE)
    work = Bisection(settings=run.settings, request=request, stop=threading.Event(), say=lambda text: None)
    try:
        work.sample(TOKENS // 2)
        work.rank()
        work.try_without(TOKENS - work.tokens)
    finally:
        work.close()
    left_out = {group.place.task_id for group in work.left_out}
    turning = work.search.turning
    return {
        "bench": "bisect",
        "case": kind,
        "seed": seed,
        "first": turning and turning.first,
        "last": turning and turning.last,
        "right": turning is None
        if kind == "none"
        else turning is not None and turning.first <= TURNING <= turning.last,
        "planted": len(run.planted),
        "recall": len(run.planted & left_out) / len(run.planted) if run.planted else None,
        "outcome": work.counterfactual and work.counterfactual.outcome,
        "tokens": work.tokens,
        "cpu_s": round(cpu_s() - cpu_before, 1),
        "wall_s": round(time.monotonic() - began, 1),
        "sentence": bisect_report.sentence(work),
    }
