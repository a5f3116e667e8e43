"""A fleet of trainers: what changing the policy costs beside a step, and many policies in one process against many.

    swap       another policy's adapter and optimizer state into the learner, from memory or from its checkpoint: what
               a turn of a fleet costs beyond that of a trainer alone, which is a step and the checkpoint after it. With
               the tiny model of the tests, where a step is as short as it can be, and with SmolLM2-135M
    processes  the same batches of several policies, by one `train --fleet`, and by one `train` after the other
    mixed      rounds of several policies sampled together, each row by its own adapter, and by turns, with SmolLM2-135M

What a swap costs the engine is in `convergence`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streams.settings.load import to_env
from streams.settings.model import Model, Settings, Trainer
from tests.benchmarks.convergence import unchanging_adapter
from tests.benchmarks.loop import REPO, node
from tests.benchmarks.side_by_side import by_turns, line, median_s, say

if TYPE_CHECKING:
    from schemas.events import AdvantagedGroup
    from trainer.versions.checkpoint import State
    from trainer.versions.learner import Learner

POLICIES, BATCHES = 8, 2
MIXED = 4
"""Policies in one round of the engine."""
ROUNDS = ((1, 8), (8, 8))
"""Tasks and slots of a round of one policy."""
TINY_TARGET = 0.5
"""A swap should cost at most two steps of the tiny model …"""
REAL_TARGET = 20.0
"""… and a twentieth of a step of SmolLM2."""


def run() -> Iterator[dict[str, Any]]:
    """Yield the lines of `swap`, then that of `processes`, then those of `mixed`."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        from tests.support.models.tiny import save_tiny

        tiny = Model(base=str(save_tiny(Path(folder) / "tiny")))
        yield from _swaps("tiny model", tiny, Path(folder) / "a", TINY_TARGET, rounds=9)
        yield from _swaps("SmolLM2-135M", Model(), Path(folder) / "b", REAL_TARGET, rounds=3)
        yield _processes(tiny)
    yield from _mixed()


# --- swaps ------------------------------------------------------------------------------------------------------------


def _swaps(name: str, model: Model, folder: Path, target: float, *, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield two lines: a swap from memory and one from the checkpoint."""
    from streams.engines.base_model import load_base
    from trainer.step.model import pin
    from trainer.versions.learner import Learner

    settings = Settings(model=model, trainer=Trainer(checkpoints=folder))
    pin(settings)
    say(f"fleet: {name}")
    learner = Learner(settings, load_base(model))
    groups = _groups(learner)
    state = _stepped(learner, groups)
    learner.save(folder, state, 1)
    other = learner.present().copy()
    first = learner.present().copy()

    def from_memory() -> None:
        nonlocal other
        other = learner.exchange(other)

    def from_checkpoint() -> None:
        from trainer.versions import checkpoint

        found = checkpoint.latest(folder)
        if found is None:
            raise RuntimeError(f"{folder} has no checkpoint")
        learner.exchange(first.copy())
        learner.restore(*found)

    runs = {
        "memory": from_memory,
        "checkpoint": from_checkpoint,
        "save": lambda: learner.save(folder, state, 1),
        "step": lambda: _stepped(learner, groups),
    }
    measured = {side: median_s(found) for side, found in by_turns(runs, rounds=rounds, budget_s=120).items()}
    alone = measured["step"] + measured["save"]
    about = {f"{side}_s": round(measured[side], 5) for side in ("step", "save")}
    for source in ("memory", "checkpoint"):
        times = {"ours": measured[source], "peer": alone, "unit": "s", "ratio": alone / measured[source]}
        case = f"swap from {source}, {name}"
        yield line("fleet", case, **times, target=target, peer_is="a step and its checkpoint", rounds=rounds, **about)


def _groups(learner: Learner) -> list[AdvantagedGroup]:
    """Return two groups of eight slots, 64 + 32 tokens, that this model may be trained on."""
    from tests.support.models.tiny import tiny_group

    trainer = learner._trainer
    with trainer.model.disable_adapter():
        made = [tiny_group(trainer.model, seed, slots=8, prompt=64, completion=32) for seed in range(2)]
    return [replace(group, base_digest=learner.base_digest) for group in made]


def _stepped(learner: Learner, groups: list[AdvantagedGroup]) -> State:
    """Take one step, and return its state."""
    from schemas.events import Coordinates
    from tests.support.models.tiny_log import batch_of
    from trainer.versions.learner import BatchGroups

    at = Coordinates("bench", 0, learner.version)
    return learner.step(at, batch_of(learner.version, [at]), BatchGroups(groups, []), {})[0]


# --- rounds of several policies ---------------------------------------------------------------------------------------


def _mixed() -> Iterator[dict[str, Any]]:
    """Yield a line for each size of a policy's round: MIXED policies together, and one after the other."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the policy agent's process sets it
    from streams.engines.base_model import load_base
    from streams.engines.local.transformers_engine import TransformersEngine
    from streams.engines.protocol import EnginePart, SamplingRequest
    from streams.stages.tasks.generators import TaskSpec, generate

    base = load_base(Model())
    engine = TransformersEngine(base, 1, capacity=MIXED + 1)
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as root:
        folders = []
        for number in range(MIXED):
            (Path(root) / str(number)).mkdir()
            folders.append(unchanging_adapter(base.model, Path(root) / str(number)))
        for count, slots in ROUNDS:
            say(f"fleet: {MIXED} policies, rounds of {count} tasks x {slots} slots")
            spec = TaskSpec(family="sums", count=count, purpose="train", policy="bench", group_size=slots)
            tasks = list(generate(spec, now_ms=0))
            parts = [
                EnginePart(number + 1, folder, [SamplingRequest(sampling_id=f"{number}", task=task) for task in tasks])
                for number, folder in enumerate(folders)
            ]

            def by_swap(parts: list[EnginePart] = parts) -> list[Any]:
                found = []
                for part in parts:
                    engine.serve(part.version, part.adapter)
                    found.append(engine.sample(part.requests))
                return found

            def together(parts: list[EnginePart] = parts) -> list[Any]:
                return engine.sample_mixed(parts)

            measured = by_turns({"ours": together, "peer": by_swap}, rounds=5, budget_s=60)
            drawn, differs = _compared(measured["ours"][-1][1], measured["peer"][-1][1])
            rates = {side: drawn / median_s(turns) for side, turns in measured.items()}
            yield line(
                "fleet",
                f"{MIXED} policies in one round, {count} x {slots} rows of each, SmolLM2-135M",
                ours=rates["ours"],
                peer=rates["peer"],
                unit="tokens/s",
                ratio=rates["ours"] / rates["peer"],
                peer_is="a round of each, one after the other",
                logprobs_differ=differs,
            )


def _compared(ours: list[Any], peer: list[Any]) -> tuple[int, float]:
    """Return how many tokens were drawn, and how far the logprobs of the same tokens are apart at most, nats."""
    drawn, differs = 0, 0.0
    for one, other in zip(
        (slot for part in ours for slots in part for slot in slots),
        (slot for part in peer for slots in part for slot in slots),
        strict=True,
    ):
        drawn += len(one.logprobs)
        if one.completion_token_ids == other.completion_token_ids:
            apart = (abs(mine - theirs) for mine, theirs in zip(one.logprobs, other.logprobs, strict=True))
            differs = max(differs, *apart)
    return drawn, differs


# --- processes --------------------------------------------------------------------------------------------------------


def _processes(model: Model) -> dict[str, Any]:
    """Return the line of one fleet against one process after the other, starts of processes included."""
    names = [f"p{number}" for number in range(POLICIES)]
    seconds = {}
    for side in ("ours", "peer"):
        with node() as settings, ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamward-bench-")))
            here = _prepared(settings, model, folder, names)
            began = time.perf_counter()
            if side == "ours":
                _train(here, None, POLICIES * BATCHES)
            else:
                for name in names:
                    _train(here, name, BATCHES)
            seconds[side] = time.perf_counter() - began
            say(f"  {side}: {seconds[side]:.3g} s")
    rates = {side: POLICIES * BATCHES / taken for side, taken in seconds.items()}
    return line(
        "fleet",
        f"{BATCHES} batches of each of {POLICIES} policies, tiny model",
        ours=rates["ours"],
        peer=rates["peer"],
        unit="versions/s",
        ratio=rates["ours"] / rates["peer"],
        target=3.0,
        peer_is="a trainer for each, one after the other",
    )


def _prepared(settings: Settings, model: Model, folder: Path, names: list[str]) -> Settings:
    """Return settings of a log that has batches of these policies."""
    from streams.engines.base_model import load_base
    from tests.support.models.tiny_log import write

    changes = {"model": model, "trainer": Trainer(checkpoints=folder / "checkpoints")}
    changes |= {"adapters": settings.adapters.model_copy(update={"store": str(folder / "adapters")})}
    here = settings.model_copy(update=changes)
    base = load_base(model)
    for name in names:
        write(here, base, range(BATCHES), policy=name)
    return here


def _train(settings: Settings, policy: str | None, steps: int) -> None:
    """Run `streamward train` to its end, for one policy or with None for all."""
    of = ["--fleet"] if policy is None else []
    named = [] if policy is None else ["--set", f"policy.name={policy}"]
    command = [
        sys.executable,
        "-m",
        "streams.cli",
        "--log-level",
        "warning",
        *named,
        "train",
        "--steps",
        str(steps),
        *of,
    ]
    own = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    subprocess.run(command, check=True, cwd=REPO, env={**own, **to_env(settings)})
