"""The trainer's share of faults 1, 3, 4 and 7: whatever happens to it, the same bytes.

    groups, batches of a tiny model ──► a copy of the log that nobody disturbs ──► manifests, optimizer state
                                    └─► a copy under a fault ───────────────────► the same, by sha256

Both copies have the same records at the same offsets. The model has 40 thousand parameters, so a step takes a moment
and a run sees many of them.

Not covered: the loss of a checkpoint folder. Without one the trainer trains again from batch 0 (docs/architecture.md).
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.events import AdapterEvent, Batch
from streams.engines.base_model import Base, load_base
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Model, Settings
from streams.tools.replay import driver
from tests.chaos import child
from tests.chaos.disks import fill, free, read_only, small_disk, writable
from tests.chaos.load import person
from tests.chaos.matrix import FAULTS, Fault, Line, exits, healed
from tests.chaos.world import World
from tests.support.models.tiny import save_tiny, tiny_group, tiny_model

BATCHES = 24
PER_BATCH = 2
MOST_PASSED = 3
TIMEOUT_S = 120.0
STEP_S = 0.5
"""What a step is made to take where it must not have ended before the fault has begun."""

Trouble = Callable[[World, random.Random], None]


def register(name: str, number: int, what: str, how: str, trouble: Trouble, codes: frozenset[int]) -> None:
    """Add a fault that meets a trainer alone."""

    def run(row: Fault, seed: int, groups: int, folder: Path) -> Line:
        return _run(row, seed, folder, trouble)

    FAULTS[name] = Fault(name, number, what, how, inject=lambda *_: None, starts=(), codes=codes, run=run)


# --- one run ----------------------------------------------------------------------------------------------------------


def _run(row: Fault, seed: int, folder: Path, trouble: Trouble) -> Line:
    begun = time.monotonic()
    model = save_tiny(folder / "model")
    base = load_base(Model(base=str(model)))
    settings = {"model": {"base": str(model)}, "batches": {"groups": PER_BATCH, "max_policy_lag": 10**6}}
    with World(folder / "run", settings) as world:
        expected = _undisturbed(world, base, seed)
        world.use(world.direct.kafka.bootstrap)
        admin.apply_topics(world.direct)
        _preload(world.direct, base, seed)
        trouble(world, random.Random(f"{row.name} {seed}"))
        healed = time.monotonic()
        _until_trained(world)
        recovery_s = time.monotonic() - healed
        codes = world.stop()
        complaints = [*_compare(expected, world), *exits(row, world, codes)]
        manifests = _manifests(world.direct)
        return {
            "fault": row.name,
            "number": row.number,
            "seed": seed,
            "faust": "none",
            "produced": BATCHES,
            "acknowledged": BATCHES,
            "unknown": 0,
            "failed": 0,
            "groups": BATCHES * PER_BATCH,
            "lost": BATCHES - len(manifests),
            "doubled": sum(len(found) > 1 for found in manifests.values()),
            "phantom": len(manifests.keys() - set(range(1, BATCHES + 1))),
            "repeated": announced(world.direct) - len(manifests),
            "out_of_order": 0,
            "ends": dict(Counter(f"{ended.name} {ended.code}" for ended in world.exits)),
            "notes": [*world.notes, "adapter and optimizer state compared by sha256"],
            "recovery_s": round(recovery_s, 1),
            "passed": not complaints,
            "complaints": complaints,
            "seconds": round(time.monotonic() - begun, 1),
        }


def _undisturbed(world: World, base: Base, seed: int) -> tuple[dict[int, set[Any]], str]:
    _preload(world.direct, base, seed)
    world.start("train-straight")
    _until_trained(world)
    world.stop("train-straight")
    return _manifests(world.direct), _optimizer(world.direct)


def _preload(settings: Settings, base: Base, seed: int) -> None:
    """Write groups, and the batches that the stage cuts of them."""
    model = tiny_model()
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    with Producer(settings) as producer:
        for number in range(BATCHES * PER_BATCH):
            producer.send(tiny_group(model, 1000 * seed + number, subject=person(number), **digests))
        producer.flush()
        for made in driver.cut(settings, admin.read_topic(settings, "groups")):
            assert isinstance(made, Batch), made
            producer.send(made)


def _until_trained(world: World) -> None:
    """Return once every version was announced, by whomever, and the last checkpoint lies in the folder of this run."""
    wait_until(
        lambda: len(_manifests(world.direct)) >= BATCHES and _checkpoint(world.direct) >= BATCHES,
        f"{BATCHES} versions and the last checkpoint",
        world,
    )


def _trained(settings: Settings) -> list[AdapterEvent]:
    events = [record.decode(AdapterEvent) for record in admin.read_topic(settings, "adapters")]
    return [event for event in events if isinstance(event, AdapterEvent) and event.kind == "trained"]


def announced(settings: Settings) -> int:
    """Return how many versions its log has."""
    return len(_trained(settings))


def _manifests(settings: Settings) -> dict[int, set[Any]]:
    found: dict[int, set[Any]] = defaultdict(set)
    for event in _trained(settings):
        found[event.version].add(event.files)
    return dict(found)


def _checkpoint(settings: Settings) -> int:
    """Return the version of the newest checkpoint; 0 without one."""
    found = (settings.trainer.checkpoints / settings.policy.name).glob("v[0-9]*")
    return max((int(folder.name[1:]) for folder in found), default=0)


def _optimizer(settings: Settings) -> str:
    """Return the sha256 of the last checkpoint's optimizer state."""
    newest = max((settings.trainer.checkpoints / settings.policy.name).glob("v[0-9]*"))
    return hashlib.sha256((newest / "optimizer.safetensors").read_bytes()).hexdigest()


def _compare(expected: tuple[dict[int, set[Any]], str], world: World) -> list[str]:
    manifests, optimizer = expected
    found = _manifests(world.direct)
    differ = [version for version in sorted(manifests | found) if manifests.get(version) != found.get(version)]
    complaints = [f"versions {differ} are not those of the undisturbed run, by sha256"] if differ else []
    if _optimizer(world.direct) != optimizer:
        complaints.append("the last optimizer state is not that of the undisturbed run, by sha256")
    return complaints


# --- what happens to it -----------------------------------------------------------------------------------------------


def _kill(world: World, draw: random.Random) -> None:
    points = list(child.POINTS["train"])
    draw.shuffle(points)
    world.start("train", kills=[(point, draw.randint(1, MOST_PASSED)) for point in points])
    wait_until(lambda: not world.is_armed(), f"a kill at each of {points}", world)


def _zombie(world: World, draw: random.Random) -> None:
    world.start("train")
    _versions(world, draw.randint(2, 6))
    world.start("train-2")
    with healed(lambda: world.thaw("train")):
        world.freeze("train")
        time.sleep(3 * world.settings.kafka.session_timeout_s)
    time.sleep(1)
    world.stop("train-2")


def _two(world: World, draw: random.Random) -> None:
    """Two that share a folder, so that one is refused; and one with a folder of its own, as on another machine."""
    elsewhere = world.settings.trainer.model_copy(update={"checkpoints": world.folder / "elsewhere"})
    world.start("train")
    world.start("train-2")
    world.start("train-3", settings=world.settings.model_copy(update={"trainer": elsewhere}))
    _until_trained(world)
    if "already being trained" not in world.said("train") + world.said("train-2"):
        raise RuntimeError(f"neither of two trainers was refused: {world.said('train-2')[-400:]}")
    world.stop("train-2", "train-3")


def _disk(world: World, draw: random.Random) -> None:
    with small_disk(24, "ext4") as disk:
        full = world.settings.trainer.model_copy(update={"checkpoints": disk / "checkpoints"})
        world.settings = world.settings.model_copy(update={"trainer": full})
        world.direct = world.direct.model_copy(update={"trainer": full})
        world.start("train", step_s=STEP_S)
        _versions(world, draw.randint(2, 6))
        for spoil, mend in ((fill, free), (read_only, writable)):
            ended = len(world.exits)
            with healed(lambda mend=mend: mend(disk)):  # type: ignore[misc]
                spoil(disk)
                deadline = time.monotonic() + 30
                while len(world.exits) == ended and time.monotonic() < deadline:
                    time.sleep(0.1)
                world.stop("train")  # a disk is mended while nobody uses it
            if not any(end.code for end in world.exits[ended:]):
                raise TimeoutError(f"the trainer did not notice its disk: {world.said('train')[-400:]}")
            world.start("train", step_s=STEP_S)
            _versions(world, announced(world.direct) + 1)
        _until_trained(world)
        world.stop("train")
        if "No space left" not in world.said("train") or "Read-only" not in world.said("train"):
            raise RuntimeError(f"the trainer did not say what was wrong: {world.said('train')[-600:]}")
        kept = world.folder / "kept"
        shutil.copytree(disk / "checkpoints", kept)
        world.direct = world.direct.model_copy(
            update={"trainer": world.direct.trainer.model_copy(update={"checkpoints": kept})}
        )


def _versions(world: World, count: int) -> None:
    wait_until(lambda: announced(world.direct) >= min(count, BATCHES), f"{count} versions", world)


def wait_until(true: Callable[[], bool], what: str, world: World) -> None:
    """Return once it is true. Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        if time.monotonic() > deadline:
            said = "; ".join(f"{name}: {world.said(name)[-400:]}" for name in world.names())
            raise TimeoutError(f"waited {TIMEOUT_S:g} s for {what}: {said}")
        time.sleep(0.1)


register(
    "kill-trainer",
    1,
    "the trainer is killed at named points",
    "SIGKILL to itself after a poll, mid-checkpoint, after checkpoint, store, publish, before and after its commit",
    _kill,
    frozenset(),
)
register(
    "zombie-trainer",
    3,
    "the trainer sleeps and wakes up",
    "SIGSTOP for three session timeouts while a second one waits for its place, then SIGCONT",
    _zombie,
    frozenset({4}),
)
register(
    "two-trainers",
    4,
    "two trainers of one policy, and a third with a folder of its own",
    "started together: of the two that share a folder one is refused; the third makes the same bytes",
    _two,
    frozenset({4}),
)
register(
    "checkpoint-disk",
    7,
    "the checkpoint's disk is full, then read-only",
    "an ext4 of 24 MiB is filled, freed, turned read-only and writable again while the trainer writes there",
    _disk,
    frozenset({1, 2, 5}),
)
