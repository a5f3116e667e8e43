"""Which calls make one conversation, and that every sampled token has exactly one owner.

The situations are those in which other recorders of agents were seen to fail.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import FinishReason, Message, Observed, Response, Sampling, Tool, ToolCall, Turn, derive_id
from schemas.serde import encode
from schemas.tokens import TokenIds
from streams.stages.agents.trajectories.call_chains import Chains
from streams.stages.agents.trajectories.fold import Trajectory, TrajectoryStep, fold, of_each
from streams.stages.agents.trajectories.response import response_of
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.factories import changed, reward, task, trajectory, turn
from tests.support.log.join_partition import Log
from tests.support.thoroughness import examples

ASKED = [system("You add."), user("4 + 7 =")]
HAND_OVER = dataclasses.replace(ADD, name="hand_over")
TITLE = [system("Name this conversation."), user("4 + 7 =")]


def what(run: Recorded) -> list[tuple[str, int | None]]:
    """Return what each turn is, and which chain owns it."""
    return [(step.continuity, step.chain) for step in fold(run.turns).steps]


def by_number(run: Recorded, number: int) -> TrajectoryStep:
    return fold(run.turns).steps[number]


def called(name: str, arguments: str, identity: str = "call_1") -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(id=identity, name=name, arguments=arguments),))


# --- one conversation -------------------------------------------------------------------------------------------------


def test_a_call_extends_the_turn_whose_messages_and_reply_it_begins_with() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    second = run.call([*run.history(first), user("and 5?")], [ADD])
    assert second.parent_id == first.turn_id and second.messages == (user("and 5?"),)
    assert what(run) == [("first", 0), ("extends", 0)]
    assert str(fold(run.turns)) == "2 of 2 calls delivered"


def test_ids_of_tool_calls_that_a_client_replaced_and_json_that_it_wrote_anew_do_not_matter() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD], reply=called("add", '{"a":4.0, "b":1e2, "c":0.5}'))
    sent = called("add", '{"b": 100, "a": 4, "c": 0.50}', "toolu_rewritten")
    result = Message(role="tool", content="11", tool_call_id="toolu_rewritten")
    assert run.call([*ASKED, sent, result], [ADD]).parent_id == first.turn_id


def test_other_arguments_are_another_reply() -> None:
    run = Recorded()
    run.call(ASKED, [ADD], reply=called("add", '{"a": 4, "b": 7}'))
    edited = run.call([*ASKED, called("add", '{"a": 4, "b": 8}'), user("go on")], [ADD])
    assert (edited.parent_id, edited.continuity, edited.reason) == (None, "forks", "the reply of turn 0 was changed")


def test_a_turn_that_was_cut_off_by_its_length_is_continued() -> None:
    run = Recorded()
    first = run.call(ASKED, finish_reason="length")
    second = run.call(run.history(first))
    assert (second.parent_id, second.messages, second.continuity) == (first.turn_id, (), "extends")


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_reply_that_the_agent_trimmed_forks_and_the_sampled_one_is_trained_on_once() -> None:
    run = Recorded()
    first = run.call(ASKED)
    second = run.call([*run.history(first), user("and 5?")], reply=assistant(" sixteen "))
    third = run.call([*run.history(second)[:-1], assistant("sixteen"), user("sure?")])
    assert third.parent_id == first.turn_id and third.reason == "the reply of turn 1 was changed"
    found = fold(run.turns)
    assert [[turn.number for turn in chain.turns] for chain in found.chains] == [[0, 2], [0, 1]]
    assert [(chain.leaves, chain.shared) for chain in found.chains] == [(0, 0), (0, 1)]


def test_of_several_answers_to_one_call_the_one_that_is_continued_is_the_conversation() -> None:
    run = Recorded()
    for choice in range(3):
        run.call(ASKED, choice=choice, choices=3)
    run.call([*run.history(run.turns[1]), user("and 5?")])
    assert what(run) == [("first", 1), ("forks", 0), ("forks", 2), ("extends", 0)]


def test_of_several_answers_that_nobody_continued_the_first_is_the_conversation() -> None:
    run = Recorded()
    for choice in range(3):
        run.call(ASKED, choice=choice, choices=3)
    assert [chain for _, chain in what(run)] == [0, 1, 2]


def test_a_call_that_is_made_again_forks_from_where_the_first_one_did() -> None:
    run = Recorded()
    first = run.call(ASKED)
    asked = [*run.history(first), user("and 5?")]
    run.call(asked)
    again = run.call(asked)
    assert (again.parent_id, again.reason) == (first.turn_id, "its prompt is that of turn 1")


def test_an_answer_that_nobody_got_is_left_out_and_its_second_try_extends() -> None:
    run = Recorded()
    first = run.call(ASKED)
    asked = [*run.history(first), user("and 5?")]
    run.call(asked, delivered=False, finish_reason="cancelled")
    assert run.call(asked).continuity == "extends"
    assert str(fold(run.turns)) == "2 of 3 calls delivered; 1 undelivered"


def test_an_answer_whose_client_hung_up_and_that_is_continued_was_delivered() -> None:
    run = Recorded()
    first = run.call(ASKED, delivered=False)
    run.call([*run.history(first), user("and 5?")])
    assert fold(run.turns).calls_in_chains == 2


# --- other chains -----------------------------------------------------------------------------------------------------


def test_a_title_is_auxiliary_whether_it_is_asked_for_before_the_first_call_or_after() -> None:
    for before in (True, False):
        run = Recorded()
        run.call(TITLE if before else ASKED, () if before else [ADD])
        run.call(ASKED if before else TITLE, [ADD] if before else ())
        assert sorted(what(run), key=str) == [("auxiliary", None), ("first", 0)]
        assert str(fold(run.turns)) == "1 of 2 calls delivered; 1 auxiliary"


SUMMARIZE = user("Summarize what was said.")


def at_the_end(run: Recorded) -> Trajectory:
    return fold(run.turns, trajectory(turns=len(run.turns)))


def test_a_summary_under_the_agents_own_system_prompt_is_auxiliary_once_nothing_has_continued_it() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    summary = run.call([*run.history(first), SUMMARIZE])
    assert by_number(run, 1).role == "conversation", "it may still be continued"
    run.call([ASKED[0], user(f"So far: {summary.reply.content}. Go on.")], [ADD])
    found = at_the_end(run)
    assert str(found) == "2 of 3 calls delivered; 1 auxiliary"
    step = found.steps[1]
    assert (step.role, step.continuity, step.left_out) == ("auxiliary", "auxiliary", "auxiliary")
    assert step.reason == "no tools, and no call after it has its answer"
    assert [[turn.number for turn in chain.turns] for chain in found.chains] == [[2], [0]]


@pytest.mark.parametrize("tools", [[ADD], []])
def test_a_call_without_tools_whose_answer_is_continued_is_the_conversation(tools: list[Tool]) -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    plan = run.call([*run.history(first), user("Plan.")])
    run.call([*run.history(plan), user("Go on.")], tools)
    run.call([*run.history(first), user("Go on otherwise.")], [ADD])
    assert [step.role for step in at_the_end(run).steps] == ["conversation"] * 4


def test_the_last_call_of_a_run_is_its_answer_though_it_offers_no_tools() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    for choice in (0, 1):
        run.call([*run.history(first), user("Answer now.")], choice=choice, choices=2)
    assert [step.role for step in at_the_end(run).steps] == ["conversation"] * 3
    assert at_the_end(run).chains[0].turns[-1].choice == 0


def test_every_call_of_an_auxiliary_chain_is_auxiliary() -> None:
    run = Recorded()
    run.call(ASKED, [ADD])
    title = run.call(TITLE)
    run.call([*run.history(title), user("shorter")])
    run.call(TITLE)
    assert str(fold(run.turns)) == "1 of 4 calls delivered; 3 auxiliary"


def test_sub_agents_that_work_at_the_same_time_are_chains_of_their_own() -> None:
    run = Recorded()
    main = run.call(ASKED, [ADD])
    subs = [run.call([system("You search."), user(f"find {n}")], [ADD]) for n in range(2)]
    subs = [run.call([*run.history(sub), user("more")], [ADD]) for sub in subs]
    run.call([*run.history(main), user("they found it")], [ADD])
    found = fold(run.turns)
    assert [[turn.number for turn in chain.turns] for chain in found.chains] == [[0, 5], [1, 3], [2, 4]]
    assert [chain.continuity for chain in found.chains] == ["first", "first", "first"]
    assert found.calls_in_chains == 6


def test_a_compacted_history_is_rewritten_and_goes_on_as_the_conversation() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    run.call([*run.history(first), user("and 5?")], [ADD])
    compact = run.call([ASKED[0], user("So far: 16. Go on.")], [ADD])
    run.call([*run.history(compact), user("and 6?")], [ADD])
    assert what(run) == [("first", 1), ("extends", 1), ("rewrites", 0), ("extends", 0)]
    assert by_number(run, 2).reason == "message 1 of 2 is in no history before"


def test_a_system_prompt_that_changes_with_every_call_rewrites_and_says_so() -> None:
    run = Recorded()
    history: list[Message] = []
    for number in range(3):
        history.append(user(f"question {number}"))
        history.append(run.call([system(f"nonce {number}"), *history]).reply)
    assert [step.continuity for step in fold(run.turns).steps] == ["first", "rewrites", "rewrites"]
    assert by_number(run, 2).reason == "it has another system prompt"
    assert fold(run.turns).chains[0].turns[-1].number == 2


def test_a_last_call_without_tools_is_still_the_conversation() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    run.call([*run.history(first), user("Answer now.")])
    assert what(run) == [("first", 1), ("rewrites", 0)]
    assert by_number(run, 1).reason == "it offers other tools"


def test_a_handoff_is_a_new_chain_of_the_same_conversation_and_says_so() -> None:
    run = Recorded()
    desk = run.call([system("Hand over."), user("4 + 7 =")], [HAND_OVER], reply=called("hand_over", "{}"))
    history = [system("You add."), user("4 + 7 ="), desk.reply, Message(role="tool", content="Calculator")]
    run.call(history, [ADD])
    assert what(run) == [("first", 1), ("rewrites", 0)]
    assert [step.role for step in fold(run.turns).steps] == ["conversation", "conversation"]
    assert by_number(run, 1).reason.startswith("another agent took over: it has another system prompt and other tools")


def test_prompts_of_tokens_extend_what_they_begin_with() -> None:
    chains = Chains()
    first = turn(messages=())
    assert chains.place((), prompt=TokenIds.of([1, 2, 3])).continuity == "first"
    chains.add(first)
    whole = chains.tokens(first.turn_id)
    placed = chains.place((), prompt=TokenIds.of([*whole, 7, 8]))
    assert (placed.parent, placed.new_from, placed.continuity) == (first, len(whole), "extends")
    assert chains.place((), prompt=TokenIds.of([1, 2, 3])).reason == "its prompt is that of turn 0"
    assert chains.place((), prompt=TokenIds.of([3, 2, 1])).continuity == "rewrites"


# --- what cannot be relied on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parent_id": "nobody"}, "its parent nobody is not in the log before it"),
        ({"prompt_tokens": 4}, "its prompt had 4 tokens, and the log has 11"),
        ({"template_digest": "f" * 64}, "its template_digest is not that of turn 0, which it continues"),
        ({"tokenizer_digest": "f" * 64}, "its tokenizer_digest is not that of turn 0, which it continues"),
    ],
)
def test_a_turn_whose_tokens_do_not_fit_is_left_out_with_all_behind_it(changes: dict[str, Any], reason: str) -> None:
    run = Recorded()
    first = run.call(ASKED)
    second = run.call([*run.history(first), user("and 5?")])
    third = run.call([*run.history(second), user("and 6?")])
    found = fold([first, changed(second, **changes), third])
    assert [step.left_out for step in found.steps] == [None, "broken", "broken"]
    assert found.steps[1].reason == reason


def test_a_late_turn_a_number_given_twice_and_a_failed_call_are_left_out_by_name() -> None:
    run = Recorded()
    first = run.call(ASKED)
    failed = run.call([*run.history(first), user("and 5?")], error="the engine ended", finish_reason="error")
    twice = changed(run.call(TITLE), number=0)
    late = run.call([*run.history(first), user("and 6?")])
    found = fold([first, failed, twice, late, first], trajectory(turns=2))
    assert [step.left_out for step in found.steps] == [None, "failed", "conflict", "late"]
    assert str(found) == "1 of 4 calls delivered; 1 conflict, 1 failed, 1 late"


# --- any trajectory ---------------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn, name: str = derive_id("s1", 0)) -> Recorded:
    """Return an agent that does anything: it goes on from any call, makes one again, edits, compacts, asks aside."""
    run = Recorded(name)
    run.call(ASKED, [ADD])
    for number in range(draw(st.integers(0, 9))):
        of = draw(st.sampled_from(run.turns))
        history, tools = run.history(of), [ADD]
        match draw(st.sampled_from(["extend", "again", "edit", "compact", "title", "sub", "cut", "no tools"])):
            case "extend":
                history.append(user(f"more {number}"))
            case "again":
                history.pop()
            case "edit":
                history[-1:] = [assistant("edited"), user("go on")]
            case "compact":
                history = [ASKED[0], user(f"so far {number}")]
            case "title":
                history, tools = list(TITLE), []
            case "sub":
                history = [system("You search."), user(f"find {number}")]
            case "no tools":
                history, tools = [*history, user("now")], []
        error = draw(st.sampled_from([None, None, None, "failed"]))
        choices = draw(st.sampled_from([1, 1, 3]))
        more: dict[str, Any] = {"error": error} if error else {"delivered": draw(st.sampled_from([True, True, False]))}
        for choice in range(choices):
            run.call(history, tools, choice=choice, choices=choices, **more)
    return run


@settings(max_examples=examples(100), deadline=None)
@given(runs())
def test_every_sampled_token_has_one_owner_or_a_reason(run: Recorded) -> None:
    found = fold(run.turns)
    owners = [turn.turn_id for chain in found.chains for turn in chain.turns[chain.shared :]]
    assert len(owners) == len(set(owners)) == found.calls_in_chains
    assert {step.turn.turn_id for step in found.steps if step.chain is not None} == set(owners)
    assert all((step.chain is None) == (step.left_out is not None) for step in found.steps)
    assert [step.turn for step in found.steps] == run.turns


@settings(max_examples=examples(100), deadline=None)
@given(runs())
def test_a_chain_is_the_tokens_of_each_parent_and_then_the_turns_own(run: Recorded) -> None:
    for chain in fold(run.turns).chains:
        tokens: list[int] = []
        for one in chain.turns:
            assert one.prompt_tokens == len(tokens) + len(one.prompt_token_ids)
            tokens += [*one.prompt_token_ids, *one.completion_token_ids]
        assert list(run.chains.tokens(chain.turns[-1].turn_id)) == tokens


@settings(max_examples=examples(100), deadline=None)
@given(runs())
def test_the_fold_says_of_a_call_what_was_said_when_it_began(run: Recorded) -> None:
    for step in fold(run.turns).steps:
        if not step.turn.choice and step.reason != step.turn.error:
            assert (step.continuity, step.reason) == (step.turn.continuity, step.turn.reason)


@settings(max_examples=examples(50), deadline=None)
@given(runs("a"), runs("b"), st.randoms(use_true_random=False))
def test_trajectories_come_out_the_same_however_they_are_mixed(
    one: Recorded, two: Recorded, draw: random.Random
) -> None:
    waiting, mixed = [list(one.turns), list(two.turns)], list[Turn]()
    while some := [turns for turns in waiting if turns]:
        mixed.append(draw.choice(some).pop(0))
        mixed.append(draw.choice(mixed))  # delivered again
    assert of_each(mixed) == {"a": fold(one.turns), "b": fold(two.turns)}


# --- the response -----------------------------------------------------------------------------------------------------


def of_run(run: Recorded, **changes: Any) -> Response:
    ended = trajectory(**{"turns": len(run.turns)} | changes)
    return response_of(fold(run.turns, ended), ended)


@settings(max_examples=examples(100), deadline=None)
@given(runs())
def test_every_sampled_token_bears_loss_once_in_the_response_and_no_other_does(run: Recorded) -> None:
    found, made = fold(run.turns), of_run(run)
    encode(made)
    trained = [
        token
        for part in (made, *made.branches)
        for token, is_ours in zip(part.completion_token_ids, part.loss_mask, strict=True)
        if is_ours
    ]
    owned = [token for step in found.steps if step.chain is not None for token in step.turn.completion_token_ids]
    assert sorted(trained) == sorted(owned)
    assert made.completion_tokens == len(owned)
    assert whole_chains(made) == [list(run.chains.tokens(chain.turns[-1].turn_id)) for chain in found.chains]


def whole_chains(made: Response) -> list[list[int]]:
    """Return every chain's tokens from its beginning, as a reader of the response alone finds them."""
    found = [[*made.prompt_token_ids, *made.completion_token_ids]] if made.error is None else []
    for branch in made.branches:
        found.append([*found[branch.leaves][: branch.shared_tokens], *branch.completion_token_ids])
    return found


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_response_names_the_models_of_its_calls_and_ends_as_the_last_one_did(reason: FinishReason) -> None:
    run = Recorded()
    first = run.call(ASKED)
    run.call([*run.history(first), user("and 5?")], finish_reason=reason)
    made, (turn, *_) = of_run(run), run.turns
    assert made.finish_reason == reason
    assert (
        (made.base_digest, made.tokenizer_digest) == (turn.base_digest, turn.tokenizer_digest) == ("b" * 64, "c" * 64)
    )


def test_a_conversation_is_a_response_with_the_environments_tokens_masked() -> None:
    run = Recorded()
    first = run.call(ASKED)
    second = run.call([*run.history(first), user("and 5?")])
    made = of_run(run)
    assert list(made.prompt_token_ids) == list(first.prompt_token_ids)
    assert list(made.completion_token_ids) == [
        *first.completion_token_ids,
        *second.prompt_token_ids,
        *second.completion_token_ids,
    ]
    assert list(made.loss_mask) == [True, True, False, False, False, True, True]
    assert list(made.logprobs) == [-0.5, -0.25, 0.0, 0.0, 0.0, -0.5, -0.25]
    assert (made.text, made.steps, made.agent_id, made.branches) == ("reply 1", 2, "calc", ())
    assert made.response_id == first.trajectory_id


def test_an_answer_of_a_forced_form_is_there_for_who_scores_and_bears_no_loss() -> None:
    run = Recorded()
    first = run.call(ASKED)
    forced = '{"schema":{"type":"object"}}'
    greedy = Sampling(temperature=0.0)
    run.call([*run.history(first), user("as JSON")], constraint=forced, reply=assistant('{"sum": 11}'), sampling=greedy)
    made = of_run(run)
    assert str(fold(run.turns)) == "2 of 2 calls delivered, 1 of them without loss"
    assert (made.error, made.text, made.steps, made.completion_tokens) == (None, '{"sum": 11}', 2, 2)
    assert list(made.loss_mask) == [True, True, *[False] * 5]
    assert list(made.logprobs) == [-0.5, -0.25, *[0.0] * 5]
    assert made.sampling == first.sampling


def test_what_follows_an_answer_of_a_forced_form_bears_loss() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD], constraint='{"tools":["add"],"several":true}')
    second = run.call([*run.history(first), user("and 5?")], [ADD])
    made = of_run(run)
    trained = [token for token, ours in zip(made.completion_token_ids, made.loss_mask, strict=True) if ours]
    assert trained == list(second.completion_token_ids)


def shown(number: int, **outcome: Any) -> Observed:
    """Return what an environment shows before its turn `number`."""
    return Observed(environment="guess@1", seed=7, digest=f"{number}" * 64, **outcome)


def test_each_turn_has_its_tokens_and_what_the_environment_made_of_it() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD], observed=shown(0))
    run.call([system("You search."), user("find it")], [ADD])  # beside the episode
    second = run.call(
        [*run.history(first), user("higher")], [ADD], observed=shown(1, tool="guess", ok=True, reward=0.2)
    )
    run.call([*run.history(second), user("what?")], [ADD], observed=shown(2, ok=False), delivered=False)
    third = run.call([*run.history(second), user("what?")], [ADD], observed=shown(2, ok=False))
    end = shown(3, tool="guess", ok=True, reward=1.0)
    made = of_run(run, observed=end, success=True, reason="the number was found")
    encode(made)
    assert (made.success, made.metadata["ended"]) == (True, "the number was found")
    tokens = list(made.completion_token_ids)
    own = [one for one in made.turns if one.chain == 0]
    for mine, of_log in zip(own, (first, second, third), strict=True):
        assert mine.number == of_log.number
        assert tokens[mine.start : mine.end] == list(of_log.completion_token_ids)
    assert [(one.observation, one.tool, one.ok, one.reward) for one in own] == [
        ("0" * 64, "guess", True, 0.2),
        ("1" * 64, None, False, None),
        ("2" * 64, "guess", True, 1.0),
    ]
    assert [one.observation for one in made.turns] == ["0" * 64, None, "1" * 64, "2" * 64]


@settings(max_examples=examples(100), deadline=None)
@given(runs())
def test_every_call_that_is_in_a_chain_is_one_turn_of_the_response(run: Recorded) -> None:
    made = of_run(run)
    steps = [step for step in fold(run.turns).steps if step.chain is not None]
    of_log = {step.turn.number: (step.chain, list(step.turn.completion_token_ids)) for step in steps}
    chains = [list(made.completion_token_ids), *(list(branch.completion_token_ids) for branch in made.branches)]
    assert {turn.number: (turn.chain, chains[turn.chain][turn.start : turn.end]) for turn in made.turns} == of_log
    assert [turn.number for turn in made.turns] == sorted(of_log)
    assert all(turn.observation is turn.tool is turn.ok is turn.reward is None for turn in made.turns)
    assert (made.success, "ended" in made.metadata) == (None, False)


def test_the_response_is_the_same_bytes_whoever_writes_it() -> None:
    run = Recorded()
    first = run.call(ASKED, [ADD])
    run.call([*run.history(first), user("and 5?")], [ADD])
    run.call(TITLE)
    again = [dataclasses.replace(turn) for turn in (*run.turns, run.turns[0])]
    ended = trajectory(turns=3)
    assert encode(response_of(fold(again, ended), ended)) == encode(of_run(run))


@pytest.mark.parametrize(
    ("second", "end", "error"),
    [
        ({"adapter_version": 1}, {}, "mixed_versions: it was answered by versions 0, 1"),
        ({"base_digest": "f" * 64}, {}, "mixed_models: base model, tokenizer or template changed between its calls"),
        ({"prompt_tokens": 9}, {}, "broken: turn 1 cannot be relied on: its prompt had 9 tokens, and the log has 11"),
        ({}, {"ending": "timeout", "reason": "60 s are over"}, "timeout: 60 s are over"),
    ],
)
def test_what_could_only_be_guessed_at_has_an_error_and_no_tokens(
    second: dict[str, Any], end: dict[str, Any], error: str
) -> None:
    run = Recorded()
    first = run.call(ASKED)
    run.call([*run.history(first), user("and 5?")], **second)
    made = of_run(run, **end)
    encode(made)
    assert (made.error, len(made.completion_token_ids), made.adapter_version) == (error, 0, 0)


def test_a_run_of_several_chains_is_one_response_which_its_group_counts_once() -> None:
    log = Log()
    log.read(task(group_size=2))
    for slot, subs in enumerate((3, 0)):
        run = Recorded(derive_id("s1", slot))
        run.call(ASKED, [ADD])
        for number in range(subs):
            run.call([system("You search."), user(f"find {number}")], [ADD])
        made = of_run(run, slot=slot, group_size=2, trajectory_id=run.trajectory_id)
        assert len(made.branches) == subs
        log.read_all([made, reward(made, value=float(slot))])
    group = log.group()
    assert (len(group.responses), group.reward_mean) == (2, 0.5)
    assert [member.loss_mask.trained_tokens for member in group.responses] == [2, 2]


def test_a_run_without_a_call_has_the_version_that_its_attempt_is_pinned_to() -> None:
    made = of_run(Recorded(), adapter_version=7)
    assert (made.error, made.adapter_version) == ("no_answer: 0 of 0 calls delivered", 7)


def test_a_response_waits_for_every_turn_and_is_of_a_task() -> None:
    run = Recorded()
    first = run.call(ASKED)
    run.call([*run.history(first), user("and 5?")])
    ended = trajectory(turns=2)
    with pytest.raises(ValueError, match=r"has 2 turns, and 1 is not among those given \(1 are missing\)"):
        response_of(fold(run.turns[:1], ended), ended)
    alone = trajectory(sampling_id=None, slot=None, group_size=None)
    with pytest.raises(ValueError, match="is not that of a task"):
        response_of(Trajectory((), ()), alone)
