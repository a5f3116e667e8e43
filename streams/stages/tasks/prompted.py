"""Messages after those of a prompt, which a task, a call or a job names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.events import Message, PromptUse
from streams.errors import EventError
from streams.stages.tasks.line_steps import LineSteps
from streams.stages.tasks.task_line import PromptLine


def named_prompt(steps: LineSteps, name: str, values: Mapping[str, Any], unit: str | None) -> PromptUse:
    """Return the version that NAME, NAME@3 or NAME@ALIAS means, with the values of its variables. Raises as
    LineSteps.find.
    """
    use: PromptUse = steps.find("prompt_version", prompt_line(name, values), unit)
    return use


def prompt_line(name: str, values: Mapping[str, Any]) -> PromptLine:
    """Return a prompt as a line names it; an impossible name is refused when it is found."""
    return PromptLine.model_construct(name=name, variables=dict(values))


def after_prompt(prompt: PromptUse, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with those of a prompt before them. Raises EventError for a second system message."""
    rendered = prompt.render()
    if any(message.role == "system" for message in rendered) and any(message.role == "system" for message in messages):
        raise EventError(f"prompt {prompt} has a system message, and so have the messages after it; leave one out")
    if not any(message.role == "user" for message in (*rendered, *messages)):
        raise EventError(f"prompt {prompt} has no message of a user, and none is after it; add the question")
    return (*rendered, *messages)
