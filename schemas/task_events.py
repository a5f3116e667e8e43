"""Tasks: a conversation to answer, the episode that comes with it, and how to draw tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import (
    MAX_GROUP_SIZE,
    MAX_REWARD,
    MAX_TURNS,
    Int,
    Millis,
    Personal,
    PersonalJson,
    Purpose,
    Sealed,
    Subject,
)
from schemas.message_types import Message, Tool
from schemas.prompt_events import PromptUse, prompt_use_problems
from schemas.tokens import TokenIds

ForkMode = Literal["continue", "recheck", "prompt", "tool_result"]
"""`recheck`: asks the version that answered then, and nothing is learned from it; `prompt`: after another prompt;
`tool_result`: with another result of the last tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: Annotated[float, "0 means greedy"] = 1.0
    top_p: Annotated[float, "1 keeps the whole distribution"] = 1.0
    max_tokens: Annotated[Int, "most tokens in one completion"] = 256
    seed: Annotated[int | None, "null lets the engine derive one from the sampling id"] = None
    stop: Annotated[tuple[str, ...], "texts that end a completion", Personal] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """A scorer that must judge every response to the task."""

    name: Annotated[str, "scorer, unique within the task"]
    weight: Annotated[float, "share of this source in the response's reward"] = 1.0
    settings: Annotated[str, "JSON object handed to the scorer", PersonalJson] = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """The environment that a task takes place in, and what its episode begins with: the same for the same seed."""

    name: Annotated[str, "a listed environment, or where it comes from: package:name, gymnasium:id, mcp:url, ..."]
    settings: Annotated[str, "JSON object handed to the environment", PersonalJson] = "{}"
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an environment showed, and what it made of the action before."""

    environment: Annotated[str, "name@version"]
    seed: Annotated[int, "of the episode"]
    digest: Annotated[str, "sha256 over what it showed", Personal]
    tool: Annotated[str | None, "that the action before it called; null: none, or the episode began here"] = None
    ok: Annotated[bool | None, "whether the environment could use the action; null: the episode began here"] = None
    reward: Annotated[float | None, "that the environment gave for the action; null: none"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """The program of an agent, as found when the process that runs it started."""

    program: Annotated[str, "as it was named: a command line, or module:function"]
    file: Annotated[
        str | None, "that its code is in, with folders below the one where it was started; null: none found"
    ] = None
    sha256: Annotated[str | None, "of that file"] = None
    commit: Annotated[str | None, "of git, in the folder where that process was started; null: no work tree"] = None
    dirty: Annotated[bool | None, "whether tracked files there differ from it; null: no commit"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """A recorded moment that a task begins at: a model call, which is repeated after the same tokens."""

    task_id: Annotated[str, "of the recorded run"]
    trajectory_id: Annotated[str, "the recorded run; of an answer without turns, its response_id"]
    turn: Annotated[Int, "number of the call in that run, 0-based"]
    mode: ForkMode
    tokenizer_digest: Annotated[str, "of the recorded tokens"]
    messages_digest: Annotated[str, "over the task's messages and tools", Personal]
    recorded_tokens: Annotated[Int, "how many of the tokens are recorded ones, from the first; 0: the text is new"]
    token_ids: Annotated[TokenIds, "the whole prompt; empty: it is rendered again", Personal] = TokenIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an agent is asked, how often, and who judges the answers."""

    task_id: Annotated[str, "key of the record; derived from source and content"]
    created_at: Millis
    traceparent: Annotated[str | None, "W3C trace context"] = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    policy: Annotated[str, "the agent, and the adapter versions, that answer"]
    purpose: Annotated[Purpose, "train, serve or eval; only train tasks reach the trainer"] = "train"
    scenario: Annotated[str, "family of tasks, for reports"] = "default"
    tenant: str | None = None
    group_size: Annotated[Int, "responses per sampling"] = 8
    deadline_at: Annotated[
        Millis | None, "answers and rewards recorded later do not count; null: the stage's default"
    ] = None
    adapter_version: Annotated[Int | None, "pin: only this version may answer"] = None
    sampling: Sampling = field(default_factory=Sampling)
    verifier: Annotated[str, "JSON object the scorers check against, e.g. the right answer", PersonalJson] = "{}"
    agent: Annotated[str | None, "id of the agent that works on it; null: the policy answers it directly"] = None
    max_turns: Annotated[Int | None, "most model calls of one attempt; null: the agent decides"] = None
    thread: Annotated[str | None, "the conversation that it continues"] = None
    environment: Annotated[EpisodeStart | None, "that the agent acts in; null: none is recorded"] = None
    prompt_version: Annotated[PromptUse | None, "that its messages begin with; null: they are of no prompt"] = None
    fork: Annotated[ForkPoint | None, "the recorded moment that it begins at; null: it begins anew"] = None
    tools: Annotated[tuple[Tool, ...], "what the agent may call"] = ()
    reward_sources: tuple[RewardSource, ...] = ()
    messages: tuple[Message, ...] = ()
    sealed: Sealed = None


def task_problems(task: Task) -> Iterator[str]:
    """Return one sentence for each rule that a task breaks."""
    if task.group_size < 1:
        yield f"group_size is {task.group_size}; a group needs at least 1 response (GRPO learns from 2 and more)"
    if task.group_size > MAX_GROUP_SIZE:
        yield f"group_size is {task.group_size}; expected at most {MAX_GROUP_SIZE}. Split the task into several"
    if not task.messages:
        yield "messages is empty; a task needs at least one message to answer"
    if not task.reward_sources and task.purpose != "serve":
        needs = f"a task of purpose {task.purpose} needs at least one scorer, e.g. [{{name: exact}}]"
        yield f"reward_sources is empty; {needs}"
    names = [source.name for source in task.reward_sources]
    if len(set(names)) != len(names):
        yield f"reward_sources has a name twice ({', '.join(names)}); each source speaks once per response"
    for source in task.reward_sources:
        if abs(source.weight) > MAX_REWARD:
            yield f"reward source {source.name!r} has weight {source.weight}; expected at most {MAX_REWARD:g} in size"
    if task.sampling.max_tokens < 1:
        yield f"sampling.max_tokens is {task.sampling.max_tokens}; at least 1 token must be allowed"
    if task.sampling.temperature < 0:
        yield f"sampling.temperature is {task.sampling.temperature}; expected 0 (greedy) or more"
    if not 0 < task.sampling.top_p <= 1:
        yield f"sampling.top_p is {task.sampling.top_p}; expected a share above 0 and at most 1"
    if task.max_turns is not None and task.max_turns < 1:
        yield f"max_turns is {task.max_turns}; at least 1 model call must be allowed"
    if task.environment is not None and not 1 <= (task.max_turns or 0) <= MAX_TURNS:
        yield f"max_turns is {task.max_turns}; in an environment, expected 1 to {MAX_TURNS}: it need not end by itself"
    if task.environment is not None and task.agent is None:
        yield "environment is set and agent is not; name the agent that acts in it"
    if (use := task.prompt_version) is not None and not task.sealed:
        wrong = list(prompt_use_problems(use))
        yield from wrong
        if not wrong and use.render() != task.messages[: len(use.messages)]:
            yield f"prompt {use}: messages do not begin with its text; render it with these values, or leave it out"
