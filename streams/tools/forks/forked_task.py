"""Make the task that begins at a recorded moment.

    Moment, ForkOrder ──► messages, recorded tokens ──► Task with its fork ──► what it is asked, and where it is from
         tool_result ──► the tokens up to the last answer, and the new result after them
         prompt ──► the messages after another prompt, without recorded tokens

It is a function of the moment and the order, with an id of its content, so the same command adds nothing. A fork of a
task that nothing may learn from is of purpose eval, too.

Not covered: calls of users with tools. The policy answers such a fork once, and the tools that it calls do not run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas import serde
from schemas.events import ForkMode, ForkPoint, PromptUse, Purpose, RewardSource, Task, derive_id
from schemas.tokens import TokenIds
from streams.access.tenants.tenant_names import tenant_in
from streams.engines.rendering.rendering import Rendering
from streams.errors import EventError
from streams.stages.agents.trajectories.call_chains import Digests, conversation_digest
from streams.stages.tasks.prompted import after_prompt
from streams.tools.forks.moments import CallInput, Moment

GROUP_SIZE = 8
"""Answers to a fork of a conversation that something is learned from."""


class ModelTokens(NamedTuple):
    """How a model writes messages as tokens."""

    rendering: Rendering
    ends: frozenset[int]
    """The tokens that end an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """How moments are forked."""

    mode: ForkMode = "continue"
    version: int | None = None
    """The version that answers. None: the primary; of `recheck` the one that answered then."""
    group_size: int | None = None
    scorers: tuple[RewardSource, ...] = ()
    """Scorers; empty: those of the task."""
    prompt: PromptUse | None = None
    """Of the mode `prompt`."""
    result: str | None = None
    """Of the mode `tool_result`."""
    model: Callable[[], ModelTokens] | None = None
    """Returns how the model writes messages, for the mode `tool_result`."""


def fork(moment: Moment, order: ForkOrder, *, now_ms: int, purpose: Purpose | None = None) -> Task:
    """Return the task that begins at a moment; `purpose`: another one than follows from both.

    Raises EventError, with the moment, if it cannot.
    """
    origin, recorded = moment.task, moment.prompt
    if not recorded.tokens and order.mode != "prompt":
        raise EventError(f"{moment.name} has no recorded tokens; only --mode prompt forks it")
    prompt, kept = _fork_prompt(moment, order, recorded)
    purpose = purpose or _purpose(moment, order)
    is_pinned = order.version is None and order.mode == "recheck"
    task = Task(
        task_id="",
        created_at=now_ms,
        metadata={} if origin is None else origin.metadata,
        subject=moment.subject,
        policy=moment.policy,
        purpose=purpose,
        scenario="default" if origin is None else origin.scenario,
        tenant=_tenant(moment),
        group_size=order.group_size or _group_size(origin, purpose),
        adapter_version=moment.version if is_pinned else order.version,
        sampling=moment.sampling if origin is None or order.mode == "recheck" else origin.sampling,
        verifier="{}" if origin is None else origin.verifier,
        agent=None if origin is None else origin.agent,
        max_turns=_max_turns(moment),
        environment=None if origin is None else origin.environment,
        prompt_version=order.prompt if order.mode == "prompt" else _prompt_use(origin, prompt),
        fork=ForkPoint(
            task_id=moment.key.task_id,
            trajectory_id=moment.key.trajectory_id,
            turn=moment.key.turn,
            mode=order.mode,
            tokenizer_digest=moment.tokenizer_digest,
            messages_digest=conversation_digest(Digests(prompt.messages, prompt.tools)),
            recorded_tokens=kept,
            token_ids=prompt.tokens,
        ),
        tools=prompt.tools,
        reward_sources=order.scorers or (() if origin is None else origin.reward_sources),
        messages=prompt.messages,
    )
    content = serde.encode(replace(task, created_at=0, subject=None))
    return replace(task, task_id=derive_id("fork", hashlib.sha256(content).hexdigest()))


def _fork_prompt(moment: Moment, order: ForkOrder, recorded: CallInput) -> tuple[CallInput, int]:
    """Return the prompt of the fork, and how many of its tokens are recorded. Raises EventError."""
    if order.mode == "prompt":
        return _after_prompt(moment, order, recorded), 0
    if order.mode == "tool_result":
        return _with_result(moment, order, recorded), len(recorded.answered_tokens)
    return recorded, len(recorded.tokens)


def _after_prompt(moment: Moment, order: ForkOrder, recorded: CallInput) -> CallInput:
    if moment.task is not None and moment.task.environment is not None:
        name = moment.task.environment.name
        raise EventError(f"{moment.name}: environment {name} shows its own prompt; fork it with another mode")
    if order.prompt is None:
        raise EventError("--mode prompt needs a prompt; write --mode prompt NAME@VERSION")
    messages, use = recorded.messages, None if moment.task is None else moment.task.prompt_version
    if use is not None:
        messages = messages[len(use.messages) :]
    elif messages[0].role == "system":
        messages = messages[1:]
    return CallInput(after_prompt(order.prompt, messages), recorded.tools, TokenIds())


def _with_result(moment: Moment, order: ForkOrder, recorded: CallInput) -> CallInput:
    """Return the prompt with another result of the last tool."""
    before, new = recorded.messages[: recorded.answered], recorded.messages[recorded.answered :]
    acts = moment.task is not None and moment.task.environment is not None
    if not before or not new or not (acts or new[-1].role == "tool"):
        raise EventError(f"{moment.name} does not follow the result of a tool; choose a turn that does")
    if order.model is None or order.result is None:
        raise EventError("--mode tool-result needs a result; write --mode tool-result FILE")
    rendering, ends = order.model()
    if moment.turn is None or rendering.template_digest != moment.turn.template_digest:
        raise EventError(f"{moment.name} was rendered with another tokenizer or template; set model.base to its model")
    new = (*new[:-1], replace(new[-1], content=order.result))
    is_finished = recorded.answered_tokens[-1] in ends
    added = rendering.extend(recorded.answered_tokens, is_finished, before, new, recorded.tools)
    if isinstance(added, str):
        raise EventError(f"{moment.name}: the recorded tokens do not stay with another result: {added}")
    tokens = TokenIds(recorded.answered_tokens.data + TokenIds.of(added).data)
    return CallInput((*before, *new), recorded.tools, tokens)


def _purpose(moment: Moment, order: ForkOrder) -> Purpose:
    sources = order.scorers or (() if moment.task is None else moment.task.reward_sources)
    purpose: Purpose = "serve" if moment.task is None else moment.task.purpose
    if purpose == "eval" or (order.mode == "recheck" and sources):
        return "eval"
    return "train" if order.scorers and order.mode != "recheck" else purpose


def _group_size(origin: Task | None, purpose: Purpose) -> int:
    if origin is not None:
        return origin.group_size
    return 1 if purpose == "serve" else GROUP_SIZE


def _max_turns(moment: Moment) -> int | None:
    """Return how many calls a fork may make. An environment counts the recorded ones, too."""
    limit = None if moment.task is None else moment.task.max_turns
    acts = moment.task is not None and moment.task.environment is not None
    return limit if limit is None or acts else max(1, limit - moment.key.turn)


def _tenant(moment: Moment) -> str | None:
    if moment.task is not None:
        return moment.task.tenant
    return None if moment.turn is None else tenant_in(moment.turn.agent_id)


def _prompt_use(origin: Task | None, prompt: CallInput) -> PromptUse | None:
    """Return the prompt version of the recorded task, if the messages still begin with its text."""
    use = None if origin is None else origin.prompt_version
    return use if use is not None and use.render() == prompt.messages[: len(use.messages)] else None
