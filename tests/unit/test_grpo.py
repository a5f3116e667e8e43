"""The trainer's step: TRL's loss over the whole batch, each prefix run once, against a second implementation."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from schemas.events import AdvantagedGroup, CreditSpan, GroupResponse
from streams.errors import SettingsError
from streams.settings.model import Trainer
from tests.support.factories import changed
from tests.support.models.tiny import VOCABULARY, sampled_logps, tiny_group, tiny_model, tiny_tokenizer
from trainer.step import prefix_tree
from trainer.step.collate import collate
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import wrap
from trainer.step.prefix_tree import Row
from trainer.step.token_chains import chains

LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "gspo")


def trainer_for(tmp_path: Path, model: Any = None, pad: str = "<pad>", **changes: Any) -> LogGRPOTrainer:
    """A trainer whose adapter already does something: B is not zero."""
    if changes.get("loss") == "cispo":
        changes.setdefault("epsilon_high", 1.2)
    settings = Trainer(checkpoints=tmp_path, micro_groups=changes.pop("micro_groups", 2), **changes)
    wrapped = wrap(model or tiny_model(), settings)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = pad
    return LogGRPOTrainer(wrapped, tokenizer, settings)


@cache
def batch(**changes: Any) -> list[AdvantagedGroup]:
    """Five groups of unlike sizes: prompts of 4 to 8 tokens, 2 to 5 slots."""
    model = tiny_model()
    return [tiny_group(model, seed, prompt=4 + seed, slots=2 + seed % 4, **changes) for seed in range(5)]


def gradients_of(trainer: LogGRPOTrainer, groups: list[AdvantagedGroup]) -> tuple[dict[str, float], Tensor]:
    """The metrics of a step and the gradient it used: plain gradient descent at rate 1 shows it exactly."""
    before = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
    trainer.optimizer = torch.optim.SGD(trainer.parameters, lr=1.0)
    metrics = trainer.train_batch(groups)
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
    return metrics, before - after


def assert_close(ours: Tensor, theirs: Tensor, relative: float = 1e-5) -> None:
    assert torch.linalg.norm(theirs) > 1e-3, "the case must have a gradient to compare"
    assert torch.linalg.norm(ours - theirs) <= relative * torch.linalg.norm(theirs)


# --- a second implementation, response by response, written from the papers -----------------------------------------


def reference_loss(trainer: LogGRPOTrainer, groups: list[AdvantagedGroup]) -> Tensor:
    """The loss of the whole batch, in plain torch, one forward pass per chain of a response, nothing padded.

    GRPO arXiv:2402.03300; DAPO arXiv:2503.14476; Dr. GRPO arXiv:2503.20783; BNPO as TRL defines it;
    CISPO arXiv:2506.13585; GSPO arXiv:2507.18071; importance weights as TIS.
    """
    settings = trainer.settings
    responses = [(group, response) for group in groups for response in group.responses]
    tokens = sum(response.loss_tokens for _, response in responses)
    longest = max(group.sampling.max_tokens for group in groups)
    terms = []
    for group, response in responses:
        found = [chain for chain in chains(group, response) if chain.tokens]
        if not found:
            continue

        def logps(found: Any = found, group: Any = group) -> Tensor:
            """Of the response's chains, one after another; each is run by itself."""
            parts = []
            for chain in found:
                prompt, completion = list(chain.context), list(chain.tokens)
                logits = trainer.model.get_base_model()(input_ids=torch.tensor([prompt + completion])).logits[0]
                logits = logits[len(prompt) - 1 : -1] / group.sampling.temperature
                parts.append(logits.log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)])
            return torch.cat(parts)

        mask = torch.cat([torch.tensor(chain.loss_mask).float() for chain in found])
        advantage = torch.cat([torch.tensor(chain.advantages) for chain in found])
        logp = logps()
        sampled = torch.cat([torch.tensor(chain.logprobs) for chain in found]).masked_fill(mask == 0, 0.0)
        old = sampled
        if settings.importance != "none":
            old = logp.detach()
            weight = (old - sampled).exp()
            above = weight > settings.importance_cap
            capped = torch.full_like(weight, settings.importance_cap if settings.importance == "truncate" else 0.0)
            advantage = advantage * torch.where(above, capped, weight)
        ratio = (logp - old).exp()
        if settings.loss == "gspo":
            ratio = (((logp - old) * mask).sum() / mask.sum()).exp().expand_as(mask)
        low, high = 1 - settings.epsilon_low, 1 + settings.epsilon_high
        if settings.loss == "cispo":
            term = -ratio.clamp(max=settings.epsilon_high).detach() * advantage * logp
        else:
            term = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        if settings.beta:
            with torch.no_grad(), trainer.model.disable_adapter():
                apart = logps() - logp.detach()
            apart = apart + logp.detach() - logp
            term = term + settings.beta * ratio * (apart.exp() - apart - 1)  # unbiased: arXiv:2512.02556
        term = term * mask
        terms.append(
            {
                "grpo": lambda term=term, mask=mask: term.sum() / mask.sum() / len(responses),
                "gspo": lambda term=term, mask=mask: term.sum() / mask.sum() / len(responses),
                "dapo": lambda term=term: term.sum() / tokens,
                "bnpo": lambda term=term: term.sum() / tokens,
                "cispo": lambda term=term: term.sum() / tokens,
                "dr_grpo": lambda term=term: term.sum() / (len(responses) * longest),
            }[settings.loss]()
        )
    return torch.stack(terms).sum()


def reference(trainer: LogGRPOTrainer, groups: list[AdvantagedGroup]) -> tuple[float, Tensor]:
    loss = reference_loss(trainer, groups)
    gradients = torch.autograd.grad(loss, trainer.parameters)
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


def assert_as_reference(
    trainer: LogGRPOTrainer, groups: list[AdvantagedGroup], expected: tuple[float, Tensor] | None = None
) -> None:
    loss, gradient = expected or reference(trainer, groups)
    metrics, ours = gradients_of(trainer, groups)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(torch.linalg.norm(gradient).item(), rel=1e-5)
    assert_close(ours, gradient)


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_the_papers_over_the_whole_batch_however_it_is_cut(tmp_path: Path, loss: str) -> None:
    expected = reference(trainer_for(tmp_path, loss=loss), batch())
    cuts = [*({"micro_groups": count} for count in (1, 3, 8)), *({"processes": count} for count in (2, 3, 7))]
    for cut in cuts:
        assert_as_reference(trainer_for(tmp_path, loss=loss, max_grad_norm=0, **cut), batch(), expected)


def test_a_step_in_shares_measures_what_a_whole_one_does(tmp_path: Path) -> None:
    """But for the tokens run: prefixes are shared within a micro-batch only."""
    whole, shared = (
        trainer_for(tmp_path, beta=0.5, importance="truncate", processes=processes).train_batch(batch())
        for processes in (1, 3)
    )
    assert shared.keys() == whole.keys()
    same = [name for name in whole if not name.endswith("_s") and name != "tokens_run"]
    assert {name: shared[name] for name in same} == pytest.approx({name: whole[name] for name in same}, rel=1e-4)


@pytest.mark.parametrize("importance", ["truncate", "mask"])
def test_importance_weights_reach_the_loss_without_a_second_pass(tmp_path: Path, importance: str) -> None:
    trainer = trainer_for(tmp_path, importance=importance, importance_cap=1.1, max_grad_norm=0)
    assert_as_reference(trainer, batch())


@pytest.mark.parametrize("loss", ["grpo", "dapo", "gspo"])
def test_beta_pulls_towards_the_base_model_without_adapter(tmp_path: Path, loss: str) -> None:
    trainer = trainer_for(tmp_path, loss=loss, beta=0.5, max_grad_norm=0)
    assert_as_reference(trainer, batch())
    assert not [name for name, _ in trainer.model.named_parameters() if ".ref." in name]


def test_a_batch_may_mix_temperatures(tmp_path: Path) -> None:
    model = tiny_model()
    groups = [tiny_group(model, seed, temperature=temperature) for seed, temperature in enumerate((1.0, 0.7, 1.0, 1.5))]
    assert_as_reference(trainer_for(tmp_path, max_grad_norm=0), groups)


def test_tokens_the_policy_did_not_write_carry_no_loss(tmp_path: Path) -> None:
    group = tiny_group(tiny_model(), 3)
    masked = tuple(
        changed(response, loss_mask=tuple(place != 1 for place in range(len(response.loss_mask))))
        for response in group.responses
    )
    assert_as_reference(trainer_for(tmp_path, max_grad_norm=0), [replace(group, responses=masked), *batch()])


@pytest.mark.parametrize("loss", LOSSES)
def test_each_turn_may_have_an_advantage_of_its_own(tmp_path: Path, loss: str) -> None:
    """Also where the responses on the whole were all alike."""

    def with_turns(response: GroupResponse) -> GroupResponse:
        tokens = len(response.completion_token_ids)
        cut, better = tokens // 2, 1.0 - response.slot
        spans = (
            CreditSpan(start=0, end=cut, advantage=better), CreditSpan(start=cut + 1, end=tokens, advantage=-better)
        )  # fmt: skip
        mask = tuple(place != cut for place in range(tokens))  # a token of the environment lies between
        return changed(response, loss_mask=mask, advantage=0.0, spans=spans)

    groups = [replace(group, responses=tuple(map(with_turns, group.responses))) for group in batch()]
    assert not any(group.flat for group in groups)
    assert_as_reference(trainer_for(tmp_path, loss=loss, max_grad_norm=0), groups)


def test_an_end_that_is_the_pad_bears_loss_once_and_padding_none(tmp_path: Path) -> None:
    """Answers of unlike lengths, each with the end at its end."""
    (end,) = tiny_tokenizer().convert_tokens_to_ids(["</s>"])

    def ended(group: AdvantagedGroup, response: GroupResponse) -> GroupResponse:
        tokens = (*response.completion_token_ids, end)
        logps = sampled_logps(tiny_model(), list(group.prompt_token_ids), list(tokens))
        return changed(response, completion_token_ids=tokens, logprobs=tuple(logps), loss_mask=(True,) * len(tokens))

    groups = [replace(group, responses=tuple(ended(group, one) for one in group.responses)) for group in batch()]
    micro = collate(groups, pad_id=end)
    assert (
        (micro.completion_ids == end).sum()
        > len(micro.rewards)
        == ((micro.completion_ids == end) * micro.loss_mask).sum()
    )
    for plain_because in (None, "every row is padded"):
        trainer = trainer_for(tmp_path, pad="</s>", max_grad_norm=0)
        trainer.plain_because = plain_because
        assert trainer._pad == end
        assert_as_reference(trainer, groups)


def test_a_response_without_tokens_counts_as_a_response_and_teaches_nothing(tmp_path: Path) -> None:
    group = tiny_group(tiny_model(), 3)
    empty = changed(group.responses[0], completion_token_ids=(), logprobs=(), loss_mask=())
    groups = [replace(group, responses=(empty, *group.responses[1:])), *batch()]
    assert_as_reference(trainer_for(tmp_path, loss="grpo", max_grad_norm=0), groups)


def test_clipping_by_hand(tmp_path: Path) -> None:
    """Sampled at p / 1.5, so the ratio is 1.5: clipped to 1.28 where the advantage is 1, not clipped where it is -1."""
    trainer = trainer_for(tmp_path)
    group = tiny_group(tiny_model(), 1, slots=2, completion=1)
    base = trainer.model.get_base_model()
    responses = []
    for response, advantage in zip(group.responses, (1.0, -1.0), strict=True):
        logps = sampled_logps(base, list(group.prompt_token_ids), list(response.completion_token_ids))
        responses.append(changed(response, advantage=advantage, logprobs=(logps[0] - math.log(1.5),)))
    metrics = trainer.train_batch([replace(group, responses=tuple(responses))])
    assert metrics["loss"] == pytest.approx((-1.28 + 1.5) / 2, abs=1e-5)
    assert metrics["ratio"] == pytest.approx(1.5, abs=1e-5)
    assert metrics["clipped"] == pytest.approx(0.5)
    assert metrics["kl"] == pytest.approx(1.5 - 1 - math.log(1.5), abs=1e-5)
    assert metrics["mismatch_max"] == pytest.approx(math.log(1.5), abs=1e-5)


# --- only what was better than its siblings ---------------------------------------------------------------------------


def by_hand(trainer: LogGRPOTrainer, *advantages: float) -> AdvantagedGroup:
    """A group of one-token answers, each sampled at the trainer's own probability / 1.1: its ratio is 1.1."""
    group = tiny_group(tiny_model(), 1, slots=len(advantages), completion=1)
    base = trainer.model.get_base_model()
    responses = []
    for response, advantage in zip(group.responses, advantages, strict=True):
        logps = sampled_logps(base, list(group.prompt_token_ids), list(response.completion_token_ids))
        responses.append(changed(response, advantage=advantage, logprobs=(logps[0] - math.log(1.1),)))
    return replace(group, responses=tuple(responses))


def test_with_positive_advantages_alone_a_worse_response_bears_no_loss_and_counts_in_the_mean(tmp_path: Path) -> None:
    """Advantages 1.5, -0.5, -1 and ratio 1.1: (-1.65 + 0.55 + 1.1) / 3 with both, -1.65 / 3 with the positive ones."""
    both, positive = (trainer_for(tmp_path, advantages=which, max_grad_norm=0) for which in ("both", "positive"))
    group = by_hand(both, 1.5, -0.5, -1.0)
    assert both.train_batch([group])["loss"] == pytest.approx(0.0, abs=1e-5)
    metrics = positive.train_batch([group])
    assert metrics["loss"] == pytest.approx(-1.65 / 3, abs=1e-5)
    assert (metrics["responses"], metrics["tokens"], metrics["reward"]) == (3.0, 3.0, 1.0)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES)
def test_positive_advantages_alone_give_the_gradient_of_a_batch_whose_worse_responses_have_no_tokens(
    tmp_path: Path, loss: str, beta: float
) -> None:
    """It counts as a response; what it would have had of tokens counts in a mean over tokens, so that one is scaled."""

    def silent(response: GroupResponse) -> GroupResponse:
        if response.advantage >= 0:
            return response
        return changed(response, completion_token_ids=(), logprobs=(), loss_mask=())

    groups = batch()
    better = [replace(group, responses=tuple(map(silent, group.responses))) for group in groups]
    positive = trainer_for(tmp_path, loss=loss, beta=beta, advantages="positive", max_grad_norm=0)
    _, expected = reference(trainer_for(tmp_path, loss=loss, beta=beta), better)
    tokens, all_tokens = (sum(r.loss_tokens for group in part for r in group.responses) for part in (better, groups))
    share = tokens / all_tokens if loss in ("dapo", "bnpo", "cispo") else 1.0
    assert tokens < all_tokens
    assert_close(gradients_of(positive, groups)[1], expected * share)


def test_of_turns_with_advantages_of_their_own_the_worse_ones_bear_no_loss(tmp_path: Path) -> None:
    def with_turns(response: GroupResponse, least: float) -> GroupResponse:
        tokens = len(response.completion_token_ids)
        pairs = ((0, 2, 1.0 - response.slot), (2, tokens, response.slot - 1.0))
        spans = tuple(CreditSpan(start=a, end=b, advantage=max(least, advantage)) for a, b, advantage in pairs)
        return replace(response, advantage=0.0, spans=spans)

    turns, better = (
        [replace(group, responses=tuple(with_turns(one, least) for one in group.responses)) for group in batch()]
        for least in (-math.inf, 0.0)
    )
    _, expected = reference(trainer_for(tmp_path), better)
    positive = trainer_for(tmp_path, advantages="positive", max_grad_norm=0)
    assert_close(gradients_of(positive, turns)[1], expected)


def test_with_positive_advantages_alone_a_batch_without_any_changes_nothing(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, advantages="positive")
    metrics = trainer.train_batch([by_hand(trainer, -1.0, -0.5)])
    assert (metrics["loss"], metrics["grad_norm"], metrics["unchanged"]) == (0.0, 0.0, 1.0)


def test_positive_advantages_alone_give_the_same_numbers_in_shares(tmp_path: Path) -> None:
    whole, shared = (
        gradients_of(trainer_for(tmp_path, advantages="positive", processes=count, max_grad_norm=0), batch())[1]
        for count in (1, 3)
    )
    assert_close(shared, whole)


# --- the shared pass against TRL's plain one -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_shared_prefixes_give_the_loss_and_gradient_of_trls_plain_pass(tmp_path: Path, loss: str) -> None:
    shared, plain = (trainer_for(tmp_path, loss=loss, max_grad_norm=0) for _ in range(2))
    assert shared.plain_because is None
    plain.plain_because = "this is the oracle"
    ours, theirs = gradients_of(shared, batch()), gradients_of(plain, batch())
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5, abs=1e-7)
    assert ours[0]["entropy"] == pytest.approx(theirs[0]["entropy"], rel=1e-4)
    assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("nodes", [8, 40, 4096])
def test_logprobs_do_not_depend_on_how_rows_are_merged(tmp_path: Path, nodes: int) -> None:
    trainer = trainer_for(tmp_path)
    groups = batch()
    pairs = [(list(group.prompt_token_ids), list(r.completion_token_ids)) for group in groups for r in group.responses]
    width = max(len(completion) for _, completion in pairs)
    rows = [
        Row([*prompt, *completion], len(prompt), range(len(completion)), number * width)
        for number, (prompt, completion) in enumerate(pairs)
    ]
    base = trainer.model.get_base_model()
    ours = prefix_tree.logprobs(base, rows, (len(rows), width), 1.0, nodes)[0]
    for (prompt, completion), row in zip(pairs, ours, strict=True):
        alone = torch.tensor(sampled_logps(base, prompt, completion))
        assert torch.allclose(row[: len(completion)], alone, atol=1e-5, rtol=0)
        assert not row[len(completion) :].any()


def test_each_distinct_prefix_is_run_once() -> None:
    prompt = [1, 5, 6]
    (tree,) = prefix_tree.grow(
        [
            Row([*prompt, 7, 2], 3, [0, 1], 0),
            Row([*prompt, 7, 8, 2], 3, [0, 1, 2], 3),
            Row([*prompt, 9, 2], 3, [0, 1], 6),
            Row([1, 5, 10, 7, 2], 3, [0, 1], 9),
        ]
    )
    # 1 5 6 7 | 8 | 9 | 10 7: the last token of a row is never run
    assert tree.tokens.tolist() == [1, 5, 6, 7, 8, 9, 10, 7]
    assert tree.positions.tolist() == [0, 1, 2, 3, 4, 3, 2, 3]
    assert tree.target_places.tolist() == [0, 1, 3, 4, 5, 6, 7, 9, 10]
    assert tree.heads.tolist() == [2, 3, 4, 5, 6, 7]


def test_observations_are_run_only_where_the_policy_went_on_and_never_have_a_head() -> None:
    prompt, said, shown = [1, 5], [7, 8], [20, 21, 22]
    (tree,) = prefix_tree.grow(
        [
            Row([*prompt, *said, *shown, *said, *shown], 2, [0, 1, 5, 6], 0),
            Row([*prompt, *said, *shown, 9, 2], 2, [0, 1, 5, 6], 10),
            Row([*prompt, *shown], 2, [], 20),
        ]
    )
    assert tree.tokens.tolist() == [*prompt, *said, *shown, 7, 9]
    assert tree.heads.tolist() == [1, 2, 6, 7, 8]
    assert tree.target_places.tolist() == [0, 1, 5, 6, 10, 11, 15, 16]
    assert prefix_tree.grow([Row([*prompt, *shown], 2, [], 0)]) == []


def test_a_model_with_a_sliding_window_is_trained_by_the_plain_pass(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        pad_token_id=0,
        initializer_range=0.3,
    )
    trainer = trainer_for(tmp_path, MistralForCausalLM(config).eval().requires_grad_(False), max_grad_norm=0)
    assert trainer.plain_because == "it has a sliding window"
    model = tiny_model()
    assert_as_reference(trainer, [tiny_group(model, 1), tiny_group(model, 2, temperature=0.7)])


def test_memory_of_logits_is_bounded_by_chunks_that_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gradients_of(trainer_for(tmp_path, max_grad_norm=0), batch())[1]
    monkeypatch.setattr(prefix_tree, "LOGITS", 3 * VOCABULARY)
    assert_close(gradients_of(trainer_for(tmp_path, max_grad_norm=0), batch())[1], whole)


# --- the step --------------------------------------------------------------------------------------------------------


def test_a_step_is_adamw_on_the_clipped_gradient_of_the_batch(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, learning_rate=0.01, max_grad_norm=0.05)
    _, gradient = reference(trainer, batch())
    assert torch.linalg.norm(gradient) > 0.05
    before = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
    trainer.train_batch(batch())
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])
    clipped = gradient * 0.05 / torch.linalg.norm(gradient)
    # first step of Adam: both moments are unbiased, so it is g / (|g| + eps)
    expected = -0.01 * clipped / (clipped.abs() + 1e-8)
    large = clipped.abs() > 1e-5
    assert torch.allclose((after - before)[large], expected[large], rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_groups_of_equal_rewards_count_in_the_means_and_cost_no_pass(tmp_path: Path, loss: str) -> None:
    trainer = trainer_for(tmp_path, loss=loss, max_grad_norm=0)
    groups = [flat(group) if place in (1, 3) else group for place, group in enumerate(batch())]
    assert_as_reference(trainer, groups)
    moving = [group for group in groups if any(response.advantage for response in group.responses)]
    metrics = trainer.train_batch(groups)
    assert (metrics["groups"], metrics["tokens_given"]) == (5, trainer.train_batch(moving)["tokens_given"])


def test_groups_of_equal_rewards_are_run_when_a_kl_term_pulls_on_them(tmp_path: Path) -> None:
    assert_as_reference(trainer_for(tmp_path, beta=0.5, max_grad_norm=0), [flat(batch()[0]), *batch()[1:]])


def test_a_batch_that_moves_nothing_is_still_a_step_of_adamw(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    trainer.train_batch(batch())
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    metrics = trainer.train_batch([flat(group) for group in batch()])
    assert (metrics["skipped"], metrics["unchanged"], metrics["grad_norm"], metrics["loss"]) == (0, 0, 0, 0)
    assert not any(map(torch.equal, before, trainer.parameters))  # its momentum goes on


def flat(group: AdvantagedGroup) -> AdvantagedGroup:
    return replace(group, responses=tuple(replace(response, advantage=0.0) for response in group.responses))


def test_no_groups_take_no_step(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    metrics = trainer.train_batch([])
    assert (metrics["skipped"], metrics["unchanged"]) == (1.0, 1.0)
    assert all(map(torch.equal, before, trainer.parameters))


@pytest.mark.parametrize(("learning_rate", "is_flat"), [(1e-3, True), (1e-30, False)])
def test_a_step_that_leaves_every_weight_as_it_is_says_so(tmp_path: Path, learning_rate: float, is_flat: bool) -> None:
    """The gradient is 0 and there is no momentum yet; or the step is smaller than the last digit of a weight."""
    trainer = trainer_for(tmp_path, learning_rate=learning_rate)
    with torch.no_grad():
        for parameter in trainer.parameters:
            parameter.add_(0.5)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    metrics = trainer.train_batch([flat(group) if is_flat else group for group in batch()])
    assert (metrics["unchanged"], metrics["skipped"], metrics["grad_norm"] == 0) == (1.0, 0.0, is_flat)
    assert all(map(torch.equal, before, trainer.parameters))
    assert trainer_for(tmp_path).train_batch(batch())["unchanged"] == 0.0


def test_a_gradient_that_is_not_finite_changes_nothing_and_says_so(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    group = tiny_group(tiny_model(), 1)
    huge = tuple(changed(response, advantage=3e38, logprobs=(-50.0,) * 5) for response in group.responses[:1])
    huge = tuple(replace(r, logprobs=r.logprobs[: len(r.completion_token_ids)]) for r in huge)
    metrics = trainer.train_batch([replace(group, responses=huge)])
    assert (metrics["skipped"], metrics["unchanged"]) == (1.0, 1.0)
    assert all(map(torch.equal, before, trainer.parameters))
    assert trainer.train_batch(batch())["skipped"] == 0.0


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({"loss": "cispo", "epsilon_high": 5.0, "importance": "truncate"}, "set trainer.importance=none"),
        ({"loss": "gspo", "importance": "mask"}, "none or truncate"),
        ({"lora_targets": "q_proj,lm_head"}, "leave lm_head out"),
        ({"lora_targets": "qq_proj"}, "use all-linear"),
        ({"lora_targets": "q_proj,embed_tokens"}, "names the embeddings"),
    ],
)
def test_combinations_without_effect_are_refused_at_start(
    tmp_path: Path, changes: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(SettingsError, match=way_out):
        trainer_for(tmp_path, **changes)
