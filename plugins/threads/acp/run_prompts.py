"""The prompt of a run's agent, and the items of the store, before the messages of its calls.

ModelCall ──► version of the prompt, one for all runs of a thread ──► its messages, with the items as data ──► ModelCall
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from gateway.agents.named_prompts import KnowsAnswers, PromptParameter, with_prompt
from plugins.threads.log.memory_state import with_items
from plugins.threads.log.thread_state import RunState
from schemas.events import Message
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.tasks.line_steps import LineSteps


class KnowsPrompts(KnowsAnswers, Protocol):
    """Knows the conversations of the log, and the agents."""

    async def prompt_of(self, call: ModelCall) -> str | None:
        """Return the prompt that a call's agent is registered with. Raises CallError."""

    async def opening(self, trajectory_id: str) -> tuple[Message, ...] | None:
        """Return the messages of the first recorded call of a trajectory; None if there is none."""


class CallsWithItems(NamedTuple):
    """The recorded calls, which had these items after their prompt."""

    recorder: KnowsAnswers
    items: str

    async def is_continued(self, call: ModelCall) -> bool:
        """Return whether the history of a call begins with a recorded one and its answer."""
        return await self.recorder.is_continued(_with_items(call, self.items))


async def with_prompt_and_items(
    run: RunState, call: ModelCall, items: str, recorder: KnowsPrompts, steps: LineSteps
) -> ModelCall:
    """Return a call of a run as its model reads it, with the text of items. `steps` find prompts. Raises CallError."""
    name = await recorder.prompt_of(call)
    if name is None:
        return _with_items(call, items)
    placed, recorded = replace(call, trajectory_id=run.thread_id), CallsWithItems(recorder, items)
    prompted = await with_prompt(placed, PromptParameter(id=name), steps, recorded, None, None)
    return replace(_with_items(prompted, items), trajectory_id=run.run_id)


def _with_items(call: ModelCall, items: str) -> ModelCall:
    return replace(call, messages=with_items(call.messages, items)) if items else call
