"""Samples of a queue and responses of the log: the same tokens, masks, logprobs and scores, there and back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from plugins.verl.batches_to_queue import fields_of
from plugins.verl.sample_fields import SampleKey, plain, tensor
from plugins.verl.sample_outputs import Output, chains_of, output_of
from plugins.verl.sample_queue import FieldValue
from schemas.events import AdvantagedGroup, Coordinates, GroupResponse
from schemas.tokens import TokenIds
from streams.errors import UndecodableEvent
from tests.support.models.tiny import tiny_group, tiny_model
from tests.support.models.tiny_log import batch_of
from tests.unit.test_tree_of_turns import trajectories, with_branches
from trainer.export.batch_rows import BatchRow, TrainingBatch
from trainer.step.token_chains import TokenChain, chains

AT = Coordinates("batches", 0, 0)


def rows_of(group: AdvantagedGroup) -> list[list[BatchRow]]:
    rows = TrainingBatch(AT, batch_of(0, [AT]), [group], (), {}).rows
    return [list(of_slot) for _, of_slot in groupby(rows, key=lambda row: row.response.slot)]


def back(group: AdvantagedGroup, rows: Iterable[BatchRow]) -> tuple[AdvantagedGroup, GroupResponse]:
    """Return what samples of a response come to, in a group without a common prompt."""
    outputs = [output_of("k", fields_of(row)) for row in rows]
    made = chains_of(outputs)._asdict()
    del made["turns"]
    return replace(group, prompt_token_ids=TokenIds()), replace(group.responses[0], **made, spans=())


def trained(chain: TokenChain) -> tuple[Any, ...]:
    """Return what a step takes of a chain: of tokens that the policy did not write it reads no logprob."""
    mask = chain.loss_mask.numpy().astype(bool)
    return chain.context, chain.tokens, chain.loss_mask, chain.logprobs.numpy()[mask].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_chains_of_a_response_are_the_same_after_they_were_samples(seed: int) -> None:
    plain_group = tiny_group(tiny_model(), seed)
    for group in (plain_group, trajectories(seed), with_branches(random.Random(seed), trajectories(seed))):
        for rows in rows_of(group):
            again = chains(*back(group, rows))
            assert list(map(trained, again)) == [trained(row.chain) for row in rows]


def output(
    tokens: list[int], mask: list[int], scores: list[float], prompt: tuple[int, ...] = (1, 5), **about: Any
) -> Output:
    return output_of("u_0_0", fields(tokens, mask, scores, prompt, **about))


def fields(
    tokens: list[int], mask: list[int], scores: list[float], prompt: tuple[int, ...] = (1, 5), **about: Any
) -> dict[str, FieldValue]:
    """Return the fields of a sample of verl's."""
    return {
        "prompts": tensor(np.array(prompt)),
        "responses": tensor(np.array(tokens)),
        "response_mask": tensor(np.array(mask)),
        "rollout_log_probs": tensor(np.full(len(tokens), -0.5, np.float32)),
        "rm_scores": tensor(np.array(scores, np.float32)),
        "streamward": plain(about),
    }


def test_a_turn_is_a_span_that_the_policy_wrote_with_the_scores_up_to_the_next_one() -> None:
    made = chains_of([output([11, 12, 13, 14, 15, 16], [1, 1, 0, 0, 1, 0], [0, 0.25, 0.5, 0, 0, 2])])
    assert [(turn.number, turn.chain, turn.start, turn.end, turn.reward) for turn in made.turns] == [
        (0, 0, 0, 2, 0.75),
        (1, 0, 4, 5, 2.0),
    ]
    assert made.logprobs.numpy().tolist() == [-0.5, -0.5, 0, 0, -0.5, 0]


def test_further_outputs_of_a_session_are_branches_and_the_last_one_has_the_score() -> None:
    first = output([11, 12], [1, 1], [0, 1])
    second = output([21, 22], [1, 1], [0, 1], prompt=(1, 5, 11, 7))
    made = chains_of([first, second])
    (branch,) = made.branches
    assert (branch.leaves, branch.shared_tokens) == (0, 3)
    assert branch.completion_token_ids.numpy().tolist() == [7, 21, 22] and list(branch.loss_mask) == [0, 1, 1]
    assert [(turn.chain, turn.start, turn.end, turn.reward) for turn in made.turns] == [(0, 0, 2, 0.0), (1, 1, 3, 1.0)]


def test_a_reward_of_this_log_comes_back_with_all_of_its_digits() -> None:
    made = chains_of([output([11, 12], [1, 1], [0, 0.1], reward=0.1)])
    assert made.turns[0].reward == 0.1
    other = chains_of([output([11, 12], [1, 1], [0, 0.5], reward=0.1)])
    assert other.turns[0].reward == 0.5, "verl has scored it again"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rm_scores": tensor(np.zeros(3, np.float32))}, "have [2, 3] tokens; expected as many of each"),
        ({"responses": plain([11, 12])}, "it is a json of None, []; expected a tensor of one dimension"),
        ({"prompts": FieldValue("tensor", b"abc", "int64", (2,))}, "its bytes are not those of int64, [2]"),
        ({"rollout_log_probs": tensor(np.zeros((1, 2), np.float32))}, "a tensor of float32, [1, 2]"),
        ({"streamward": FieldValue("json", b"{")}, "it is no JSON"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named_with_its_sample(
    change: dict[str, FieldValue], problem: str
) -> None:
    with pytest.raises(UndecodableEvent) as refused:
        output_of("u_0_0", fields([11, 12], [1, 1], [0, 1]) | change)
    assert str(refused.value).startswith("u_0_0: ") and problem in str(refused.value)


@pytest.mark.parametrize("key", ["u", "u_1", "u_a_0", "u_1_٣", "u_-1_0"])
def test_a_key_of_another_form_is_no_output(key: str) -> None:
    assert SampleKey.parse(key) is None
