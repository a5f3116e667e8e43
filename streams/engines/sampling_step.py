"""Steps in front of the engine: another answer, or another one that answers.

    ServedCall ──────────► begin ──┐                        ┌──► TokenStream, with its AnswerOrigin
    requests of a round ─► sample ─┴─► step of a plugin … ──► engine
                                                            └──► Completion, with its AnswerOrigin

Only what a user waits for passes them: calls that are no run of a task, and tasks of purpose `serve` while no canary is
in progress. Training data and evaluations are always sampled by the version and the engine that their task names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from schemas.events import Message, Task, Tool, Turn
from streams.engines.protocol import Completion, Engine, SamplingRequest, TokenEngine
from streams.engines.token_stream import Generation, TokenStream
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A call before it is sampled."""

    agent_id: str
    subject: str | None
    """The person whose words it has: its answer is given to no other."""
    policy: str
    version: int
    turn_id: str
    """That of the first choice."""
    generations: tuple[Generation, ...]
    """One for each choice."""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    calls_freely: bool
    """Whether the model may call any number of its tools."""
    form: str | None
    """The form that the answer is forced into."""
    prompt_version: str | None
    names_version: bool
    """Whether it asks for this version, not for the policy."""
    in_canary: bool
    cache_control: str | None
    """The request's header Cache-Control."""
    limit_s: float
    """How long its client waits, seconds."""
    earlier: Callable[[], int]
    """Returns the version that was primary before; 0: the base model."""
    folder: Callable[[int], Path | None]
    """Returns the verified local folder of a loaded version."""


class RoundVersion(NamedTuple):
    """The version of a round."""

    version: int
    folder: Path | None
    """Its verified local folder; None for the base."""


class LoggedAnswer(NamedTuple):
    """A recorded answer, and what it answers."""

    turn: Turn
    prompt: tuple[int, ...]
    """All tokens before the answer."""
    messages: tuple[Message, ...]
    """The whole conversation before it."""
    tools: tuple[Tool, ...]


Begins = Callable[[ServedCall], Awaitable[list[TokenStream]]]
"""Begins to answer a call, a stream for each choice. Raises CallError."""
Samples = Callable[[list[SamplingRequest]], list[list[Completion]]]
"""Answers the requests of a round."""


class SamplingStep:
    """One step. The server calls `begin` and `restore` in its event loop, the policy agent `sample` in its thread."""

    async def begin(self, call: ServedCall, begin: Begins) -> list[TokenStream]:
        """Return the streams of a call; `begin` is what follows this step."""
        return await begin(call)

    def note_ended(self, call: ServedCall, turns: Sequence[Turn]) -> None:
        """Take in that a call has ended, with its turns, if all of its answers are in the log."""

    def restore(self, answer: LoggedAnswer) -> None:
        """Take in an answer that the log has when the server begins; of no run of a task."""

    def sample(self, requests: list[SamplingRequest], served: RoundVersion, sample: Samples) -> list[list[Completion]]:
        """Return the answers to `serve` tasks; `sample` is what follows this step."""
        return sample(requests)

    def close(self) -> None:
        """Release everything it holds."""


StepBuilder = Callable[[Settings, Engine | TokenEngine], SamplingStep | None]
"""Builds a step in front of an engine; None: the settings ask for none."""


def build_steps(settings: Settings, engine: Engine | TokenEngine) -> tuple[SamplingStep, ...]:
    """Return the steps of all plugins, in the order in which they are loaded. Raises SettingsError."""
    declared = [plugin.load(plugin.sampling) for plugin, _, _ in load_plugins() if plugin.sampling is not None]
    return tuple(step for build in declared if (step := build(settings, engine)) is not None)


async def begin_through(steps: Sequence[SamplingStep], call: ServedCall, begin: Begins) -> list[TokenStream]:
    """Return the streams of a call that passes all steps."""
    for step in reversed(steps):
        begin = partial(step.begin, begin=begin)
    return await begin(call)


def sample_through(
    steps: Sequence[SamplingStep], requests: list[SamplingRequest], served: RoundVersion, sample: Samples
) -> list[list[Completion]]:
    """Return the answers to a round; its `serve` tasks pass all steps, the others none."""
    to_users = [request for request in requests if passes_steps(request.task)]
    if not steps or not to_users:
        return sample(requests)
    others = [request for request in requests if not passes_steps(request.task)]
    through = sample
    for step in reversed(steps):
        through = partial(step.sample, served=served, sample=through)
    answers = [*zip(to_users, through(to_users), strict=True)]
    answers += zip(others, sample(others) if others else [], strict=True)
    by_id = {request.sampling_id: completions for request, completions in answers}
    return [by_id[request.sampling_id] for request in requests]


def passes_steps(task: Task) -> bool:
    """Return whether a user waits for the answer to a task, and nothing is learned from it."""
    return task.purpose == "serve"
