"""Train the versions on the way to a turning point again, without the groups that taught a behaviour.

    newest checkpoint before it, or the base ──► the same batches, some groups left out ──► adapters in a folder

It is `streamward reproduce` with other batches: same recipe, threads and order. Versions before the turning point have
all of their groups, and their bytes are compared with the log.

Not covered: later batches. Their answers were sampled by versions that had learned the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from plugins.bisect.version_search import Turning
from schemas.events import Batch
from streams.kafka.history import History
from streams.settings.model import Settings
from trainer.reproduce import retrain
from trainer.reproduce.recorded import PlannedStep, ReproductionPlan
from trainer.versions import checkpoint


def plan_without(
    settings: Settings, policy: str, turning: Turning, left_out: Collection[tuple[int, int]], history: History
) -> ReproductionPlan:
    """Return the plan of the versions up to the turning point, without the groups at (partition, offset).

    Raises as `retrain.plan`.
    """
    saved = checkpoint.versions(settings.trainer.checkpoints / policy)
    start = max((version for version in saved if version < turning.first), default=0)
    planned = retrain.plan(settings, policy, turning.last, history, start=start)
    return replace(planned, steps=tuple(_leave_out(step, turning, left_out) for step in planned.steps))


def _leave_out(step: PlannedStep, turning: Turning, left_out: Collection[tuple[int, int]]) -> PlannedStep:
    batch = step.batch
    if batch is None or step.event.version < turning.first:
        return step
    return step._replace(batch=_batch_without(batch, left_out))


def _batch_without(batch: Batch, left_out: Collection[tuple[int, int]]) -> Batch:
    offsets = tuple(offset for offset in batch.groups_offsets if (batch.groups_partition, offset) not in left_out)
    return replace(batch, groups_offsets=offsets, groups=len(offsets))


def train_without(
    planned: ReproductionPlan,
    settings: Settings,
    history: History,
    turning: Turning,
    *,
    root: Path,
    say: Callable[[str], None],
) -> Path:
    """Train the planned versions; return the folder with the adapter of the last one.

    Raises as `retrain.run`.
    """
    for version in retrain.run(planned, settings, history, into=root, compare=False):
        if version.version < turning.first and not version.equal:
            say(
                f"version {version.version} is not made again byte for byte, so the comparison is approximate; "
                f"`streamward reproduce --version {version.version}` names the cause"
            )
        say(f"version {version.version}: trained on {version.made_from}, {version.seconds:.1f} s")
    path, _ = checkpoint.of_version(root / planned.policy, turning.last)
    return path / checkpoint.ADAPTER_FOLDER
