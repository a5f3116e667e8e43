"""The prompt of a call: a version of the log's prompts, before the messages that the client sent.

    prompt: {id, version, variables} ──► version, sticky by conversation ──► its messages, and then the call's own

A conversation keeps the version that it began with, even if the alias has moved. Chat and messages clients send their
history without the prompt's messages: its version is the one after which the log has the same history. The version of a
new conversation is chosen by its trajectory, user or first messages, so a retry gets the same one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Protocol

from pydantic import Field

from gateway.http.body import Body
from schemas.events import PromptUse
from streams.access.tenants.tenant_names import named
from streams.errors import CallError, EventError, NotFoundError
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.trajectories.call_chains import opening
from streams.stages.tasks.line_steps import LineSteps
from streams.stages.tasks.prompted import after_prompt, prompt_line


class PromptParameter(Body):
    """A prompt of the log."""

    id: str = Field(min_length=1, max_length=200, description="its name, or NAME@3, or NAME@ALIAS")
    version: str | None = Field(None, min_length=1, max_length=64, description="a number or an alias")
    variables: dict[str, Any] | None = Field(None, description="the value of each variable: data, never run")

    @property
    def reference(self) -> str:
        """The prompt as it is named elsewhere."""
        return self.id if self.version is None else f"{self.id}@{self.version}"


class KnowsAnswers(Protocol):
    """Knows the conversations of the log: the recorder of the agents' stage."""

    async def is_continued(self, call: ModelCall) -> bool:
        """Return whether the history of a call begins with a recorded one and its answer."""


async def with_prompt(
    call: ModelCall,
    parameter: PromptParameter,
    steps: LineSteps,
    recorder: KnowsAnswers,
    tenant: str | None,
    user: str | None,
) -> ModelCall:
    """Return a call that begins with a prompt. Raises CallError for an unknown prompt or other variables."""
    try:
        line = prompt_line(named(tenant, parameter.reference), parameter.variables or {})
        for use in await asyncio.to_thread(steps.candidates, "prompt_version", line):
            if call.messages[: len(use.messages)] == use.render():
                return replace(call, prompt_version=use)
            whole = _after(use, call)
            if whole is not None and await recorder.is_continued(whole):
                return whole
        unit = call.trajectory_id or user or opening(call.messages).hex()
        use = await asyncio.to_thread(steps.find, "prompt_version", line, unit)  # may follow the prompts anew
        return replace(call, messages=after_prompt(use, call.messages), prompt_version=use)
    except NotFoundError as exc:
        raise CallError("not_found", str(exc), "prompt") from exc
    except EventError as exc:
        raise CallError("invalid", str(exc), "prompt") from exc


def _after(use: PromptUse, call: ModelCall) -> ModelCall | None:
    """Return a call that continues a conversation, after a prompt; None if it continues none, or the two disagree."""
    if not any(message.role == "assistant" for message in call.messages):
        return None
    try:
        return replace(call, messages=after_prompt(use, call.messages), prompt_version=use)
    except EventError:  # two system messages: the chosen version is refused for this
        return None
