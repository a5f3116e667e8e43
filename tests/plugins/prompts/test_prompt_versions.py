"""Prompts are versions that never change, a value in one is data, and slots of one sampling share the version."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.prompts.search import search_request
from plugins.prompts.versions import prompt_use
from plugins.prompts.versions.prompt_state import PromptState, fold, refusal
from plugins.prompts.versions.prompt_use import PromptReference
from schemas.events import Coordinates, Message, PromptArm, PromptUse, PromptVariable, ToolCall, problems
from streams.errors import EventError, NotFoundError
from streams.settings.model import Settings
from streams.stages.agents.trajectories.fold import fold as fold_run
from streams.stages.agents.trajectories.response import response_of
from streams.stages.tasks.prompted import after_prompt
from tests.support.factories import prompt_event, task, trajectory, turn
from tests.support.log.join_partition import Log, answers, scores

FIRST = prompt_event()
CALL, UNREADABLE = (ToolCall(id="c1", name="get", arguments=text) for text in ("{}", "{"))
TOLD = Message(role="tool", content="{{name}}", tool_call_id="c1")
SECOND = prompt_event("created", 1, version=2, messages=(Message(role="system", content="Say hello to {{name}}."),))


def folded(*events: Any) -> PromptState:
    state = PromptState(prompt="greet")
    for offset, event in enumerate(events):
        state = fold(state, event, Coordinates("prompts", 0, offset))
    return state


def uses(values: str = '{"name": "Ann"}', **changes: Any) -> PromptUse:
    variables = (PromptVariable(name="name"),)
    whole: dict[str, Any] = {"name": "greet", "version": 1, "variables": variables, "messages": FIRST.messages}
    return PromptUse(**whole | {"values": values} | changes)


# --- versions and aliases ---------------------------------------------------------------------------------------------


def test_the_same_text_is_one_version_however_often_it_is_proposed() -> None:
    again = replace(SECOND, messages=FIRST.messages, digest=FIRST.digest)
    state = folded(FIRST, again)
    assert len(state.versions) == 1 and list(state.refused.values()) == ["version 1 has the same text; use that one"]


def test_a_text_without_its_calls_is_another_version_and_a_value_is_put_into_a_result() -> None:
    example = (Message(role="assistant", content="", tool_calls=(CALL,)), TOLD)
    digests = {prompt_event(messages=shown).digest for shown in (example, (replace(example[0], tool_calls=()), TOLD))}
    assert len(digests) == 2 and list(problems(prompt_event(messages=example))) == []
    assert uses(messages=example).render() == (example[0], replace(TOLD, content="Ann"))


def test_of_two_versions_that_were_decided_at_once_the_first_takes_effect() -> None:
    late = replace(SECOND, sequence=0, version=1)
    state = folded(FIRST, late, SECOND)
    assert [version.messages for version in state.versions] == [FIRST.messages, SECOND.messages]
    assert "decided when 0 events" in next(iter(state.refused.values()))


def test_an_alias_moves_by_compare_and_swap_and_means_only_what_there_is() -> None:
    moved = prompt_event("activated", 2, version=2, alias="production")
    state = folded(FIRST, SECOND, moved, replace(moved, version=1))
    assert state.aliases["production"].version == 2
    assert refusal(state, prompt_event("activated", 3, version=3, alias="production")) is not None


def test_a_version_that_was_withdrawn_is_named_by_nothing_new_and_what_an_alias_means_is_not_withdrawn() -> None:
    moved, gone = prompt_event("activated", 2, version=2, alias="production"), prompt_event("withdrawn", 3, version=1)
    state = folded(FIRST, SECOND, moved, gone)
    assert set(state.withdrawn) == {1} and not state.refused and state.version(1) is not None
    says = "version 1 was withdrawn by ann (first try); name another"
    arms = (PromptArm(version=1, share=0.5), PromptArm(version=2, share=0.5))
    for event, problem in (
        (prompt_event("activated", 4, version=1, alias="production"), says),
        (prompt_event("shared", 4, alias="production", job_id="j", arms=arms), says),
        (prompt_event("withdrawn", 4, version=1), says),
        (prompt_event("withdrawn", 4, version=2), "production means version 2; let it mean another one first"),
        (prompt_event("withdrawn", 4, version=3), "there is no version 3; the prompt has versions 1 to 2"),
        (prompt_event("reported", 4, version=1, job_id="j"), None),
    ):
        assert refusal(state, event) == problem
    with pytest.raises(NotFoundError, match="version 1 was withdrawn by ann"):
        prompt_use.resolve({"greet": state}, PromptReference("greet", version=1), "task")
    assert prompt_use.resolve({"greet": state}, PromptReference("greet", alias="production"), "task").number == 2


def test_a_search_compares_no_version_that_was_withdrawn() -> None:
    third = (Message(role="system", content="Hi, {{name}}."),)
    created = prompt_event("created", 2, version=3, messages=third)
    state = folded(FIRST, SECOND, created, prompt_event("withdrawn", 3, version=1))
    questions = [{"query": f"{number} + 1 =", "expected_outcome": str(number + 1)} for number in range(30)]

    def compared(*versions: int) -> tuple[int, ...]:
        config = {"versions": versions, "variables": {"name": "Ann"}}
        body = {"policy": "default", "prompt": "greet", "questions": questions, "config": config}
        search = search_request.order(search_request.read_request(body), Settings(), {"greet": state}).spec.search
        assert search is not None
        return search.versions

    assert compared() == compared(2, 3) == (2, 3)
    with pytest.raises(NotFoundError, match="version 1 was withdrawn by ann"):
        compared(1, 2)


def test_a_share_of_an_alias_s_users_is_sticky_by_thread() -> None:
    arms = (PromptArm(version=1, share=0.75), PromptArm(version=2, share=0.25))
    shared = prompt_event("shared", 2, alias="production", job_id="j", arms=arms)
    target = folded(FIRST, SECOND, shared).aliases["production"]
    threads = [f"thread {number}" for number in range(4000)]
    versions = [target.version_for(thread) for thread in threads]
    assert versions == [target.version_for(thread) for thread in threads]
    assert abs(versions.count(2) / len(versions) - 0.25) < 0.03


def test_a_thread_keeps_its_version_while_others_leave_the_comparison() -> None:
    def among(*shares: tuple[int, float]) -> list[int]:
        arms = tuple(PromptArm(version=version, share=share) for version, share in shares)
        event = prompt_event("shared", 3, alias="production", job_id="j", arms=arms)
        third = prompt_event("created", 2, version=3, messages=(Message(role="system", content="Hi, {{name}}!"),))
        target = folded(FIRST, SECOND, third, event).aliases["production"]
        return [target.version_for(f"thread {number}") for number in range(2000)]

    before, after = among((1, 0.6), (2, 0.2), (3, 0.2)), among((1, 0.75), (3, 0.25))
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 2)
    assert 1 / 6 < after.count(3) / len(after) < 1 / 3


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (replace(FIRST, digest="0" * 64), "not that of its text"),
        (prompt_event(variables=()), "{{name}} is not declared"),
        (prompt_event(messages=(Message(role="system", content="Greet."),)), "no message has {{name}}"),
        (prompt_event(messages=(Message(role="user", content="{{name}} {{ 7 * 7 }}"),)), "nothing is computed"),
        (
            prompt_event(messages=(Message(role="critic", content="{{name}}"),)),
            "expected system, user, assistant, tool",
        ),
        (prompt_event(messages=(Message(role="tool", content="{{name}}"),)), "messages[0] is the result of call None"),
        (prompt_event(messages=(Message(role="user", content="", tool_calls=(CALL,)), TOLD)), "of role user; calls"),
        (prompt_event(messages=(Message(role="assistant", content="", tool_calls=(UNREADABLE,)), TOLD)), "JSON object"),
        (
            prompt_event(messages=(Message(role="user", content="{{name}} {{name"),)),
            "the {{ at character 9 is not closed",
        ),
        (
            prompt_event(messages=(Message(role="user", content="{{{name}}}"),)),
            "messages[0].content: the {{ at character 0",
        ),
        (prompt_event(messages=(Message(role="user", content="{{name {x} }}"),)), "is not closed: '{{name {x} }}'"),
        (
            prompt_event(messages=(Message(role="user", content="{{" * 50_000),)),
            "100,000 bytes; expected at most 65,536",
        ),
        (prompt_event(messages=(Message(role="user", content="{{name}}" * 101),)), "101 places for variables"),
        (prompt_event(variables=tuple(PromptVariable(name=f"v{n}") for n in range(101))), "at most 100"),
        (prompt_event("activated", 1, version=1, alias="2"), "expected a letter"),
        (prompt_event("withdrawn", 1), "versions are 1, 2, 3"),
        (prompt_event("shared", 1, alias="a", job_id="j", arms=(PromptArm(version=1, share=1.0),)), "2 or more"),
        (prompt_event(prompt="a b"), "expected a letter or digit"),
    ],
)
def test_an_event_that_breaks_a_rule_is_named(event: Any, problem: str) -> None:
    assert problem in " ".join(problems(event))


# --- values are data --------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_a_value_is_put_in_once_and_never_looked_at_again(first: str, second: str) -> None:
    text = Message(role="user", content="<{{a}}|{{b}}>")
    variables = (PromptVariable(name="a"), PromptVariable(name="b"))
    version = folded(prompt_event(messages=(text,), variables=variables)).versions[0]
    values = {"a": "{{b}}" + first, "b": second}
    use = prompt_use.use(version, PromptReference("greet", version=1), values)
    assert use.render()[0].content == f"<{{{{b}}}}{first}|{second}>"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "prompt greet@1: variable name (string) has no value; give it one"),
        ({"name": "Ann", "age": 3}, "prompt greet@1: there is no variable 'age'; the variables of the prompt: name"),
        ({"name": 7}, "prompt greet@1: variable name is 7; expected a text"),
    ],
)
def test_a_missing_or_extra_variable_is_named_in_the_same_words_before_and_after_the_log(
    values: dict[str, Any], problem: str
) -> None:
    version = folded(FIRST).versions[0]
    with pytest.raises(EventError, match="variable") as refused:
        prompt_use.use(version, PromptReference("greet", version=1), values)
    assert str(refused.value).startswith(problem)
    written = task(prompt_version=uses(json.dumps(values)), messages=(Message(role="user", content="?"),))
    assert str(refused.value) in list(problems(written))


def test_a_task_that_does_not_begin_with_its_prompt_is_refused_by_whoever_reads_it() -> None:
    question = Message(role="user", content="Hello?")
    right = task(prompt_version=uses(), messages=(Message(role="system", content="Greet Ann."), question))
    assert list(problems(right)) == []
    wrong = replace(right, messages=(Message(role="system", content="Greet Bob."), question))
    assert list(problems(wrong)) == [
        "prompt greet@1: messages do not begin with its text; render it with these values, or leave it out"
    ]


def test_a_prompt_and_a_task_with_a_system_message_each_are_refused_together() -> None:
    system = Message(role="system", content="Be brief.")
    with pytest.raises(EventError, match="leave one out"):
        after_prompt(uses(), (system, Message(role="user", content="?")))


def test_a_reference_names_a_version_an_alias_or_production() -> None:
    assert [str(PromptReference.parse(text)) for text in ("greet", "greet@3", "greet@next")] == [
        "greet@production",
        "greet@3",
        "greet@next",
    ]
    with pytest.raises(EventError, match="names no prompt"):
        PromptReference.parse("{{greet}}")
    with pytest.raises(NotFoundError, match="has no alias 'production'"):
        prompt_use.resolve({"greet": folded(FIRST)}, PromptReference.parse("greet"), "")


# --- a sampling has one version ---------------------------------------------------------------------------------------


def test_a_group_has_one_prompt_version_and_a_slot_with_another_is_contradictory() -> None:
    log = Log()
    slots = [replace(one, prompt_version="greet@1") for one in answers()]
    log.read_all([task(), slots[0], replace(slots[1], prompt_version="greet@2")])
    assert log.reasons() == [("responses@1", "contradictory")]
    whole = Log()
    whole.read_all([task(), *slots, *scores(slots)])
    assert whole.group().prompt_version == "greet@1"


def test_a_run_whose_calls_began_with_two_versions_is_no_answer_to_learn_from() -> None:
    turns = [turn(0, prompt_version="greet@1"), turn(1, prompt_version="greet@2")]
    ended = trajectory("ended", turns=2)
    failed = response_of(fold_run(turns, ended), ended)
    assert failed.error == "mixed_prompts: its calls began with different versions of a prompt: greet@1, greet@2"
