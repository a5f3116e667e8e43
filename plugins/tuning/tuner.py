"""Tune an adapter on examples: shuffle, pass, loss, clip, AdamW.

    examples ──► order of the epoch ──► steps of `batch` examples ──► micro-batches ──► logprobs of whole answers
                 drawn from the seed                                                        │
    reference: dpo, once, before the first step ─────────────────────────► losses.py ◄──────┘ ──► clip, AdamW

Everything but the loss is as in GRPO (trainer/step/grpo.py): the adapter, its optimizer, the clipping, a constant
learning rate, no dropout, each distinct prefix run once (a pair shares its prompt). Each version begins with a fresh
optimizer, so it is a function of the version it starts from, the examples and the recipe.

Not covered: several processes, the load-balancing loss of mixtures of experts, a model that does not fit one device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from plugins.tuning.losses import dpo_loss, dpo_margins, sft_loss
from schemas.conventions import UNCHANGED
from schemas.events import TuningMethod
from streams.engines.base_model import Base
from streams.errors import SettingsError, StreamwardError
from streams.settings.model import Settings
from trainer.examples.tuned_examples import TunedAnswer, TunedExample, all_tokens, loss_tokens
from trainer.step import plain_pass, prefix_tree
from trainer.step.collate import MICRO_TOKENS
from trainer.step.model import load_adapter, recipe, save_adapter, wrap
from trainer.step.prefix_tree import Row
from trainer.step.shares import copy_of, is_equal

TUNING_VERSION = "1"
"""Of this arithmetic: counted up by a change that gives other bytes for the same examples, weights and libraries."""
BETA = 0.1
"""TRL's."""
USED = frozenset({"seed", "threads", "learning_rate", "max_grad_norm", "lora_rank", "lora_alpha", "lora_targets"})
"""Settings of the trainer that tuning uses; those of GRPO's loss and of its batches change nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSteps:
    """How examples become steps."""

    method: TuningMethod
    epochs: int = 1
    batch: int = 8
    """Examples of a step."""
    beta: float = BETA
    """dpo: KL strength, how close to stay to the start model."""

    def check(self) -> None:
        """Raise SettingsError for numbers without a meaning."""
        if self.epochs < 1 or self.batch < 1:
            raise SettingsError(f"--epochs {self.epochs} and --batch {self.batch}: expected 1 or more of each")
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise SettingsError(f"--beta {self.beta:g}: expected more than 0")

    def plain(self) -> dict[str, str]:
        """Return the entries of the recipe."""
        plain = {"tuning.method": self.method, "tuning.epochs": str(self.epochs), "tuning.batch": str(self.batch)}
        return plain | ({"tuning.beta": str(self.beta)} if self.method == "dpo" else {})

    @classmethod
    def of_recipe(cls, recorded: Mapping[str, str]) -> TuningSteps:
        """Return the steps that a recipe has. Raises SettingsError if it has none that can be used here."""
        try:
            method = recorded["tuning.method"]
            if method not in ("sft", "dpo"):
                raise ValueError(f"tuning.method is {method}")
            steps = cls(
                method="sft" if method == "sft" else "dpo",
                epochs=int(recorded["tuning.epochs"]),
                batch=int(recorded["tuning.batch"]),
                beta=float(recorded.get("tuning.beta", BETA)),
            )
        except (KeyError, ValueError) as exc:
            raise SettingsError(
                f"the recipe in the log cannot be used here: {exc}; reproduce it with the version of Streamward that "
                "made it"
            ) from exc
        steps.check()
        return steps


class TuningStep(NamedTuple):
    """The numbers of a step."""

    loss: float
    grad_norm: float
    margins: list[float]
    """dpo: of each pair."""


class Tuner:
    """An adapter that is tuned. Call `trainer.step.model.pin` first."""

    def __init__(self, settings: Settings, base: Base, steps: TuningSteps, start: Path | None) -> None:
        """Begin with the adapter in folder `start`; None: a fresh one, which answers as the base model does.

        Raises SettingsError as `wrap` does, if `start` is of another shape, or for several processes.
        """
        if settings.trainer.processes > 1:
            raise SettingsError(
                f"trainer.processes={settings.trainer.processes}: tuning has one process; set trainer.processes=1"
            )
        steps.check()
        self._settings, self._steps = settings, steps
        self._model = wrap(base.model, settings.trainer)
        if start is not None:
            load_adapter(self._model, start)
        self._model.eval()  # without dropout
        self.parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.trainer.learning_rate, weight_decay=0.0
        )
        self.plain_because = prefix_tree.unshareable(self._model.get_base_model())
        """Why prefixes are not shared; None when they are."""
        self._pad = base.token_table.pad
        self.recipe = recipe_of(settings, steps) | {
            "base_digest": base.base_digest,
            "tokenizer_digest": base.tokenizer_digest,
        }

    def tune(
        self, examples: Sequence[TunedExample], report: Callable[[int, int, TuningStep], None] = lambda *_: None
    ) -> dict[str, float]:
        """Take every step; return the metrics. `report` gets each step, its number from 1 and how many there are.

        Raises StreamwardError if no step had a finite gradient.
        """
        started = time.perf_counter()
        before = copy_of(self.parameters)
        reference = self._reference(examples)
        draw = torch.Generator().manual_seed(self._settings.trainer.seed)
        steps_per_epoch = math.ceil(len(examples) / self._steps.batch)
        steps: list[TuningStep] = []
        for _ in range(self._steps.epochs):
            order = torch.randperm(len(examples), generator=draw).tolist()
            for begin in range(0, len(order), self._steps.batch):
                chosen = order[begin : begin + self._steps.batch]
                pairs = None if reference is None else reference[chosen]
                steps.append(self.step([examples[place] for place in chosen], pairs))
                report(len(steps), steps_per_epoch * self._steps.epochs, steps[-1])
        skipped = sum(not math.isfinite(step.grad_norm) for step in steps)
        if skipped == len(steps):
            raise StreamwardError(
                f"none of {skipped} steps had a finite gradient, so nothing was learned; lower trainer.learning_rate, "
                "or set model.dtype=float32"
            )
        return self._metrics(examples, steps, steps[-steps_per_epoch:]) | {
            UNCHANGED: float(is_equal(before, self.parameters)),
            "tune_s": time.perf_counter() - started,
        }

    def step(self, examples: Sequence[TunedExample], reference: Tensor | None = None) -> TuningStep:
        """Take one step on these examples; `reference` [P, 2] has the logprobs of pairs before the first step.

        A gradient that is not finite changes nothing.
        """
        loss, margins = 0.0, []
        for part in _micro_batches(examples):
            logps = self.logps([answer for example in examples[part] for answer in example])
            if reference is None:
                part_loss = sft_loss(logps, loss_tokens(examples))
            else:
                margin = dpo_margins(logps.view(-1, 2), reference[part], self._steps.beta)
                margins += margin.tolist()
                part_loss = dpo_loss(margin, len(examples))
            part_loss.backward()
            loss += part_loss.item()
        limit = self._settings.trainer.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return TuningStep(loss, norm, margins)

    def logps(self, answers: Sequence[TunedAnswer]) -> Tensor:  # [A] float32, nats
        """Return the sum of the logprobs of the tokens with loss of each answer."""
        rows, place, owners = [], 0, []
        for number, answer in enumerate(answers):
            for chain in answer.chains:
                tokens = [*chain.context, *chain.tokens]
                rows.append(Row(tokens, len(chain.context), chain.loss_mask.numpy().nonzero()[0].tolist(), place))
                place += len(chain.tokens)
                owners += [number] * len(chain.tokens)
        base = self._model.get_base_model()
        if self.plain_because is None:
            flat = prefix_tree.logprobs(base, rows, (1, place), 1.0)[0][0]
        else:
            flat = plain_pass.logprobs(self._model, rows, [row.tokens for row in rows], place, self._pad)
        owner = torch.tensor(owners, device=flat.device)
        return flat.new_zeros(len(answers)).index_add(0, owner, flat)

    def save(self, folder: Path) -> None:
        """Write the adapter to `folder`, which is created."""
        folder.mkdir(parents=True)
        save_adapter(self._model, folder, self._settings.model.base)

    def _reference(self, examples: Sequence[TunedExample]) -> Tensor | None:  # [P, 2] float32, nats
        """Return the logprobs of pairs under the weights that the version starts from."""
        if self._steps.method == "sft":
            return None
        with torch.no_grad():
            logps = [
                self.logps([answer for pair in examples[part] for answer in pair]) for part in _micro_batches(examples)
            ]
        return torch.cat(logps).view(-1, 2)

    def _metrics(
        self, examples: Sequence[TunedExample], steps: Sequence[TuningStep], last: Sequence[TuningStep]
    ) -> dict[str, float]:
        """Return the numbers of all steps; `last` are those of the last epoch."""
        metrics = {
            "loss_first": steps[0].loss,
            "loss": sum(step.loss for step in last) / len(last),
            "grad_norm": steps[-1].grad_norm,
            "skipped": float(sum(not math.isfinite(step.grad_norm) for step in steps)),
            "steps": float(len(steps)),
            "examples": float(len(examples)),
            "tokens": float(loss_tokens(examples)),
            "context_tokens": float(all_tokens(examples) - loss_tokens(examples)),
            "learning_rate": self._settings.trainer.learning_rate,
        }
        if self._steps.method == "dpo":
            margins = [margin for step in last for margin in step.margins]
            metrics["margin"] = sum(margins) / len(margins)
            metrics["accuracy"] = sum(margin > 0 for margin in margins) / len(margins)
        return metrics


def recipe_of(settings: Settings, steps: TuningSteps) -> dict[str, str]:
    """Return everything but examples and start that decides the bytes of a tuned adapter. Call `pin` first."""
    entries = recipe(settings)
    relevant = {
        key: value
        for key, value in entries.items()
        if (not key.startswith("trainer.") or key.removeprefix("trainer.") in USED) and key != "version.step"
    }
    return relevant | steps.plain() | {"version.tuning": TUNING_VERSION}


def _micro_batches(examples: Sequence[TunedExample]) -> Iterator[slice]:
    """Yield neighbouring examples, about MICRO_TOKENS at a time; a longer one comes alone."""
    begin = part_tokens = 0
    for place, example in enumerate(examples):
        example_tokens = sum(answer.tokens for answer in example)
        if place > begin and part_tokens + example_tokens > MICRO_TOKENS:
            yield slice(begin, place)
            begin, part_tokens = place, 0
        part_tokens += example_tokens
    yield slice(begin, len(examples))
