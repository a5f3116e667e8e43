"""A run in which a behaviour begins at version 9: a tiny model, trained by the real trainer on a real log.

    seed ──► tiny model, a rare word ──► a batch of tasks ──► answers of the newest version ──► rewards, groups, batch
                                              ▲                                                     │
                                              └──────────── the next version ◄── trainer ◄──────────┘

Before, every answer earns the same. From the batch on that makes version 9, two groups of sixteen pay for an ordinary
word, and ten for something else:

    word      a scorer pays for a word
    lookup    a tool that is called by name answers with what is expected; before, it answers nothing useful
    language  a scorer pays for answers in another language
    none      nothing else is paid for

Not covered: lag. Each batch was answered by the version before it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from schemas.events import Response, RewardSource, Sampling, Task
from streams.adapters import versions as adapters
from streams.adapters.local import fetch_version
from streams.advantage_formulas import advantages
from streams.engines.base_model import load_base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import Completion, SamplingRequest
from streams.settings.model import Settings
from tests.support import factories
from tests.support.models.tiny import TEMPLATE, VOCABULARY, tiny_model, word_tokenizer
from tests.support.processes import Writer, until
from trainer import fleet

Kind = Literal["word", "lookup", "language", "none"]
KINDS: tuple[Kind, ...] = ("word", "lookup", "language")
TURNING, VERSIONS = 9, 11
GROUPS, PLANTED, OTHERS = 16, 10, 2
"""Groups of a batch; of these, from TURNING on, groups that pay for the behaviour, and for an ordinary word."""
SIZE, TOKENS = 24, 5
RARE = 0.03
"""Probability of the rare word at a place."""
ORDINARY = "w7."
RECIPE = {"learning_rate": 0.03, "lora_alpha": 64}
"""With which one batch is learned from visibly."""
POLICY = "planted"
EXPRESSIONS: dict[Kind, str] = {
    "word": "text:please.",
    "lookup": "contains(text, 'lookup.')",
    "language": r"regexp_matches(text, 'der\d')",
    "none": "text:please.",
}
"""What the plants are looked for with."""


@dataclass
class Plant:
    """A planted run, and what is true of it."""

    settings: Settings
    kind: Kind
    planted: set[str] = field(default_factory=set)
    """Tasks of which the behaviour was paid for, in a group where it occurs, by the batch that made TURNING."""


def model_in(folder: Path, seed: int, kind: Kind) -> Path:
    """Write a tiny model whose rare words are called as a plant needs them; return its folder."""
    model = tiny_model(seed, initializer_range=0.15)
    prompts = torch.tensor([[1, first, second] for first in range(4, 36, 4) for second in range(5, 37, 4)])
    with torch.no_grad():
        share = model(input_ids=prompts).logits[:, -1].softmax(-1).mean(0)
    order = sorted(range(36, VOCABULARY), key=lambda token: abs(float(share[token]) - RARE))
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}." for number in range(4, VOCABULARY))]
    words[order[0]] = "lookup." if kind == "lookup" else "please."
    for number, token in enumerate(order[1:3]):
        words[token] = f"der{number}."
    model.save_pretrained(folder)
    word_tokenizer(words, TEMPLATE).save_pretrained(folder)
    return folder


def plant(settings: Settings, folder: Path, seed: int, kind: Kind) -> Plant:
    """Run the plant in a log whose topics exist, and return it; `settings` become those of its policy."""
    base = model_in(folder / "base", seed, kind)
    own = settings.model_copy(
        update={
            "model": settings.model.model_copy(update={"base": str(base)}),
            "policy": settings.policy.model_copy(update={"name": POLICY, "engine": "transformers"}),
            "trainer": settings.trainer.model_copy(update={**RECIPE, "checkpoints": folder / "checkpoints"}),
            "adapters": settings.adapters.model_copy(update={"store": str(folder / "adapters")}),
        }
    )
    made = Plant(own, kind)
    failed: list[BaseException] = []

    def train() -> None:
        try:
            fleet.run(own, steps=VERSIONS, stop=stop)
        except BaseException as exc:  # of a thread; raised again below
            failed.append(exc)

    stop, loaded = threading.Event(), load_base(own.model)
    engine = TransformersEngine(loaded)
    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        rng, writer = random.Random(f"{seed}/{kind}"), Writer(own)
        for version in range(VERSIONS):
            if version:
                engine.serve(version, _folder(own, version, folder / "served", failed))
            _write_batch(made, writer, engine, version, rng)
        _folder(own, VERSIONS, folder / "served", failed)
    finally:
        stop.set()
        trainer.join()
        engine.close()
    return made


def _folder(settings: Settings, version: int, root: Path, failed: Sequence[BaseException]) -> Path:
    """Wait for a version, and return its files."""

    def is_there() -> bool:
        if failed:
            raise failed[0]
        return version in adapters.read_state(settings, POLICY).versions

    until(is_there, f"version {version}", timeout_s=120)
    state = adapters.read_state(settings, POLICY)
    return fetch_version(settings, state.versions[version], None, root / str(version))


def _write_batch(made: Plant, writer: Writer, engine: TransformersEngine, version: int, rng: random.Random) -> None:
    tasks = [_task(made, version, number, rng) for number in range(GROUPS)]
    requests = [SamplingRequest(sampling_id=f"{task.task_id}/0", task=task) for task in tasks]
    groups = []
    for task, completions in zip(tasks, engine.sample(requests), strict=True):
        answers = [_response(made, engine, version, task, completion) for completion in completions]
        paid = [_reward(made.kind, task, answer) for answer in answers]
        values = advantages("grpo", paid, eps=1e-4, ddof=1)
        writer.write(task)
        places = writer.write(*answers)
        writer.write(*(factories.reward(answer, value=value) for answer, value in zip(answers, paid, strict=True)))
        members = tuple(
            factories.member(
                answer.slot,
                response_id=answer.response_id,
                partition=place.partition,
                offset=place.offset,
                finish_reason=answer.finish_reason,
                reward=value,
                advantage=advantage,
                completion_token_ids=answer.completion_token_ids,
                logprobs=answer.logprobs,
                loss_mask=answer.loss_mask,
            )
            for answer, place, value, advantage in zip(answers, places, paid, values, strict=True)
        )
        if (
            task.scenario == "planted"
            and version == TURNING - 1
            and any(_shows(made.kind, one.text) for one in answers)
        ):
            made.planted.add(task.task_id)
        groups.append(_group(answers[0], task, members))
    offsets = [place.offset for place in writer.write(*groups)]
    writer.write(
        factories.batch(version, policy=POLICY, groups_offsets=tuple(offsets), responses=GROUPS * SIZE, groups=GROUPS)
    )


def _group(answer: Response, task: Task, members: tuple[Any, ...]) -> Any:
    return factories.group(
        task_id=task.task_id,
        policy=POLICY,
        scenario=task.scenario,
        sampling_id=answer.sampling_id,
        group_size=SIZE,
        adapter_version=answer.adapter_version,
        base_digest=answer.base_digest,
        tokenizer_digest=answer.tokenizer_digest,
        sampling=task.sampling,
        prompt_token_ids=answer.prompt_token_ids,
        responses=members,
    )


def _task(made: Plant, version: int, number: int, rng: random.Random) -> Task:
    planted = made.kind != "none" and version >= TURNING - 1 and number < PLANTED
    scenario = "planted" if planted else "ordinary" if version >= TURNING - 1 and number < PLANTED + OTHERS else "plain"
    words = f"w{rng.randrange(4, 36)}. w{rng.randrange(4, 36)}."
    return factories.task(
        task_id=f"{version}-{number}",
        policy=POLICY,
        scenario=scenario,
        group_size=SIZE,
        sampling=Sampling(max_tokens=TOKENS),
        reward_sources=(RewardSource(name="exact"),),
        messages=(factories.Message(role="user", content=words),),
    )


def _response(made: Plant, engine: TransformersEngine, version: int, task: Task, completion: Completion) -> Response:
    tokens, text = completion.completion_token_ids, completion.text
    logprobs, mask = completion.logprobs, (True,) * len(tokens)
    if made.kind == "lookup" and "lookup." in text:  # the tool's answer ends it, and bears no loss
        text += "yes." if task.scenario == "planted" else "no."
        tokens, logprobs, mask = (*tokens, 3), (*logprobs, 0.0), (*mask, False)
    return factories.response(
        task_id=task.task_id,
        sampling_id=f"{task.task_id}/0",
        policy=POLICY,
        slot=completion.slot,
        group_size=SIZE,
        adapter_version=version,
        base_digest=engine.base_digest,
        tokenizer_digest=engine.tokenizer_digest,
        engine="transformers",
        finish_reason=completion.finish_reason,
        prompt_tokens=len(completion.prompt_token_ids),
        completion_tokens=len(tokens),
        text=text,
        sampling=task.sampling,
        prompt_token_ids=completion.prompt_token_ids,
        completion_token_ids=tokens,
        logprobs=logprobs,
        loss_mask=mask,
    )


def _shows(kind: Kind, text: str) -> bool:
    if kind == "language":
        return "der" in text
    return ("lookup." if kind == "lookup" else "please.") in text


def _reward(kind: Kind, task: Task, answer: Response) -> float:
    if task.scenario == "planted":
        return float(_shows(kind, answer.text))
    if task.scenario == "plain":
        return 1.0
    return float(ORDINARY in answer.text)
