"""Trajectories of several turns through the shared pass: the loss and gradient of TRL's plain one, for fewer tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.events import AdvantagedGroup, Branch, CreditSpan, GroupResponse
from schemas.tokens import Logprobs, LossMask, TokenIds
from tests.support.models.tiny import VOCABULARY, sampled_logps, tiny_group, tiny_model
from tests.unit.test_grpo import LOSSES, assert_as_reference, assert_close, gradients_of, trainer_for
from trainer.step import tree_attention


def trajectories(seed: int, slots: int = 5, turns: int = 4) -> AdvantagedGroup:
    """A group of random trajectories, each of which follows another for some turns and then goes its own way."""
    draw, model = random.Random(seed), tiny_model()
    group = tiny_group(model, seed, slots=slots, prompt=4 + seed)
    rows: list[list[tuple[list[int], list[int]]]] = []
    for _ in group.responses:
        row = list(draw.choice(rows)[: draw.randrange(turns)]) if rows else []
        while len(row) < draw.randint(1, turns):
            row.append((tokens(draw, 3), tokens(draw, 4)))
        rows.append(row)
    responses = (with_turns(draw, group, *pair) for pair in zip(group.responses, rows, strict=True))
    return replace(group, responses=tuple(responses))


def tokens(draw: random.Random, most: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, most))]


def with_turns(
    draw: random.Random, group: AdvantagedGroup, response: GroupResponse, turns: list[tuple[list[int], list[int]]]
) -> GroupResponse:
    """The response with what the policy wrote and what it was shown, and an advantage for each turn."""
    ids, mask, spans = list[int](), b"", []
    for wrote, shown in turns:
        spans.append(CreditSpan(start=len(ids), end=len(ids) + len(wrote), advantage=draw.gauss(0, 1)))
        ids += wrote + shown
        mask += b"\1" * len(wrote) + b"\0" * len(shown)
    logps = sampled_logps(tiny_model(), list(group.prompt_token_ids), ids)
    sampled = [min(0.0, logp + draw.gauss(0, 0.3)) if own else -100.0 for logp, own in zip(logps, mask, strict=True)]
    return replace(
        response,
        completion_token_ids=TokenIds.of(ids),
        logprobs=Logprobs.of(sampled),
        loss_mask=LossMask(mask),
        spans=tuple(spans) if draw.random() < 0.7 else (),
    )


@pytest.mark.parametrize(("seed", "loss"), list(enumerate(LOSSES)))
def test_random_trees_give_the_loss_the_gradient_and_the_metrics_of_trls_plain_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, loss: str
) -> None:
    monkeypatch.setattr(tree_attention, "QUERIES", 5)  # so that runs are cut
    monkeypatch.setattr(tree_attention, "SLACK", 50)  # and go in several blocks
    groups = [trajectories(3 * seed + number) for number in range(3)]
    shared, plain = (trainer_for(tmp_path, loss=loss, max_grad_norm=0, beta=0.1 * (loss != "cispo")) for _ in range(2))
    plain.plain_because = "this is the oracle"
    ours, theirs = gradients_of(shared, groups), gradients_of(plain, groups)
    assert_close(ours[1], theirs[1])
    unlike = {"tokens_run", "loss"} | {name for name in ours[0] if name.endswith("_s")}
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5, abs=1e-6)
    same = {name: value for name, value in theirs[0].items() if name not in unlike}
    assert {name: ours[0][name] for name in same} == pytest.approx(same, rel=1e-4, abs=1e-6)
    assert ours[0]["tokens_run"] < ours[0]["tokens_given"]
    assert_as_reference(trainer_for(tmp_path, loss=loss, max_grad_norm=0), groups)


def with_branches(draw: random.Random, group: AdvantagedGroup) -> AdvantagedGroup:
    """The group in which each response but the first also has a fork of itself and a sub-agent, which has a fork."""

    def branch(chain: Sequence[int], leaves: int, shared: int) -> tuple[Branch, list[int]]:
        ids = tokens(draw, 2) + tokens(draw, 4)
        mask = LossMask(b"\0" + b"\1" * (len(ids) - 1))
        path = [*chain[:shared], *ids]
        logps = sampled_logps(tiny_model(), path[:1], path[1:])[-len(ids) + 1 :]
        logps = [0.0, *(min(0.0, logp + draw.gauss(0, 0.3)) for logp in logps)]
        made = Branch(
            continuity="forks",
            reason="",
            leaves=leaves,
            shared_tokens=shared,
            finish_reason="stop",
            completion_token_ids=TokenIds.of(ids),
            logprobs=Logprobs.of(logps),
            loss_mask=mask,
        )
        return made, path

    def branched(response: GroupResponse) -> GroupResponse:
        own = [*group.prompt_token_ids, *response.completion_token_ids]
        fork, _ = branch(own, 0, draw.randint(1, len(own)))
        sub_agent, its = branch(own, 0, 0)
        inner, _ = branch(its, 2, draw.randint(1, len(its)))
        span = CreditSpan(chain=3, start=1, end=2, advantage=1.5)
        return replace(response, branches=(fork, sub_agent, inner), spans=(*response.spans, span))

    return replace(group, responses=(group.responses[0], *map(branched, group.responses[1:])))


@pytest.mark.parametrize(("seed", "loss"), list(enumerate(LOSSES)))
def test_a_response_counts_once_however_many_chains_it_has(tmp_path: Path, seed: int, loss: str) -> None:
    groups = [with_branches(random.Random(seed), trajectories(seed)), trajectories(seed + 1)]
    settings = {"loss": loss, "max_grad_norm": 0, "beta": 0.1 * (loss != "cispo")}
    assert_as_reference(trainer_for(tmp_path, **settings), groups)
    plain = trainer_for(tmp_path, **settings, processes=2)
    plain.plain_because = "this is the oracle"
    assert_as_reference(plain, groups)


def test_what_was_recorded_of_observations_changes_nothing(tmp_path: Path) -> None:
    group = trajectories(1)

    def forged(response: GroupResponse) -> GroupResponse:
        logps = [logp if own else -1.0 for logp, own in zip(response.logprobs, response.loss_mask, strict=True)]
        return replace(response, logprobs=Logprobs.of(logps))

    other = replace(group, responses=tuple(map(forged, group.responses)))
    for plain_because in (None, "this is the oracle"):
        one, two = (trainer_for(tmp_path, loss="gspo", max_grad_norm=0) for _ in range(2))
        one.plain_because = two.plain_because = plain_because
        assert torch.equal(gradients_of(one, [group])[1], gradients_of(two, [other])[1])


def test_a_batch_in_which_the_policy_wrote_nothing_is_a_step_that_moves_nothing(tmp_path: Path) -> None:
    group = trajectories(1)
    silent = tuple(
        replace(response, loss_mask=LossMask(bytes(len(response.loss_mask)))) for response in group.responses
    )
    metrics, moved = gradients_of(trainer_for(tmp_path, max_grad_norm=0), [replace(group, responses=silent)])
    assert not moved.any()
    assert (metrics["skipped"], metrics["tokens_run"], metrics["loss"]) == (0.0, 0.0, 0.0)
