"""How many sampled tokens a curriculum over generated sums takes to the score of a run that draws evenly.

    a small transformer, imitating sums until it has some of each ──► GRPO, eight answers to a question
        even draws ──► score after STEPS steps ◄── how many tokens until then? ── draws of plugins/improve/selfplay

Both arms of a seed begin with the same weights, and differ in nothing but the cell (digits, terms) of each question.
The score is the mean over cells of the share of right answers to held-out sums, greedily, over the last three looks.
Tokens are those that were sampled for training. Questions, their held-out half and the draws are the program's own; the
model is a stand-in: characters, two layers, on one core.

    python -m tests.plugins.improve.benchmarks.curriculum [--seeds N] [--floor F]

Not covered: language models, other generators, and whether the end is better: it is not, the way there is shorter.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plugins.improve.selfplay.catalogue import CurriculumPart
from plugins.improve.selfplay.curriculum import cells_of, draws
from streams.advantage_formulas import grpo
from streams.stages.tasks.generators import TaskSpec, generate

PART = CurriculumPart.model_validate({"cells": {"digits": (1, 2), "terms": (2, 3, 4)}, "answers": 128})
EVEN = PART.model_copy(update={"floor": 1.0, "most_of_one": 1.0})
CHARACTERS = "_0123456789+=."
PAD, STOP = CHARACTERS.index("_"), CHARACTERS.index(".")
PROMPT, ANSWER = 12, 4
QUESTIONS, SLOTS, STEPS, LOOK, LAST = 16, 8, 120, 5, 3
POOL, HELD_OUT, IMITATED = 2000, 60, 1000


class Sum(NamedTuple):
    """A question and its answer, as characters."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class SmallModel(nn.Module):
    """A transformer over characters; prompts end at the same place."""

    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(CHARACTERS), width)
        self.places = nn.Embedding(PROMPT + ANSWER, width)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, characters]
        length = tokens.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        hidden = self.tokens(tokens) + self.places(torch.arange(length))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def sums(purpose: Any, count: int, options: Mapping[str, Any]) -> list[Sum]:
    """Return generated sums of one side of the split."""
    spec = TaskSpec(family="sums", count=count, seed=1, purpose=purpose, policy="p", options=options)
    pairs = ((task.messages[-1].content, task.verifier) for task in generate(spec, now_ms=0))
    return list(dict.fromkeys(_sum(text, verifier) for text, verifier in pairs))


def _sum(text: str, verifier: str) -> Sum:
    question = text.rpartition(":")[2].replace(" ", "")
    prompt = [CHARACTERS.index(letter) for letter in question]
    answer = [CHARACTERS.index(letter) for letter in re.sub(r"\D", "", verifier)] + [STOP]
    return Sum((PAD,) * (PROMPT - len(prompt)) + tuple(prompt), (*answer, *(PAD,) * (ANSWER - len(answer))))


def imitate(model: SmallModel, pool: Mapping[str, Sequence[Sum]], generator: torch.Generator) -> None:
    """Train on answers until the easy cells are mostly right and the hard ones hardly."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    every = [question for cell in pool for question in pool[cell]]
    whole = torch.tensor([[*question.prompt, *question.answer] for question in every])
    for _ in range(IMITATED):
        batch = whole[torch.randint(len(whole), (64,), generator=generator)]
        logits = model(batch[:, :-1])[:, PROMPT - 1 :]
        target = batch[:, PROMPT:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def sample(model: SmallModel, prompts: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return answers [B, ANSWER], padded after their end; greedy without a generator."""
    tokens, over = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(ANSWER):
        logits = model(tokens)[:, -1]
        if generator is None:
            drawn = logits.argmax(-1)
        else:
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        drawn = torch.where(over, PAD, drawn)
        over |= drawn == STOP
        tokens = torch.cat([tokens, drawn[:, None]], 1)
    return tokens[:, PROMPT:]


def score(model: SmallModel, held_out: Mapping[str, Sequence[Sum]]) -> dict[str, float]:
    """Return the share of right answers by cell."""
    return {
        cell: _right(sample(model, torch.tensor([q.prompt for q in questions]), None), questions).mean().item()
        for cell, questions in held_out.items()
    }


def _right(answers: Tensor, questions: Sequence[Sum]) -> Tensor:
    return (answers == torch.tensor([question.answer for question in questions])).all(1).float()


class Look(NamedTuple):
    """How far a run is."""

    tokens: int
    score: float
    by_cell: dict[str, float]


def run_arm(
    model: SmallModel,
    part: CurriculumPart,
    data: tuple[Mapping[str, Sequence[Sum]], Mapping[str, Sequence[Sum]]],
    seed: int,
) -> Iterator[Look]:
    """Train by GRPO, and yield a look after every LOOK steps; the first before any."""
    pool, held_out = data
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    answered: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PART.answers))
    tokens = 0
    for step in range(STEPS + 1):
        if step % LOOK == 0:
            by_cell = score(model, held_out)
            yield Look(tokens, sum(by_cell.values()) / len(by_cell), by_cell)
        success = {cell: sum(right) / len(right) for cell, right in answered.items()}
        drawn = list(draws(part, success, f"{seed}/{step}", QUESTIONS))
        questions = [pool[draw.name][draw.seed % len(pool[draw.name])] for draw in drawn]
        repeated = [question for question in questions for _ in range(SLOTS)]
        prompts = torch.tensor([question.prompt for question in repeated])
        answers = sample(model, prompts, generator)
        right = _right(answers, repeated)
        tokens += int((answers != PAD).sum())
        for number, draw in enumerate(drawn):
            answered[draw.name].extend(right[number * SLOTS : (number + 1) * SLOTS].tolist())
        _improve(model, optimizer, prompts, answers, right)


def _improve(
    model: SmallModel, optimizer: torch.optim.Optimizer, prompts: Tensor, answers: Tensor, right: Tensor
) -> None:
    """Take a step of GRPO on groups of SLOTS; those of equal rewards add nothing."""
    advantages = torch.cat(
        [torch.tensor(grpo(rewards, eps=1e-4, ddof=1)) for rewards in right.view(-1, SLOTS).tolist()]
    )
    kept = advantages != 0
    if not kept.any():
        return
    logits = model(torch.cat([prompts, answers], 1)[kept, :-1])[:, PROMPT - 1 :]
    mask = (answers[kept] != PAD).float()
    logprobs = logits.log_softmax(-1).gather(-1, answers[kept][..., None])[..., 0]
    loss = -(advantages[kept, None] * logprobs * mask).sum() / (answers != PAD).sum()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


class Outcome(NamedTuple):
    """One seed."""

    seed: int
    begin: float
    plain: float
    plain_tokens: int
    own_tokens: int
    """Until the plain run had that score for the first time."""
    tokens: int | None
    """Until the curriculum has the plain run's score; None: never."""
    end: float
    by_cell: tuple[dict[str, float], dict[str, float], dict[str, float]]
    """Before, after even draws, after the curriculum."""


def compare(seed: int, floor: float = PART.floor) -> Outcome:
    """Return what both arms of a seed come to."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    cells = cells_of(PART)
    pool = {cell: sums("train", POOL, options) for cell, options in cells.items()}
    held_out = {cell: sums("eval", HELD_OUT, options) for cell, options in cells.items()}
    start = SmallModel()
    imitate(start, pool, torch.Generator().manual_seed(seed))
    looks: dict[str, list[Look]] = {}
    for arm, part in (("plain", EVEN), ("curriculum", PART.model_copy(update={"floor": floor}))):
        model = SmallModel()
        model.load_state_dict(start.state_dict())
        looks[arm] = []
        for look in run_arm(model, part, (pool, held_out), seed):
            looks[arm].append(look)
            if len(looks[arm]) % 8 == 1:
                print(f"seed {seed} {arm}: {look.tokens} tokens, {look.score:.3f}", file=sys.stderr)
    plain, curriculum = looks["plain"], looks["curriculum"]
    goal = smooth(plain)[-1]
    return Outcome(
        seed=seed,
        begin=plain[0].score,
        plain=goal,
        plain_tokens=plain[-1].tokens,
        own_tokens=tokens_until(plain, goal) or 0,
        tokens=tokens_until(curriculum, goal),
        end=smooth(curriculum)[-1],
        by_cell=(plain[0].by_cell, plain[-1].by_cell, curriculum[-1].by_cell),
    )


def tokens_until(looks: Sequence[Look], goal: float) -> int | None:
    """Return the tokens of the first look with this score; None: there is none."""
    reached = (look.tokens for look, value in zip(looks, smooth(looks), strict=True) if value >= goal)
    return next(reached, None)


def smooth(looks: Sequence[Look]) -> list[float]:
    """Return the mean score of the newest LAST looks at each."""
    scores = [look.score for look in looks]
    return [sum(scores[max(0, n - LAST + 1) : n + 1]) / min(n + 1, LAST) for n in range(len(scores))]


def main(arguments: list[str]) -> int:
    """Print a row of Markdown for each seed, and its success by cell."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.plugins.improve.benchmarks.curriculum", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--floor", type=float, default=PART.floor, help="least weight of a cell")
    options = parser.parse_args(arguments)
    print(
        "| seed | before | even draws | its tokens, and to that score first | curriculum's to that | share | its end |"
    )
    print("|---|---|---|---|---|---|---|")
    for seed in range(options.seeds):
        began = time.monotonic()
        outcome = compare(seed, options.floor)
        to_it = "never" if outcome.tokens is None else f"{outcome.tokens:,}"
        tokens = f"{outcome.plain_tokens:,}, {outcome.own_tokens:,}"
        share = "" if outcome.tokens is None else f"{outcome.tokens / outcome.plain_tokens:.0%}"
        cells = [f"{outcome.begin:.2f}", f"{outcome.plain:.2f}", tokens, to_it, share]
        print(f"| {seed} | {' | '.join([*cells, f'{outcome.end:.2f}'])} |", flush=True)
        for cell in outcome.by_cell[0]:
            print(cell, *(f"{figures[cell]:.2f}" for figures in outcome.by_cell), file=sys.stderr)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
