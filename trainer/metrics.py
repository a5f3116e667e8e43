"""The metrics of a training process.

    timings, metrics, groups of one step ──► phases, reward, loss, KL, entropy, clipping, mismatch ──► Meter

The same numbers are in the adapter's event in the log.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from schemas.conventions import UNCHANGED
from schemas.events import AdvantagedGroup
from streams.observability import catalog
from streams.observability.metrics import Meter
from trainer.versions.checkpoint import State


def version(meter: Meter, policy: str, number: int) -> None:
    """Record the newest version."""
    meter.set(catalog.VERSION, number, policy)
    meter.set(catalog.ADAPTER, 1, policy, "trained", str(number))


def step(
    meter: Meter,
    state: State,
    metrics: Mapping[str, float],
    groups: Sequence[AdvantagedGroup],
    marks: Sequence[float],
) -> None:
    """Record one step. `marks`, seconds of a clock: when wait, load, step, checkpoint, publish began; the end."""
    if not meter.on:
        return
    policy = state.policy
    waited_s, load_s, step_s, checkpoint_s, publish_s = (later - earlier for earlier, later in pairwise(marks))
    inside = {phase: metrics.get(f"{phase}_s", 0.0) for phase in ("forward", "backward", "optimizer")}
    phases = {"wait": waited_s, "load": load_s, **inside, "checkpoint": checkpoint_s, "publish": publish_s}
    for phase, seconds in phases.items():
        meter.observe(catalog.PHASE, seconds, policy, phase)
    meter.observe(catalog.PROCESSING, load_s + step_s + checkpoint_s + publish_s, "trainer")
    version(meter, policy, state.version)
    meter.add(catalog.TRAINED_TOKENS, policy, by=metrics["tokens"])
    if metrics.get(UNCHANGED):
        meter.add(catalog.SKIPPED, policy)
    for name, metric in catalog.OF_STEP.items():
        if name in metrics:
            meter.set(metric, metrics[name], policy)
    rewards = [response.reward for group in groups for response in group.responses]
    if rewards:
        meter.set(catalog.REWARD_MEAN, statistics.fmean(rewards), policy)
        meter.set(catalog.REWARD_STD, statistics.pstdev(rewards), policy)
        flat = sum(group.flat for group in groups)
        meter.set(catalog.FLAT_SHARE, flat / len(groups), policy)
