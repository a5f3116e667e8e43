"""Every sampled token of an agent reaches the trainer once, whichever of its chains has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import AdvantagedGroup, Branch, CreditSpan, GroupResponse, Response, derive_id, problems
from schemas.serde import decode, encode
from schemas.tokens import Logprobs, LossMask, TokenIds
from tests.support.agent_calls import Recorded
from tests.support.factories import group, member, response, reward, task
from tests.support.log.join_partition import Log
from tests.support.thoroughness import examples
from tests.unit.test_agent_fold import of_run, runs
from trainer.step.token_chains import chains


def run_of(slot: int) -> st.SearchStrategy[Recorded]:
    return runs(derive_id("s1", slot))


def joined(*made: Response) -> AdvantagedGroup:
    """Return the group of these responses, as its record says it."""
    log = Log()
    log.read(task(group_size=len(made)))
    for number, one in enumerate(made):
        log.read_all([one, reward(one, value=float(number))])
    assert log.rejects == []
    written = decode(encode(log.group()), AdvantagedGroup)
    assert isinstance(written, AdvantagedGroup)
    return written


def trained(of: Response | GroupResponse) -> Iterator[tuple[int, float]]:
    for part in (of, *of.branches):
        for token, logprob, ours in zip(part.completion_token_ids, part.logprobs, part.loss_mask, strict=True):
            if ours:
                yield token, logprob


@settings(max_examples=examples(60), deadline=None)
@given(run_of(0), run_of(1))
def test_every_token_with_loss_is_once_in_the_group_and_once_in_the_trainers_rows(one: Recorded, two: Recorded) -> None:
    made = [
        of_run(run, slot=slot, group_size=2, trajectory_id=run.trajectory_id) for slot, run in enumerate((one, two))
    ]
    if any(each.error for each in made):
        return
    found = joined(*made)
    for each, inside in zip(made, found.responses, strict=True):
        rows = chains(found, inside)
        in_rows = [
            pair for row in rows for *pair, ours in zip(row.tokens, row.logprobs, row.loss_mask, strict=True) if ours
        ]
        expected = Counter(trained(each))
        assert Counter(trained(inside)) == expected == Counter(map(tuple, in_rows))
        assert inside.loss_tokens == expected.total()
        whole = [[*row.context, *row.tokens] for row in rows]
        assert all(path in whole_paths(each) for path in whole)
        assert all(row.context for row in rows)


def whole_paths(made: Response) -> list[list[int]]:
    found = [[*made.prompt_token_ids, *made.completion_token_ids]]
    for branch in made.branches:
        found.append([*found[branch.leaves][: branch.shared_tokens], *branch.completion_token_ids])
    return found


def agents(slot: int, prompt: tuple[int, ...], **changes: object) -> Response:
    return response(slot=slot, group_size=3, agent_id="calc", prompt_token_ids=prompt, **changes)


def test_the_prompt_of_a_group_of_runs_is_what_all_of_them_begin_with() -> None:
    # 258 and 514 have their first byte in common: a prefix is of tokens, not of bytes
    found = joined(agents(0, (7, 258, 1)), agents(1, (7, 258)), agents(2, (7, 514, 9)))
    assert list(found.prompt_token_ids) == [7]
    assert [list(one.prompt_token_ids) for one in found.responses] == [[258, 1], [258], [514, 9]]


def test_runs_with_equal_prompts_say_it_once_and_runs_with_nothing_in_common_each_say_their_own() -> None:
    equal = joined(*(agents(slot, (1, 2)) for slot in range(3)))
    assert (list(equal.prompt_token_ids), [len(one.prompt_token_ids) for one in equal.responses]) == ([1, 2], [0] * 3)
    apart = joined(*(agents(slot, (slot + 1, 2)) for slot in range(3)))
    assert list(apart.prompt_token_ids) == []
    assert [list(row.context) for one in apart.responses for row in chains(apart, one)] == [[1, 2], [2, 2], [3, 2]]


def test_a_run_with_another_prompt_or_another_branch_under_the_same_id_is_contradictory() -> None:
    branch = some_branch()
    first = agents(0, (1, 2), branches=(branch,))
    other = replace(branch, completion_token_ids=TokenIds.of((50, 60, 71)))
    for again in (
        agents(0, (1, 3), branches=(branch,)),
        replace(first, branches=(other,)),
        replace(first, branches=()),
    ):
        log = Log()
        log.read_all([task(group_size=3), first, first, again])
        assert log.reasons() == [("responses@2", "contradictory")]


def some_branch(**changes: object) -> Branch:
    """A branch that has a prompt of its own, one token, and then what the policy wrote."""
    whole = Branch(
        continuity="first",
        reason="a sub-agent",
        leaves=0,
        shared_tokens=0,
        finish_reason="stop",
        completion_token_ids=TokenIds.of((50, 60, 70)),
        logprobs=Logprobs.of((0.0, -0.5, -0.25)),
        loss_mask=LossMask(b"\0\1\1"),
    )
    return replace(whole, **changes)


def test_a_chain_has_the_advantages_of_its_own_turns() -> None:
    forced = some_branch(loss_mask=LossMask(b"\0\0\0"))
    leaving = some_branch(leaves=0, shared_tokens=4, loss_mask=LossMask(b"\1\1\1"), logprobs=Logprobs.of((-1.0,) * 3))
    spans = (CreditSpan(chain=1, start=1, end=3, advantage=0.25), CreditSpan(chain=3, start=1, end=2, advantage=-4.0))
    one = member(0, advantage=2.0, branches=(some_branch(), forced, leaving), spans=spans)
    own, sub_agent, fork = chains(group(responses=(one, member(1))), one)
    assert (list(own.context), list(own.tokens), own.advantages.tolist()) == ([1, 2, 3], [4, 5], [2.0, 2.0])
    assert (list(sub_agent.context), list(sub_agent.tokens), sub_agent.advantages.tolist()) == (
        [50],
        [60, 70],
        [0.25, 0.25],
    )
    assert (list(fork.context), list(fork.tokens), fork.advantages.tolist()) == (
        [1, 2, 3, 4],
        [50, 60, 70],
        [2.0, -4.0, 2.0],
    )


def test_a_response_without_loss_is_one_row() -> None:
    forced = some_branch(loss_mask=LossMask(b"\0\0\0"))
    one = member(0, loss_mask=(False, False), branches=(forced,))
    (row,) = chains(group(responses=(one,)), one)
    assert list(row.tokens) == [4, 5]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"leaves": 1}, "branch 0 leaves chain 1; expected 0 to 0: one before it"),
        ({"shared_tokens": 6}, "branch 0 shares 6 tokens of chain 0; expected 0 to 5"),
        ({"loss_mask": LossMask(b"\1")}, "branch 0: completion_token_ids has 3 entries"),
    ],
)
def test_a_branch_that_leaves_where_there_is_nothing_is_no_event(changes: dict[str, object], problem: str) -> None:
    branch = some_branch(**changes)
    for wrong in (response(branches=(branch,)), group(responses=(member(0, branches=(branch,)),))):
        assert any(problem in each for each in problems(wrong))
