"""Stale batches: share of runs that reach 0.9 with batches sampled `lag` versions ago, by correction.

    version v ──► samples batch v + lag ──► queue ──► batch s: one step of the real trainer ──► version s + 1

    python -m tests.benchmarks staleness [SEED ...]   a tiny model learns a table of words

In the environment: MODEL=smollm2 learns the demo's sums, CELLS=clip/2,none/4 are these arms and lags alone, and RATE is
the learning rate of the table.
A line for each run, then one for each cell. Batch s was sampled by version max(0, s - lag), as
streams/stages/batches.py counts lag, and has the logprobs of that version.

Not covered: batches with groups of several ages, and the processes of the loop: engine and trainer take turns here.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.events import AdvantagedGroup, Message, RewardSource, Sampling, Task
from streams.advantage_formulas import advantages
from streams.evaluation.intervals import wilson
from streams.scorers.registry import blend, find, parts
from streams.settings.model import Model, Settings, Trainer
from streams.stages.tasks.generators import TaskSpec, generate
from tests.benchmarks.side_by_side import machine, say
from tests.support import factories

if TYPE_CHECKING:
    from torch import Tensor

    from streams.engines.local.transformers_engine import TransformersEngine
    from streams.engines.protocol import Completion
    from trainer.step.loss import LossTokens

WANTED = 0.9
ARMS: dict[str, dict[str, Any]] = {
    "none": {"loss": "tests.benchmarks.staleness:without_ratio"},
    "truncate": {"importance": "truncate", "importance_cap": 2.0},
    "clip": {"epsilon_low": 0.2, "epsilon_high": 0.28},
    "ratio": {"loss": "tests.benchmarks.staleness:whole_ratio"},
}
"""Settings of the trainer; the loss of `truncate` and `clip` is dapo. `trainer.importance=none` alone is no arm without
correction, since every clipped loss has the ratio to the sampler in it: `ratio` is that loss without its clip."""
CELLS = ("clip/0", *(f"{arm}/{lag}" for lag in (1, 2, 4) for arm in ARMS))
"""Arm and lag. With lag 0 the ratio is 1, and all arms are the same."""
GROUPS, SLOTS = 16, 8
WORDS = 10


def without_ratio(tokens: LossTokens) -> Tensor:
    """Return -A logp, [B, T]: as if the weights in training had sampled the batch."""
    return -tokens.advantages * tokens.logp


def whole_ratio(tokens: LossTokens) -> Tensor:
    """Return -r A, [B, T]: importance sampling without a bound."""
    return -tokens.ratio * tokens.advantages


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a run learns, with which recipe, and when it gives up."""

    model: Model
    tasks: Iterator[Task]
    """Without end: each batch takes the next GROUPS."""
    questions: Sequence[Task]
    """What the score is the share of right greedy answers of."""
    recipe: dict[str, Any]
    versions: int
    every: int
    """The score is taken of each so many versions."""


def table(seed: int, folder: Path) -> Problem:
    """Return a table from WORDS words to one word each, for a tiny model with random weights."""
    from tests.support.models.tiny import TEMPLATE, tiny_model, word_tokenizer

    words = [f"w{number}." for number in range(WORDS)]
    tiny_model(seed, WORDS + 4, initializer_range=0.15).save_pretrained(folder)
    word_tokenizer(["<pad>", "<s>", "</s>", "<unk>", *words], TEMPLATE).save_pretrained(folder)
    answers = dict(zip(words, random.Random(seed).sample(words, WORDS), strict=True))

    def task(number: int, size: int, temperature: float) -> Task:
        return factories.task(
            task_id=f"{seed}-{number}",
            group_size=size,
            sampling=Sampling(temperature=temperature, max_tokens=1),
            verifier=json.dumps({"answer": answers[words[number % WORDS]]}),
            reward_sources=(RewardSource(name="exact"),),
            messages=(Message(role="user", content=words[number % WORDS]),),
        )

    return Problem(
        model=Model(base=str(folder)),
        tasks=(task(number, SLOTS, 1.0) for number in itertools.count()),
        questions=[task(number, 1, 0.0) for number in range(WORDS)],
        recipe={"learning_rate": float(os.environ.get("RATE", "0.01"))},
        versions=40,
        every=1,
    )


def sums(seed: int, folder: Path) -> Problem:
    """Return the demo's sums with its recipe, for SmolLM2."""
    train = TaskSpec(family="sums", count=10_000, seed=seed, purpose="train", policy="bench", group_size=SLOTS)
    held_out = TaskSpec(family="sums", count=35, purpose="eval", policy="bench")
    return Problem(
        model=Model(),
        tasks=generate(train, now_ms=0),
        questions=list(generate(held_out, now_ms=0)),
        recipe={"micro_groups": 4, "threads": os.cpu_count() or 1},
        versions=20,
        every=2,
    )


PROBLEMS = {"tiny": table, "smollm2": sums}


def run(seeds: Sequence[int] = (0, 1, 2)) -> Iterator[dict[str, Any]]:
    """Yield a line for each run, then the share of runs that reached WANTED for each cell."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer's process sets it
    logging.disable(logging.WARNING)
    problem = os.environ.get("MODEL", "tiny")
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for cell in os.environ["CELLS"].split(",") if "CELLS" in os.environ else CELLS:
            say(f"staleness: {problem}, {cell}, seed {seed}")
            runs.setdefault(cell, []).append(_line(problem, cell, seed))
            yield runs[cell][-1]
    for cell, lines in runs.items():
        reached = [line["version"] for line in lines if line["version"] is not None]
        interval = wilson(len(reached) / len(lines), len(lines))
        yield {
            "bench": "staleness",
            "case": f"{problem} {cell}, all seeds",
            "runs": len(lines),
            "reached": len(reached),
            "interval": [round(bound, 2) for bound in interval],
            "median_version": statistics.median(reached) if reached else None,
            "machine": machine(),
        }


def _line(problem: str, cell: str, seed: int) -> dict[str, Any]:
    began = time.process_time(), time.monotonic()
    arm, lag = cell.split("/")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as temporary:
        folder = Path(temporary)
        steps = list(learn(PROBLEMS[problem](seed, folder / "base"), ARMS[arm], int(lag), seed, folder))
    scores = {step["version"]: step["score"] for step in steps if step["score"] is not None}
    return {
        "bench": "staleness",
        "case": f"{problem} {cell}",
        "seed": seed,
        "version": next((version for version, score in scores.items() if score >= WANTED), None),
        "scores": [round(score, 2) for score in scores.values()],
        "mismatch": round(statistics.mean(step["metrics"]["mismatch"] for step in steps if step["metrics"]), 3),
        "cpu_s": round(time.process_time() - began[0], 1),
        "wall_s": round(time.monotonic() - began[1], 1),
    }


def learn(problem: Problem, arm: dict[str, Any], lag: int, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield version, score and the step on the next batch, until the score is WANTED or the versions are made."""
    from streams.engines.base_model import load_base
    from streams.engines.local.transformers_engine import TransformersEngine
    from trainer.step.grpo import LogGRPOTrainer
    from trainer.step.model import pin, save_adapter, wrap

    settings = Trainer(**problem.recipe, **arm, seed=seed, checkpoints=folder)
    pin(Settings(trainer=settings))
    base = load_base(problem.model)
    engine = TransformersEngine(base, settings.threads)
    trainer = LogGRPOTrainer(wrap(load_base(problem.model).model, settings), base.tokenizer, settings)
    waiting: deque[list[AdvantagedGroup]] = deque()
    for version in range(problem.versions + 1):
        if version:
            adapter = folder / str(version)
            adapter.mkdir()
            save_adapter(trainer.model, adapter, problem.model.base)
            engine.serve(version, adapter)
        score = None
        if version % problem.every == 0:
            answers = _groups(engine, problem.questions, f"{seed} score")
            score = statistics.mean(group.responses[0].reward == 1.0 for group in answers)
        if version == problem.versions or (score is not None and score >= WANTED):
            yield {"version": version, "score": score, "sampled_by": None, "metrics": {}}
            break
        while len(waiting) <= lag:
            number = version + len(waiting)
            waiting.append(_groups(engine, list(itertools.islice(problem.tasks, GROUPS)), f"{seed} {number}"))
        batch = waiting.popleft()
        metrics = trainer.train_batch(batch)
        yield {"version": version, "score": score, "sampled_by": batch[0].adapter_version, "metrics": metrics}
    engine.close()


def _groups(engine: TransformersEngine, tasks: Sequence[Task], draw: str) -> list[AdvantagedGroup]:
    """Return the scored answers of the version that the engine serves; `draw` and the task's id seed the sampling."""
    from streams.engines.protocol import SamplingRequest

    requests = [SamplingRequest(sampling_id=f"{draw} {task.task_id}", task=task) for task in tasks]
    return [_group(engine, task, slots) for task, slots in zip(tasks, engine.sample(requests), strict=True)]


def _group(engine: TransformersEngine, task: Task, slots: Sequence[Completion]) -> AdvantagedGroup:
    rewards = [_reward(task, slot.text) for slot in slots]
    final = advantages("dr_grpo", rewards, eps=1e-4, ddof=1)
    members = (
        factories.member(
            slot.slot,
            reward=reward,
            advantage=advantage,
            completion_token_ids=slot.completion_token_ids,
            logprobs=slot.logprobs,
            loss_mask=(True,) * len(slot.completion_token_ids),
        )
        for slot, reward, advantage in zip(slots, rewards, final, strict=True)
    )
    return factories.group(
        task_id=task.task_id,
        group_size=len(slots),
        adapter_version=engine.served_version,
        formula="dr_grpo",
        sampling=task.sampling,
        prompt_token_ids=slots[0].prompt_token_ids,
        responses=tuple(members),
    )


def _reward(task: Task, text: str) -> float:
    mixed, answer = parts(task.reward_sources[0]), factories.response(text=text)
    value = blend(mixed, [find(part.name)(task, answer, part.settings) for part in mixed]).value
    assert value is not None, task
    return value
