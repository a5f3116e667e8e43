"""One batch of groups, one optimizer step.

    [AdvantagedGroup] ──► micro-batches ──► logprobs, each prefix run once ──► TRL's loss ──► clip, AdamW ──► metrics

The loss is TRL's own (`GRPOTrainer._compute_loss`, 1.16): grpo and gspo are a mean over responses, bnpo, dapo and
cispo over the batch's tokens, dr_grpo over responses times the most tokens one may have. The micro-batches only bound
memory: each is weighted so that their sum is the loss of the whole batch. `old` logprobs are those recorded when the
tokens were sampled, so the ratio covers both the age of the sampler and its arithmetic.

A group whose advantages are all 0 adds nothing to the gradient (without KL term), so the model is not run on it; its
tokens and responses count in the means as they do in TRL.

With trainer.processes above 1 a batch is split into that many shares of whole groups (trainer/shares.py). Each gives a
gradient, computed here or by another process, and the step is taken on their sum.

Nothing is sampled, shuffled, or drawn: a step is a function of weights, optimizer state and groups.

Not covered: more than one step per batch, gradient checkpointing, a model that does not fit one device.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from schemas.events import AdvantagedGroup
from streams.errors import SettingsError
from streams.settings.model import Trainer
from trainer import prefix_tree
from trainer.collate import Micro, collate, micro_batches, scaled
from trainer.shares import Others, Share, gradient_of, set_gradient, split, weights_of

_LOSS = {"gspo": ("grpo", "sequence")}
"""Our name of a loss to TRL's loss type and level of importance sampling, where they differ (arXiv:2507.18071)."""

_CLIPPED = ("clip_ratio/region_mean", "cispo_clip_ratio")
"""TRL's names for the share of tokens (gspo: responses) whose ratio was clipped."""


def check(settings: Trainer) -> None:
    """Refuse combinations without effect. Raises SettingsError with the way out."""
    if settings.loss == "cispo" and settings.importance != "none":
        raise SettingsError(
            f"trainer.importance={settings.importance} has no use with trainer.loss=cispo, which weights each token "
            "by its own capped ratio; set trainer.importance=none, and the cap as trainer.epsilon_high"
        )
    if settings.loss == "gspo" and settings.importance == "mask":
        raise SettingsError(
            "trainer.importance=mask drops single tokens, but loss gspo has one ratio per response; "
            "set trainer.importance=none or truncate"
        )


_ADDED = ("loss", "clipped", "reference_kl", "seen_tokens", "run", "given")
_TIMES = ("forward_s", "backward_s")
SUMS = len(_ADDED) + len(_TIMES) + 6
"""How many numbers a share has besides its gradient: `_Step.sums`."""


class LogGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer fed from the log. Call `train_batch`; `train()` has no data to run on."""

    def __init__(
        self,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: Trainer,
        others: Others | None = None,
    ) -> None:
        """Take `model` as it is: its adapter is what gets trained. `others` compute all shares but the first.

        Raises SettingsError as `check` does.
        """
        check(settings)
        loss_type, level = _LOSS.get(settings.loss, (settings.loss, "token"))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
        arguments = GRPOConfig(
            output_dir=str(settings.checkpoints),
            seed=settings.seed,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",  # a schedule needs to know the last step, and so changes on resume
            loss_type=loss_type,
            importance_sampling_level=level,
            epsilon=settings.epsilon_low,
            epsilon_high=settings.epsilon_high,
            max_grad_norm=settings.max_grad_norm,
            # with beta here TRL would copy the adapter as its reference; ours is the base, so it is set below
            beta=0.0,
            per_device_train_batch_size=2,
            num_generations=2,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            disable_dropout=True,
            bf16=False,
            use_cpu=model.device.type == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(
                model=model,
                reward_funcs=[_no_reward],
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": [""]}),
                processing_class=tokenizer,
                optimizers=(optimizer, None),
            )
        self.beta = settings.beta
        self.current_gradient_accumulation_steps = 1
        self.args.steps_per_generation = 1
        self.settings = settings
        self.parameters = parameters
        self.others = others
        self.model.train()
        self.plain_because = prefix_tree.unshareable(model.get_base_model())
        """Why TRL's plain pass is run instead of the shared one; None when prefixes are shared."""
        if self.aux_loss_enabled:
            self.plain_because = "its experts' load-balancing loss is part of TRL's plain pass"
        self._step_state: _OptimizerStep | None = None

    def train_batch(
        self, groups: Sequence[AdvantagedGroup], beat: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Take one optimizer step on `groups`, which `collate.check_group` has passed; return its metrics.

        `beat` is called after each micro-batch.
        A gradient that is not finite changes nothing, and shows as skipped = 1. No groups, no step.
        """
        if not groups:
            return {"groups": 0.0, "responses": 0.0, "tokens": 0.0, "skipped": 1.0}
        started = time.perf_counter()
        step = _OptimizerStep(groups)
        if self.settings.processes == 1:
            self._differentiate(groups, 0, step, beat)
        else:
            total: Tensor | None = None
            for share in self._shares(groups, beat):
                step.add(share.sums, meanwhile=self.others is not None)
                total = share.gradient if total is None else total + share.gradient
            assert total is not None  # noqa: S101 - there is a first share
            set_gradient(self.parameters, total)
        for parameter in self.parameters:
            if parameter.grad is None:  # no group moves anything: a gradient of 0, which AdamW takes in like any other
                parameter.grad = torch.zeros_like(parameter)
        mark = time.perf_counter()
        limit = self.settings.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        skipped = not torch.isfinite(torch.tensor(norm))
        if not skipped:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        ended = time.perf_counter()
        return step.metrics() | {
            "grad_norm": norm,
            "skipped": float(skipped),
            "learning_rate": self.settings.learning_rate,
            "optimizer_s": ended - mark,
            "step_s": ended - started,
        }

    def share(self, groups: Sequence[AdvantagedGroup], number: int, beat: Callable[[], None] = lambda: None) -> Share:
        """Return share `number` of the step on the batch `groups`. Nothing is changed by it."""
        step = _OptimizerStep(groups)
        self._differentiate(groups, number, step, beat)
        gradient = gradient_of(self.parameters)
        self.optimizer.zero_grad(set_to_none=True)
        return Share(gradient, step.sums())

    def _shares(self, groups: Sequence[AdvantagedGroup], beat: Callable[[], None]) -> Iterator[Share]:
        """Yield every share of the batch, in order."""
        if self.others is None:
            for number in range(self.settings.processes):
                yield self.share(groups, number, beat)
            return
        started = time.perf_counter()
        self.others.begin(weights_of(self.parameters), groups)
        yield self.share(groups, 0, beat)
        yield from self.others.shares(time.perf_counter() - started)

    def _differentiate(
        self, groups: Sequence[AdvantagedGroup], number: int, step: _OptimizerStep, beat: Callable[[], None]
    ) -> None:
        """Add the gradient of share `number` of the batch `groups` to the parameters', and what it saw to `step`."""
        weighed = scaled(groups)
        moving = weighed if self.beta else [group for group in weighed if any(r.advantage for r in group.responses)]
        self._step_state = step
        self._metrics["train"].clear()
        mine = split(moving, self.settings.processes)[number]
        for part in micro_batches(mine, self.settings.micro_groups):
            inputs = self._prepare_inputs(part)
            mark = time.perf_counter()
            loss = self.compute_loss(self.model, inputs) * step.weight(self.loss_type)
            step.forward_s += time.perf_counter() - mark
            mark = time.perf_counter()
            loss.backward()
            step.backward_s += time.perf_counter() - mark
            step.close(loss.item(), self._metrics["train"])
            beat()
        self._step_state = None

    def _prepare_inputs(self, generation_batch: list[AdvantagedGroup]) -> dict[str, Any]:
        """Return what TRL's `_compute_loss` reads, for the groups of one micro-batch."""
        assert self._step_state is not None, "call train_batch"  # noqa: S101
        micro = collate(generation_batch, pad_id=self._tokenizer.pad_token_id, device=self.model.device)
        self._use_temperature(micro.temperature)
        self.max_completion_length = self._step_state.max_tokens
        inputs: dict[str, Any] = {
            "prompt_ids": micro.prompt_ids,
            "prompt_mask": micro.prompt_mask,
            "completion_ids": micro.completion_ids,
            "completion_mask": micro.completion_mask,
            "tool_mask": micro.loss_mask,
            "advantages": micro.advantages[:, None].expand_as(micro.loss_mask).clone(),
            "num_items_in_batch": torch.tensor(self._step_state.loss_tokens, device=self.model.device),
        }
        if self.settings.importance == "none":
            inputs["old_per_token_logps"] = micro.sampled_logps
        if self.beta != 0.0:
            inputs["ref_per_token_logps"] = self._reference(micro)
        self._step_state.open(micro, inputs["advantages"], self._importance())
        return inputs

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return logprobs [B, T], entropies [B, T] and None, as TRL's own, with each distinct prefix run once."""
        aux: Tensor | None = None
        entropies: Tensor | None
        if self.plain_because is None:
            base = self.accelerator.unwrap_model(model).get_base_model()
            logps, entropies, run = prefix_tree.logprobs(
                base, input_ids, attention_mask, logits_to_keep, self.temperature
            )
        else:
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
            run = input_ids.numel()
        if self._step_state is not None and logps.requires_grad:
            self._step_state.observe(logps.detach(), entropies, run)
        return logps, entropies, aux

    def _reference(self, micro: Micro) -> Tensor:
        """Return logprobs [B, T] of the base model: the adapter switched off."""
        with torch.no_grad(), self.model.disable_adapter():
            ids = torch.cat([micro.prompt_ids, micro.completion_ids], dim=1)
            mask = torch.cat([micro.prompt_mask, micro.completion_mask], dim=1)
            width = micro.completion_ids.shape[1]
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, width)[0]

    def _importance(self) -> Callable[[Tensor], Tensor] | None:
        """Return the weight of a ratio trainer / sampler, or None when it is already in the loss.

        TRL has such weights only for its own vLLM, so they are folded into the advantages here: truncated at the cap
        (TIS), or 0 above it (masked). TRL then takes the trainer's own logprobs as `old`.
        """
        cap = self.settings.importance_cap
        return {
            "none": None,
            "truncate": lambda ratio: ratio.clamp(max=cap),
            "mask": lambda ratio: ratio.masked_fill(ratio > cap, 0.0),
        }[self.settings.importance]

    def _use_temperature(self, temperature: float) -> None:
        """Divide logits by `temperature` from now on, in TRL's plain pass too, which fixes it when it patches."""
        if temperature == self.temperature:
            return
        self.temperature: float = temperature
        base = self.model.get_base_model()
        del base.forward  # TRL's patch lies on the instance; below it is the class's own
        add_fused_lm_head(base, temperature=temperature, outputs=("log_probs", "entropy"))


class _OptimizerStep:
    """Sums over the micro-batches of one step."""

    def __init__(self, groups: Sequence[AdvantagedGroup]) -> None:
        responses = [response for group in groups for response in group.responses]
        self.groups = len(groups)
        self.responses = len(responses)
        self.loss_tokens = max(1.0, float(sum(sum(response.loss_mask) for response in responses)))
        self.max_tokens = max(group.sampling.max_tokens for group in groups)
        self.rewards = [response.reward for response in responses]
        self.forward_s = self.backward_s = 0.0
        self.loss = self.clipped = self.reference_kl = 0.0
        self.ratios = torch.zeros(5, dtype=torch.float64)  # ratio, k3, |difference|, entropy, ratio²
        self.largest = 0.0
        self.run = self.given = 0.0
        self.seen_tokens = 0.0

    def open(self, micro: Micro, advantages: Tensor, importance: Callable[[Tensor], Tensor] | None) -> None:
        self.micro, self.advantages, self.importance = micro, advantages, importance

    def weight(self, loss_type: str) -> float:
        """Return the share of the open micro-batch in the loss of the batch, for TRL's own normalisation of each."""
        if loss_type in ("dapo", "cispo"):  # already divided by num_items_in_batch
            return 1.0
        if loss_type == "bnpo":
            return max(1.0, self.micro.loss_tokens) / self.loss_tokens
        return len(self.micro.advantages) / self.responses

    def observe(self, logps: Tensor, entropies: Tensor | None, run: int) -> None:
        """Take note of the pass, and fold the importance weights in: TRL reads the advantages after its pass."""
        micro, mask = self.micro, self.micro.loss_mask
        difference = (logps - micro.sampled_logps) * mask
        ratio = difference.exp()
        if self.importance is not None:
            self.advantages.mul_(self.importance(ratio))
        rows = (
            ratio,
            ratio - 1 - difference,
            difference.abs(),
            torch.zeros_like(mask) if entropies is None else entropies,
            ratio.square(),
        )
        self.ratios += torch.stack([(row.double() * mask).sum() for row in rows]).cpu()
        self.seen_tokens += micro.loss_tokens
        self.largest = max(self.largest, difference.abs().max().item())
        self.run += run
        self.given += int(micro.prompt_mask.sum() + micro.completion_mask.sum())

    def close(self, loss: float, metrics: dict[str, list[float]]) -> None:
        self.loss += loss
        share = self.micro.loss_tokens / self.loss_tokens
        self.clipped += share * next((metrics[name][-1] for name in _CLIPPED if name in metrics), 0.0)
        if "kl" in metrics:
            self.reference_kl += share * metrics["kl"][-1]

    def sums(self) -> Tensor:
        """Return what was added up, [SUMS] float64, for `add`."""
        plain = [float(getattr(self, name)) for name in (*_ADDED, *_TIMES)]
        return torch.tensor([*plain, self.largest, *self.ratios.tolist()], dtype=torch.float64)

    def add(self, sums: Tensor, *, meanwhile: bool) -> None:
        """Add what another share of the same batch saw; it took no time of its own if computed `meanwhile`."""
        values = dict(zip((*_ADDED, *_TIMES, "largest"), sums.tolist(), strict=False))
        for name, value in values.items():
            ours = getattr(self, name)
            largest = name == "largest" or (name in _TIMES and meanwhile)
            setattr(self, name, max(ours, value) if largest else ours + value)
        self.ratios += sums[len(values) :]

    def metrics(self) -> dict[str, float]:
        """Return the step in numbers. `kl` is the k3 estimate of KL(sampler || trainer), nats per token.

        `effective` is the share of the tokens that would count as much with equal weights: Kish's effective sample
        size over n, (Σw)² / (n Σw²), of the ratios w; 1 where no token was run.
        """
        ratio, k3, difference, entropy, squared = (self.ratios / max(1.0, self.seen_tokens)).tolist()
        return {
            "loss": self.loss,
            "reward": sum(self.rewards) / self.responses,
            "ratio": ratio,
            "effective": ratio**2 / squared if squared else 1.0,
            "kl": k3,
            "kl_reference": self.reference_kl,
            "mismatch": difference,
            "mismatch_max": self.largest,
            "clipped": self.clipped,
            "entropy": entropy,
            "groups": float(self.groups),
            "responses": float(self.responses),
            "tokens": self.loss_tokens,
            "tokens_given": float(self.given),
            "tokens_run": float(self.run),
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
        }


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("rewards come from the log")
