"""One batch of groups, one optimizer step.

    [AdvantagedGroup] ──► micro-batches ──► logprobs, each prefix run once ──► loss.py ──► clip, AdamW ──► metrics

Micro-batches only bound memory: their sum is the loss of the whole batch. `old` logprobs are those recorded
when the tokens were sampled, so the ratio covers both the age of the sampler and its arithmetic. TRL's GRPOTrainer
prepares the model and runs the plain pass of models that cannot share prefixes; its own loss is the oracle of a test.

A group with only zero advantages adds nothing to the gradient (without a KL term), so the model is not run on it; its
tokens and responses count in the means. The same holds for responses with a negative advantage under
trainer.advantages=positive, with a KL term, too.

With trainer.processes above 1 a batch is split into that many shares of whole groups
(trainer/step/shares.py). Each gives a gradient, computed here or by another process; the step takes their sum.

Nothing is drawn or shuffled: a step is a function of weights, optimizer state and groups.

With trainer.shard_base each rank holds a part of the base (trainer/step/sharded.py), and all take as many passes.

Not covered: more than one step per batch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, zip_longest
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from schemas.conventions import UNCHANGED
from schemas.events import AdvantagedGroup
from streams.engines.rendering.token_table import TokenTable
from streams.errors import SettingsError
from streams.settings.model import Trainer
from trainer.step import prefix_tree
from trainer.step.collate import Micro, collate, micro_batches, positive_part, scale_advantages, side_by_side
from trainer.step.loss import LossTokens, loss_of, ratio_of, reference_kl, token_losses
from trainer.step.sharded import Rhythm, losing, shard
from trainer.step.shares import (
    OtherRanks,
    Share,
    copy_of,
    gradient_of,
    is_equal,
    set_gradient,
    split,
    weights_of,
)  # fmt: skip
from trainer.step.totals import BatchTotals, StepSums
from trainer.step.tree_attention import attention_of


class MicroPass(NamedTuple):
    """The results of a micro-batch's pass through the model."""

    logps: Tensor  # [B, T] float32, nats
    entropies: Tensor | None  # [B, T] float32, nats, no gradient
    tokens: int
    """Number of tokens that went through the model."""
    aux: Tensor | None  # [] the load-balancing loss of a model with experts


def check(settings: Trainer) -> None:
    """Raise SettingsError, with the way out, for a combination that would have no effect."""
    if settings.loss == "cispo" and settings.importance != "none":
        raise SettingsError(
            f"trainer.importance={settings.importance} has no effect with trainer.loss=cispo, which weights each token "
            "by its own capped ratio; set trainer.importance=none, and the cap as trainer.epsilon_high"
        )
    if settings.loss == "gspo" and settings.importance == "mask":
        raise SettingsError(
            "trainer.importance=mask drops single tokens, but loss gspo has one ratio per response; "
            "set trainer.importance=none or truncate"
        )
    if settings.shard_base and settings.processes == 1:
        raise SettingsError(
            "trainer.shard_base=true has no effect with trainer.processes=1, since there is no rank for the other "
            "parts; set trainer.processes to 2 or more, or trainer.shard_base=false"
        )


class LogGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer on groups from the log. Call `train_batch`; `train()` has no data."""

    def __init__(
        self,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: Trainer,
        others: OtherRanks | None = None,
    ) -> None:
        """Train the adapter of `model`. `others` compute all shares but the first; without them all are computed here.

        Raises SettingsError as `check` does.
        """
        check(settings)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(
                model=model,
                reward_funcs=[_no_reward],
                args=_trl_config(settings, model),
                train_dataset=Dataset.from_dict({"prompt": [""]}),
                processing_class=tokenizer,
                optimizers=(optimizer, None),
            )
        self._pad = TokenTable.of(tokenizer, model.get_input_embeddings().num_embeddings).pad
        self.beta = settings.beta
        self.loss = loss_of(settings.loss)
        self.settings = settings
        self.parameters = parameters
        self.others = others
        self.model.train()
        if settings.gradient_checkpointing:
            model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        self.plain_because = prefix_tree.unshareable(model.get_base_model())
        """Why TRL's plain pass is run instead of the shared one; None if prefixes are shared."""
        if self.aux_loss_enabled:
            self.plain_because = "its experts' load-balancing loss is part of TRL's plain pass"
        self._passes = 0
        """Minimum passes of a micro-batch, since other ranks take as many."""
        self._rhythm: Rhythm | None = None

    def shard(self, device: str, within_s: float) -> None:
        """Keep this rank's part of the base, on `device`, from now on. Every rank calls it, once all have met.

        Raises SettingsError if the model cannot be held in parts, LostProcessError if another rank is lost.
        """
        if self.plain_because:
            raise SettingsError(
                f"trainer.shard_base: this base cannot be held in parts, since {self.plain_because}; set "
                "trainer.shard_base=false"
            )
        with losing():
            self._rhythm = shard(self.model, device, within_s)

    def train_batch(
        self, groups: Sequence[AdvantagedGroup], beat: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Take one optimizer step on `groups`, which `collate.check_group` has passed; return its metrics.

        `beat` is called after each micro-batch.
        A gradient that is not finite changes nothing, and is reported as skipped = 1. Without groups there is no step.
        UNCHANGED is 1 if no weight changed.
        """
        if not groups:
            return {"groups": 0.0, "responses": 0.0, "tokens": 0.0, "skipped": 1.0, UNCHANGED: 1.0}
        started = time.perf_counter()
        if self.settings.processes == 1:
            sums = self._differentiate(groups, 0, beat)
        else:
            sums, total = StepSums(), None
            for share in self._shares(groups, beat):
                sums.add(share.sums, meanwhile=self.others is not None)
                total = share.gradient if total is None else total + share.gradient
            assert total is not None  # noqa: S101 - there is a first share
            set_gradient(self.parameters, total)
        for parameter in self.parameters:
            if parameter.grad is None:  # no group moves anything: AdamW takes a gradient of 0 like any other
                parameter.grad = torch.zeros_like(parameter)
        mark = time.perf_counter()
        limit = self.settings.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        skipped = not torch.isfinite(torch.tensor(norm))
        before = copy_of(self.parameters)
        if not skipped:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        ended = time.perf_counter()
        return sums.metrics(BatchTotals.of(groups)) | {
            "grad_norm": norm,
            "skipped": float(skipped),
            UNCHANGED: float(is_equal(before, self.parameters)),
            "learning_rate": self.settings.learning_rate,
            "optimizer_s": ended - mark,
            "step_s": ended - started,
        }

    def share(self, groups: Sequence[AdvantagedGroup], number: int, beat: Callable[[], None] = lambda: None) -> Share:
        """Return share `number` of the step on the batch `groups`. Changes nothing.

        Raises LostProcessError if a rank with a part of the base is lost.
        """
        with losing():
            sums = self._differentiate(groups, number, beat)
        gradient = gradient_of(self.parameters)
        self.optimizer.zero_grad(set_to_none=True)
        return Share(gradient, sums.pack())

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

    def _differentiate(self, groups: Sequence[AdvantagedGroup], number: int, beat: Callable[[], None]) -> StepSums:
        """Add the gradient of share `number` of the batch `groups` to the parameters'; return the share in numbers."""
        final = scale_advantages(groups)
        if self.settings.advantages == "positive":
            final = positive_part(final)
        moving = final if self.beta else [group for group in final if not group.flat]
        batch, sums = BatchTotals.of(groups), StepSums()
        share = split(moving, self.settings.processes)[number]
        for part, passes in self._with_passes(list(micro_batches(share, self.settings.micro_groups))):
            self._passes = passes
            if part is None:
                self._idle()
                continue
            started = time.perf_counter()
            loss = self._micro_loss(part, batch, sums)
            forwarded = time.perf_counter()
            self._backward(loss)
            sums.forward_s += forwarded - started
            sums.backward_s += time.perf_counter() - forwarded
            sums.loss += loss.item()
            beat()
        return sums

    def _with_passes(
        self, parts: Sequence[list[AdvantagedGroup]]
    ) -> Iterator[tuple[list[AdvantagedGroup] | None, int]]:
        """Yield micro-batches with their minimum number of passes; None: only other ranks have one."""
        if self._rhythm is None:
            return zip(parts, repeat(0))
        rows = [collate(part, pad_id=self._pad, device="cpu").rows for part in parts]
        return zip_longest(parts, self._rhythm.agree([len(prefix_tree.grow(part)) for part in rows]))

    def _idle(self) -> None:
        """Take idle passes to match other ranks' passes for a micro-batch."""
        base = self.model.get_base_model()

        def run() -> Tensor:
            return prefix_tree.logprobs(base, (), (0, 0), self.temperature, passes=self._passes)[0].sum()

        if self.beta:
            with torch.no_grad():
                run()
        self._backward(run())

    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to the parameters'."""
        if not loss.requires_grad:  # the policy wrote nothing
            return
        if self.plain_because is None:  # with gradient checkpointing layers attend once more
            with attention_of(self.model.get_base_model()):
                loss.backward()
        else:
            loss.backward()

    def _micro_loss(self, groups: list[AdvantagedGroup], batch: BatchTotals, sums: StepSums) -> Tensor:
        """Return the contribution of a micro-batch's groups to the loss of `batch`, [], with gradient."""
        micro = collate(groups, pad_id=self._pad, device=self.model.device)
        self._use_temperature(micro.temperature)
        reference = self._reference(micro) if self.beta else None
        run = self._logprobs(micro)
        sums.observe(micro, run.logps.detach(), run.entropies, run.tokens)
        tokens = self._loss_tokens(micro, run.logps)
        losses = token_losses(self.loss, tokens)
        weight = micro.loss_tokens / batch.loss_tokens
        sums.clipped += weight * self.loss.clipped_share(tokens)
        if reference is not None:
            kl = reference_kl(tokens, reference)
            losses = losses + self.beta * kl
            sums.reference_kl += weight * ((kl.detach() * micro.loss_mask).sum() / max(1.0, micro.loss_tokens)).item()
        loss = batch.mean(losses, micro.loss_mask, self.loss.mean)
        if run.aux is not None:
            loss = loss + self.router_aux_loss_coef * run.aux * len(micro.advantages) / batch.responses
        return loss

    def _loss_tokens(self, micro: Micro, logps: Tensor) -> LossTokens:
        """Return the input of a loss. Importance weights are folded into the advantages, and `old` is then the
        trainer's.

        They are truncated at the cap (TIS, truncated importance sampling), or 0 above it (masked).
        """
        advantages, old, settings = micro.advantages, micro.sampled_logps, self.settings
        if settings.importance != "none":
            old = logps.detach()
            ratio = ((old - micro.sampled_logps) * micro.loss_mask).exp()
            if settings.importance == "truncate":
                advantages = advantages * ratio.clamp(max=settings.importance_cap)
            else:
                advantages = advantages * ratio.masked_fill(ratio > settings.importance_cap, 0.0)
        return LossTokens(
            logp=logps,
            old=old,
            ratio=ratio_of(logps, old, micro.loss_mask, self.loss.level),
            advantages=advantages,
            mask=micro.loss_mask,
            settings=settings,
        )

    def _logprobs(self, micro: Micro) -> MicroPass:
        """Run a micro-batch through the model, each distinct prefix once if possible. A row of the loss has the chains
        of a response one after another; the chains are run. If prefixes are shared, only tokens that the policy wrote
        have a logprob, and the others 0.
        """
        shape = (len(micro.completion_ids), micro.completion_ids.shape[1])
        if self.plain_because is None:
            base = self.accelerator.unwrap_model(self.model).get_base_model()
            logps, entropies, count = prefix_tree.logprobs(
                base, micro.rows, shape, self.temperature, passes=self._passes
            )
            return MicroPass(logps, entropies, count, None)
        rows = side_by_side(micro.rows, pad_id=self._pad, device=self.model.device)
        plain, wide, aux = self._get_per_token_logps_and_entropies(
            self.model,
            rows.input_ids,
            rows.attention_mask,
            rows.is_token.shape[1],
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
        )
        return MicroPass(rows.join(plain, shape), rows.join(wide, shape), rows.input_ids.numel(), aux)

    def _reference(self, micro: Micro) -> Tensor:
        """Return logprobs [B, T] of the base model, with the adapter switched off."""
        with torch.no_grad(), self.model.disable_adapter():
            return self._logprobs(micro).logps

    def _use_temperature(self, temperature: float) -> None:
        """Divide logits by `temperature` from now on, in TRL's plain pass too, which fixes it when it patches."""
        if temperature == self.temperature:
            return
        self.temperature: float = temperature
        base = self.model.get_base_model()
        del base.forward  # TRL's patch is on the instance; without it the class's own is back
        add_fused_lm_head(base, temperature=temperature, outputs=("log_probs", "entropy"))


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("rewards come from the log")


def _trl_config(settings: Trainer, model: PeftModel) -> GRPOConfig:
    """Return TRL's own settings for ours."""
    return GRPOConfig(
        output_dir=str(settings.checkpoints),
        seed=settings.seed,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",  # a schedule needs to know the last step, and so changes on resume
        max_grad_norm=settings.max_grad_norm,
        # with beta here TRL would copy the adapter as its reference; ours is the base, so LogGRPOTrainer sets it later
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
