"""Groups become tensors as they were recorded, or are refused with their coordinates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Coordinates, Sampling
from streams.engines.rendering.token_table import TokenTable
from streams.errors import ContradictoryEvent
from tests.support.factories import changed
from tests.support.models.tiny import VOCABULARY, tiny_group, tiny_model
from trainer.step.collate import collate, micro_batches, scale_advantages
from trainer.step.group_checks import GroupOrigin, check_group

AT = Coordinates("streamward.groups", 2, 41)
EXPECTED = GroupOrigin(
    policy="default",
    batches=3,
    base_digest="base",
    tokenizer_digest="tokenizer",
    token_table=TokenTable.of_ids(VOCABULARY, ()),
)


@pytest.fixture(scope="module")
def group() -> AdvantagedGroup:
    return tiny_group(tiny_model(), 1)


def with_first_response(group: AdvantagedGroup, **changes: Any) -> AdvantagedGroup:
    return replace(group, responses=(changed(group.responses[0], **changes), *group.responses[1:]))


def test_completions_are_padded_right_and_run_behind_their_prompts(group: AdvantagedGroup) -> None:
    short = changed(
        group,
        prompt_token_ids=(1, 9),
        responses=(
            changed(
                group.responses[0],
                completion_token_ids=(8,),
                logprobs=(-0.5,),
                loss_mask=(False,),
                advantage=2.0,
                reward=0.25,
            ),
        ),
    )
    micro = collate([group, short], pad_id=0)
    first = group.responses[0]
    tokens = [*group.prompt_token_ids, *first.completion_token_ids]
    assert micro.rows[0] == (tokens, 6, list(range(len(first.completion_token_ids))), 0)
    assert micro.rows[4] == ([1, 9, 8], 2, [], 4 * 5)
    assert micro.completion_ids[4].tolist() == [8, 0, 0, 0, 0]
    assert micro.completion_mask[4].tolist() == [1, 0, 0, 0, 0]
    assert micro.loss_mask[4].tolist() == [0, 0, 0, 0, 0]
    assert micro.sampled_logps[4].tolist() == [0, 0, 0, 0, 0], "the policy did not write it"
    assert micro.sampled_logps[0].tolist() == list(first.logprobs)
    assert (micro.advantages[4, 0].item(), micro.rewards[4].item()) == (2.0, 0.25)
    assert micro.loss_tokens == sum(len(response.loss_mask) for response in group.responses)


def test_micro_batches_keep_order_and_never_mix_temperatures(group: AdvantagedGroup) -> None:
    groups = [replace(group, group_id=str(n), sampling=Sampling(temperature=1 + n % 2)) for n in range(5)]
    cut = [[part.group_id for part in parts] for parts in micro_batches(groups, 2)]
    assert cut == [["0", "2"], ["4"], ["1", "3"]]


def test_long_groups_come_alone_so_that_memory_is_bounded(group: AdvantagedGroup) -> None:
    tokens = 6 + sum(len(response.completion_token_ids) for response in group.responses)
    groups = [replace(group, group_id=str(n)) for n in range(5)]
    assert [len(part) for part in micro_batches(groups, 9, 2 * tokens)] == [2, 2, 1]
    assert [len(part) for part in micro_batches(groups, 9, 1)] == [1] * 5


def test_batch_std_divides_by_the_spread_of_the_whole_batch(group: AdvantagedGroup) -> None:
    """Rewards 0 1 2 3 twice, and 4 5 6 7: by hand, std over the eight of batch_std with ddof 1 is sqrt(42 / 7)."""
    higher = replace(group, responses=tuple(replace(r, reward=r.reward + 4) for r in group.responses))
    per_batch = [replace(g, formula="batch_std", formula_eps=0.0) for g in (group, higher)]
    first, second, untouched = scale_advantages([*per_batch, group])
    for before, after in ((group, first), (higher, second)):
        assert [r.advantage for r in after.responses] == pytest.approx([r.advantage / 6**0.5 for r in before.responses])
    assert untouched == group


def test_a_good_group_passes(group: AdvantagedGroup) -> None:
    check_group(group, EXPECTED, AT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy": "other"}, "policy is 'other', expected 'default'"),
        ({"responses": ()}, "it has no responses"),
        ({"adapter_version": 4}, "sampled by version 4, which had taken 4 batches, but batch 3"),
        ({"base_digest": "abc"}, "base_digest is abc, the trainer's is base"),
        ({"tokenizer_digest": "abc"}, "tokenizer_digest is abc"),
        ({"sampling": Sampling(temperature=0.0)}, "sampled greedily"),
        ({"sampling": Sampling(top_p=0.9)}, "sampled with top_p 0.9"),
        ({"prompt_token_ids": ()}, "its prompt has no tokens"),
        ({"prompt_token_ids": (1, VOCABULARY)}, f"prompt token {VOCABULARY} is not in the vocabulary"),
    ],
)
def test_a_group_at_odds_with_the_trainer_is_refused(
    group: AdvantagedGroup, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ContradictoryEvent, match=r"streamward.groups\[2\]@41") as refused:
        check_group(changed(group, **changes), EXPECTED, AT)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completion_token_ids": (3, 4, 5, 6, VOCABULARY)}, f"token {VOCABULARY} is not in the vocabulary"),
        ({"advantage": float("inf")}, "advantage inf; both must be finite"),
        ({"slot": 1}, "slots are [1, 1, 2, 3]"),
    ],
)
def test_a_response_at_odds_with_itself_refuses_its_group(
    group: AdvantagedGroup, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ContradictoryEvent) as refused:
        check_group(with_first_response(group, **changes), EXPECTED, AT)
    assert said in str(refused.value)
