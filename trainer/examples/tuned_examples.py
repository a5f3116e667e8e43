"""What a version is tuned on, as tokens.

    group, response ──► chains ─┐
                                ├──► TunedAnswer ──► sft: (answer,)    dpo: (chosen, rejected)    ──► digest
    line of a file ──► template ┘

An answer has one chain of tokens, or several where an agent's conversation forked; the loss is on the tokens that its
mask names, and everything else is context: prompts, tools and environments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from schemas.events import AdvantagedGroup, AnsweringAgent, GroupResponse
from schemas.tokens import LossMask, TokenIds
from trainer.step.token_chains import chains


class TunedChain(NamedTuple):
    """One path of tokens through the model."""

    context: TokenIds
    """At least one token."""
    tokens: TokenIds
    loss_mask: LossMask
    """Of `tokens`: 1 where the loss is."""


class TunedAnswer(NamedTuple):
    """An answer to imitate, or to compare."""

    chains: tuple[TunedChain, ...]

    @property
    def loss_tokens(self) -> int:
        """How many tokens the loss is on."""
        return sum(chain.loss_mask.trained_tokens for chain in self.chains)

    @property
    def longest(self) -> int:
        """How many tokens its longest chain has, context included."""
        return max(len(chain.context) + len(chain.tokens) for chain in self.chains)

    @property
    def tokens(self) -> int:
        """How many tokens all its chains have, context included."""
        return sum(len(chain.context) + len(chain.tokens) for chain in self.chains)


TunedExample = tuple[TunedAnswer, ...]
"""sft: one answer. dpo: the chosen one, then the rejected one."""


class SampledExample(NamedTuple):
    """An example, and what its tokens are tokens of."""

    tokenizer_digest: str
    example: TunedExample


class DatasetExamples(NamedTuple):
    """What one build of a data set has for one method, in the order of its rows."""

    dataset: str
    digest: str
    rows: tuple[SampledExample, ...]
    texts: tuple[tuple[str, ...], ...] = ()
    """What each row says, for the check of what suites hold out."""
    agents: frozenset[AnsweringAgent] = frozenset()
    """Those that answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSource:
    """Where the examples are: a file, a data set, or the tasks of groups."""

    policy: str
    file: Path | None = None
    dataset: DatasetExamples | None = None
    groups_policy: str | None = None
    task_ids: Sequence[str] = ()


def answer_of(group: AdvantagedGroup, response: GroupResponse) -> TunedAnswer:
    """Return a response of a group, which has its tokens (trainer/step/group_tokens.py), as they were sampled."""
    tuned_chains = (TunedChain(chain.context, chain.tokens, chain.loss_mask) for chain in chains(group, response))
    return TunedAnswer(tuple(tuned_chains))


def loss_tokens(examples: Iterable[TunedExample]) -> int:
    """Return how many tokens of these examples the loss is on."""
    return sum(answer.loss_tokens for example in examples for answer in example)


def all_tokens(examples: Iterable[TunedExample]) -> int:
    """Return how many tokens these examples have, context included."""
    return sum(answer.tokens for example in examples for answer in example)


def digest(examples: Iterable[TunedExample]) -> str:
    """Return the sha256 over all tokens and masks, in order, each part with its length before it."""
    sha256 = hashlib.sha256()
    for example in examples:
        sha256.update(f"example {len(example)}\n".encode())
        for answer in example:
            sha256.update(f"answer {len(answer.chains)}\n".encode())
            for chain in answer.chains:
                sha256.update(f"chain {len(chain.context)} {len(chain.tokens)}\n".encode())
                for part in chain:
                    sha256.update(part.data)
    return sha256.hexdigest()
