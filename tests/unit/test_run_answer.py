"""Which call of a run is its answer: a client may call once more when it has it, and a handoff looks much the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas.conventions import FAILED_TOOLS
from schemas.events import Message, Response, Tool, ToolCall, Turn
from schemas.serde import encode
from streams.stages.agents.trajectories.fold import Trajectory, fold
from streams.stages.agents.trajectories.response import response_of
from streams.stages.agents.trajectories.run_answer import printed_answer
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.factories import trajectory

CODER, KEEPER = system("You code."), system("You keep memories.")
SAVE = Tool(name="save_memory", parameters='{"type": "object"}')
NOTHING = assistant("Nothing to save.")
QUESTION = user("What is 4 + 7?")
CALL = Message(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="add", arguments='{"a": 4, "b": 7}'),))
RESULT = Message(role="tool", content="11", tool_call_id="c1")


def asked(run: Recorded) -> Turn:
    """Record the agent's own call, a tool's result and its answer."""
    first = run.call([CODER, QUESTION], [ADD], reply=CALL)
    return run.call([*run.history(first), RESULT], [ADD], reply=assistant("**11**"))


def keeps_memories(run: Recorded, after: Turn, reply: Message = NOTHING, tools: Any = (SAVE,)) -> Turn:
    """Record the call that a client makes when it has its answer."""
    return run.call([KEEPER, *run.history(after)[1:], user("Scan the conversation.")], tools, reply=reply)


def ended(run: Recorded, output: str | None = None, **changes: Any) -> tuple[Trajectory, Response]:
    """Return what a run comes to whose program printed this."""
    open_run = fold(run.turns)
    if output is not None:
        others = [step.turn for step in open_run.steps if step.left_out in (None, "auxiliary")]
        others += [chain.turns[-1] for chain in open_run.chains[:1]]
        changes["answer_turn"] = printed_answer(open_run.answers, others, output)
    end = trajectory(turns=len(run.turns), **changes)
    made = fold(run.turns, end)
    response = response_of(made, end)
    encode(end), encode(response)
    return made, response


def numbers(made: Trajectory) -> list[list[int]]:
    return [[turn.number for turn in chain.turns] for chain in made.chains]


@pytest.mark.parametrize("tools", [(SAVE,), ()])
def test_an_answer_that_another_agent_repeats_is_in_doubt_and_both_are_named(tools: tuple[Tool, ...]) -> None:
    run = Recorded()
    keeps_memories(run, asked(run), tools=tools)
    made, response = ended(run)
    assert made.doubt == "turn 1 answers '**11**', and turn 2, with another system prompt, 'Nothing to save.'"
    assert response.error is not None and response.error.startswith(f"doubtful_answer: {made.doubt}. Print the answer")
    assert (response.text, len(response.completion_token_ids), response.branches) == ("", 0, ())


@pytest.mark.parametrize(
    "said",
    [
        {"output": "\x1b[1m11\x1b[0m\n"},
        {"output": '{"result": "The sum:\\n11", "stats": {}}'},
        {"answer_rule": "first_agent"},
    ],
)
def test_the_answer_that_the_program_prints_is_that_of_the_run_and_what_came_after_bears_no_loss(said: Any) -> None:
    run = Recorded()
    keeps_memories(run, asked(run))
    made, response = ended(run, **said)
    assert (made.doubt, response.error, response.text, response.branches) == (None, None, "**11**", ())
    assert numbers(made) == [[0, 1]]
    assert [(step.left_out, step.reason) for step in made.steps][2] == ("auxiliary", "it came after the answer")


def test_the_end_of_a_run_names_any_turn_and_nothing_after_it_bears_loss() -> None:
    run = Recorded()
    answer = asked(run)
    run.call([*run.history(answer), user("Now save memories.")], [ADD], reply=NOTHING)
    assert ended(run)[1].text == "Nothing to save.", "the same system prompt: the user may have asked on"
    assert ended(run, "The sum is 11")[1].text == "**11**", "it is the last thing that the program says"
    made, response = ended(run, answer_turn=answer.turn_id)
    assert (response.text, numbers(made), made.steps[2].left_out) == ("**11**", [[0, 1]], "auxiliary")


def test_an_end_that_names_a_turn_which_no_chain_has_is_in_doubt() -> None:
    run = Recorded()
    answer = asked(run)
    failed = run.call([*run.history(answer), user("Now?")], [ADD], error="the engine ended", finish_reason="error")
    assert "which is left out" in str(ended(run, answer_turn=failed.turn_id)[1].error)


def test_an_auxiliary_call_is_the_answer_if_the_program_prints_it() -> None:
    run = Recorded()
    asked(run)
    run.call([system("You write."), user("Say that it is 11.")], reply=assistant("It is eleven."))
    assert (ended(run)[1].text, ended(run, "11\nIt is eleven.\n")[1].text) == ("**11**", "It is eleven.")
    assert [step.role for step in ended(run, "It is eleven.")[0].steps][2] == "conversation"


@pytest.mark.parametrize(
    ("results", "failed", "ok"),
    [
        (("11", "3"), [], True),
        (("11", "3"), ["c2"], False),
        (('{"isError": true}', "3"), [], False),
        (("11",), [], None),
    ],
)
def test_a_turn_that_calls_tools_is_ok_if_all_their_results_are_and_that_of_an_end_is_not_known(
    results: tuple[str, ...], failed: list[str], ok: bool | None
) -> None:
    run, calls = Recorded(), (*CALL.tool_calls, ToolCall(id="c2", name="subtract", arguments="{}"))
    first = run.call([CODER, QUESTION], [ADD], reply=replace(CALL, tool_calls=calls))
    sent = [Message(role="tool", content=text, tool_call_id=f"c{at}") for at, text in enumerate(results, 1)]
    reply = replace(CALL, tool_calls=(replace(calls[0], id="c3"),))
    run.call([*run.history(first), *sent], [ADD], reply=reply, metadata={FAILED_TOOLS: json.dumps(failed)})
    turns = [(turn.tool, turn.ok, turn.reward) for turn in ended(run)[1].turns]
    assert turns == [("add", ok, None), ("add", None, None)]


def handed_over(run: Recorded) -> Turn:
    desk = [system("Hand over."), QUESTION]
    first = run.call(desk, [Tool(name="hand_over", parameters="{}")], reply=replace(CALL, content="A coder knows."))
    return run.call([CODER, QUESTION, first.reply, Message(role="tool", content="Coder")], [ADD], reply=assistant("11"))


@pytest.mark.parametrize("output", [None, "", "11\n", "the program's own words"])
def test_a_handoff_is_in_no_doubt_since_it_is_a_call_of_a_tool(output: str | None) -> None:
    run = Recorded()
    handed_over(run)
    made, response = ended(run, output)
    assert (made.doubt, response.text, numbers(made)) == (None, "11", [[1], [0]])


def test_memories_after_a_handoff_are_told_from_the_agent_that_answers() -> None:
    run = Recorded()
    keeps_memories(run, handed_over(run))
    assert ended(run)[0].doubt is not None
    for said in ({"output": "11"}, {"answer_rule": "first_agent"}):
        made, response = ended(run, **said)  # type: ignore[arg-type]
        assert (response.text, numbers(made)) == ("11", [[1], [0]])


def test_agents_that_answer_one_after_another_are_told_apart_by_what_is_printed_or_set() -> None:
    run = Recorded()
    first = asked(run)
    run.call([system("You check."), *run.history(first)[1:]], [ADD], reply=assistant("11 is right."))
    assert ended(run)[1].error is not None
    assert ended(run, "11 is right.")[1].error is not None, "it repeats both"
    assert ended(run, "It was said that it is right.")[1].error is not None, "it repeats none"
    made, response = ended(run, answer_rule="last_call")
    assert (response.text, numbers(made)) == ("11 is right.", [[2], [0, 1]])


def test_two_calls_for_memories_and_a_title_before_are_no_answers() -> None:
    run = Recorded()
    run.call([system("Name this."), QUESTION], reply=assistant("A sum"))
    answer = asked(run)
    first = keeps_memories(run, answer, reply=CALL)
    run.call([*run.history(first), RESULT], [SAVE], reply=assistant("Saved."))
    keeps_memories(run, answer)
    made, response = ended(run, "A sum\n11\n")
    assert (response.text, numbers(made)) == ("**11**", [[1, 2]])
    assert [step.left_out for step in made.steps] == ["auxiliary", None, None, *["auxiliary"] * 3]


def test_memories_between_two_questions_are_auxiliary_and_the_second_answer_is_in_no_doubt() -> None:
    run = Recorded()
    answer = asked(run)
    keeps_memories(run, answer)
    run.call([*run.history(answer), user("and twice that?")], [ADD], reply=assistant("22"))
    made, response = ended(run)
    assert (made.doubt, response.text, numbers(made)) == (None, "22", [[0, 1, 3]])
    assert made.steps[2].left_out == "auxiliary"


def test_an_agent_whose_words_are_taken_up_again_is_part_of_the_run() -> None:
    run = Recorded()
    answer = asked(run)
    second = run.call([system("You check."), *run.history(answer)[1:]], [ADD], reply=assistant("Sure?"))
    run.call([*run.history(answer), user(second.reply.content)], [ADD], reply=assistant("Yes."))
    made, response = ended(run)
    assert (made.doubt, response.text, numbers(made)) == (None, "Yes.", [[0, 1, 3], [2]])


def test_a_compacted_history_and_sub_agents_leave_no_doubt() -> None:
    run = Recorded()
    first = run.call([CODER, QUESTION], [ADD], reply=CALL)
    run.call([system("You search."), user("find it")], [ADD], reply=assistant("Found."))
    summary = run.call([system("Summarize."), *run.history(first)[1:], RESULT], reply=assistant("So far: 11."))
    run.call([CODER, user(summary.reply.content)], [ADD], reply=assistant("11"))
    made, response = ended(run)
    assert (made.doubt, response.text, made.chains[0].turns[0].number) == (None, "11", 3)


# --- names and calls that clients put into earlier answers ------------------------------------------------------------


def test_an_assistant_whom_its_client_names_is_the_same_one() -> None:
    run = Recorded()
    first = run.call([QUESTION], [ADD], reply=assistant("11"))
    named = Message(role="assistant", content="11", name="w")
    assert run.call([QUESTION, named, user("and twice?")], [ADD]).parent_id == first.turn_id
    other = run.call([Message(role="user", content=QUESTION.content, name="ann"), named, user("and?")], [ADD])
    assert other.parent_id is None, "the name of a user is another history"


OTHER = Message(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="add", arguments='{"a": 4, "b": 8}'),))


@pytest.mark.parametrize(
    ("reply", "sent", "is_left_out"),
    [
        (CALL, OTHER, True),
        (CALL, assistant("I cannot."), True),
        (assistant("I cannot."), OTHER, True),
        (CALL, assistant('Calling tools: add({"a": 4})'), False),
        (assistant('add{"a": 4, "b": 8}'), OTHER, False),
        (assistant(" 11 "), assistant("11"), False),
    ],
)
def test_a_call_in_whose_place_its_client_put_another_bears_no_loss(
    reply: Message, sent: Message, *, is_left_out: bool
) -> None:
    run = Recorded()
    start = run.call([CODER, QUESTION], [ADD], reply=assistant("Which?"))
    first = run.call([*run.history(start), user("4 and 7")], [ADD], reply=reply)
    run.call([*run.history(first)[:-1], sent, RESULT], [ADD], reply=assistant("11"))
    made, response = ended(run)
    assert (made.steps[1].left_out == "replaced") is is_left_out
    assert (response.error, response.text, len(response.branches)) == (None, "11", int(not is_left_out))
    if is_left_out:
        assert made.steps[1].reason == "its client put another call in its place, as turn 2 shows"
        assert str(made) == "2 of 3 calls delivered; 1 replaced"


def test_of_several_answers_to_one_call_those_that_were_not_chosen_are_not_replaced() -> None:
    run = Recorded()
    for choice, reply in enumerate((CALL, OTHER)):
        run.call([CODER, QUESTION], [ADD], reply=reply, choice=choice, choices=2)
    run.call([CODER, QUESTION, OTHER, RESULT, assistant("I say"), user("and?")], [ADD])
    assert [step.left_out for step in ended(run)[0].steps] == [None, None, None]
