"""A line that names a prompt becomes a task with that version, whose derived id never changes."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.prompts.prompt_step import PromptStep
from plugins.prompts.versions.prompt_log import PROMPTS
from plugins.prompts.versions.prompt_state import PromptState
from schemas.events import Coordinates, Message, PromptArm
from streams.errors import EventError
from streams.settings.model import Topics
from streams.stages.tasks.line_steps import LineSteps
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import Checked, check_rows
from streams.stages.tasks.prompted import named_prompt, prompt_line
from tests.support.factories import prompt_event

STATES: dict[str, PromptState] = {}
for offset, event in enumerate((prompt_event(), prompt_event("activated", 1, version=1, alias="production"))):
    PROMPTS.take(STATES, event, Coordinates("prompts", 0, offset))


def check(prompt: Any) -> Checked:
    reading = Reading(now_ms=5, topic_settings=Topics(), defaults={"policy": "p"}, steps=LineSteps(lambda _: STATES))
    return check_rows([(1, {"prompt": "4 + 7 =", "answer": "11", "prompt_version": prompt})], "a", reading)


def test_a_line_with_a_prompt_has_its_messages_and_the_id_that_it_always_had() -> None:
    [task] = check({"name": "greet", "variables": {"name": "Ann"}}).tasks
    assert [message.content for message in task.messages] == ["Greet Ann.", "4 + 7 ="]
    assert task.task_id == "7c24ef22-16e2-5c6f-9b5a-d538da103f96"


def test_a_prompt_that_cannot_be_named_is_a_problem_of_its_line() -> None:
    [unknown], [missing] = check("greeting").problems, check("greet").problems
    assert unknown.error.startswith("prompt_version: there is no prompt 'greeting'; did you mean greet")
    assert missing.error.startswith("prompt_version: ") and "name" in missing.error


def test_a_tenant_s_prompt_is_named_with_the_tenant() -> None:
    assert PromptStep.of_tenant("red", "greet@3") == "red.greet@3"
    assert PromptStep.of_tenant("red", {"name": "greet"}) == {"name": "red.greet"}


def test_an_alias_that_is_compared_live_means_a_version_for_a_thread_and_none_for_all() -> None:
    arms = (PromptArm(version=1, share=0.5), PromptArm(version=2, share=0.5))
    states = dict(STATES)
    for number, event in enumerate(
        (
            prompt_event("created", 2, version=2, messages=(Message(role="user", content="Greet."),), variables=()),
            prompt_event("shared", 3, alias="production", arms=arms, job_id="j1"),
        ),
        2,
    ):
        PROMPTS.take(states, event, Coordinates("prompts", 0, number))
    steps = LineSteps(lambda _: states)
    assert {named_prompt(steps, "greet@2", {}, None).version} == {2}
    with pytest.raises(EventError, match="is compared live by job j1"):
        named_prompt(steps, "greet", {"name": "Ann"}, None)
    line = prompt_line("greet", {"name": "Ann"})
    assert [use.version for use in steps.candidates("prompt_version", line)] == [1]
