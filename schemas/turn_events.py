"""Turns of agents, their trajectories, and the agents themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import MIB, Continuity, Int, Millis, Personal, Purpose, Sealed, Subject, derive_id
from schemas.message_types import Message, Tool
from schemas.task_events import AgentProgram, ForkPoint, Observed, RewardSource, Sampling
from schemas.tokens import Logprobs, TokenIds

Protocol = Literal["chat", "completions", "responses", "messages", "threads", "memory"]
TurnFinish = Literal["stop", "length", "tool_calls", "cancelled", "error"]
TrajectoryKind = Literal["started", "ended"]
Ending = Literal["completed", "failed", "timeout", "cancelled"]
RowEnding = Literal["completed", "failed", "timeout", "cancelled", "waits_for_tool", "waits_for_consent"]
"""How a run ended, as views and gates have it. `waits_for_tool`: a conversation whose last answer calls a tool, and
there is no result; `waits_for_consent`: because a person was asked first, and did not answer."""
AnswerRule = Literal["first_agent", "last_call"]
AgentKind = Literal["registered", "removed"]
AgentType = Literal["PROMPT_BASED", "FINE_TUNED", "RL_TRAINED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call of an agent, acknowledged before its answer ends: what is new behind its parent, and the answer.

    The whole prompt is the parent's prompt and completion, verbatim, and then this turn's own tokens and messages.
    """

    turn_id: Annotated[str, "derived from trajectory, request and choice: known before the answer begins"]
    trajectory_id: str
    task_id: Annotated[str, "key of the record; the trajectory_id where no task was submitted"]
    created_at: Annotated[Millis, "when the answer was complete"]
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    agent_id: str
    policy: str
    adapter_version: Annotated[Int, "what the engine says it served; 0 is the base model"]
    trained_batches: Annotated[
        Int | None, "batches that the policy's line had taken by that version; null: as many as its number says"
    ] = None
    number: Annotated[Int, "0-based, without gaps, in the order in which the trajectory's turns were recorded"]
    parent_id: Annotated[str | None, "the turn whose prompt and reply this one begins with; null: none"] = None
    continuity: Annotated[Continuity, "what the call was to those before it when it began"]
    reason: Annotated[str, "why it was that"]
    sampling_id: Annotated[str | None, "of the task's attempt; null where no task was submitted"] = None
    slot: Annotated[Int | None, "of that attempt"] = None
    protocol: Annotated[Protocol, "the API that was called"]
    request_digest: Annotated[str, "sha256 over the canonical request", Personal]
    retry_key: Annotated[str | None, "what a client sends again with the same call"] = None
    choice: Annotated[Int, "which of the answers to one call, 0-based"] = 0
    choices: Annotated[Int, "how many answers the call asked for; each is a turn"] = 1
    started_at: Annotated[Millis, "when the call began"]
    engine: str
    base_digest: Annotated[str, "sha256 over the base model's weights"]
    tokenizer_digest: Annotated[str, "sha256 over vocabulary and chat template"]
    template_digest: Annotated[str, "sha256 over what renders messages into tokens"]
    finish_reason: TurnFinish
    error: Annotated[str | None, "why there is no answer", Personal] = None
    malformed: Annotated[
        str | None, "why a tool call in the completion cannot be read; the reply has it as text", Personal
    ] = None
    constraint: Annotated[
        str | None, "JSON: the form that was forced on the answer, which then bears no loss", Personal
    ] = None
    delivered: Annotated[bool, "false: the client had hung up before the answer was complete"] = True
    prompt_tokens: Annotated[Int, "of the whole prompt"]
    observed: Annotated[Observed | None, "what its environment showed before it; null: not recorded"] = None
    prompt_version: Annotated[str | None, "NAME@VERSION of the prompt that its messages begin with"] = None
    prompt_alias: Annotated[str | None, "by which it was named; null: by its version"] = None
    reply: Annotated[Message, "the answer as the client got it"]
    sampling: Annotated[Sampling, "as used"]
    prompt_token_ids: Annotated[TokenIds, "behind the parent's prompt and completion", Personal] = TokenIds()
    completion_token_ids: Annotated[TokenIds, Personal] = TokenIds()
    logprobs: Annotated[Logprobs, "nats, one per completion token, under the policy, constrained or not", Personal] = (
        Logprobs()
    )
    messages: Annotated[tuple[Message, ...], "behind the parent's messages and its reply"] = ()
    tools: Annotated[tuple[Tool, ...], "without a parent: what may be called; a parent's hold for its children"] = ()
    ignored: Annotated[tuple[str, ...], "parameters of the request that had no effect"] = ()
    sealed: Sealed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEvent:
    """An agent's run began or ended. The turns between, in order, are the trajectory."""

    event_id: Annotated[str, "uuid5(trajectory_id, kind)"]
    trajectory_id: Annotated[str, "of a task: uuid5(sampling_id, slot), the id of its response"]
    task_id: Annotated[str, "key of the record; the trajectory_id where no task was submitted"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    kind: TrajectoryKind
    agent_id: str
    policy: str
    purpose: Annotated[Purpose, "of its task; without one, serve"]
    sampling_id: Annotated[str | None, "of the task's attempt; null where no task was submitted"] = None
    slot: Annotated[Int | None, "of that attempt"] = None
    group_size: Annotated[Int | None, "of that attempt"] = None
    adapter_version: Annotated[Int | None, "pin: the version that answers the whole attempt"] = None
    ending: Annotated[Ending | None, "set exactly when it ended"] = None
    turns: Annotated[Int | None, "ended: how many turns were recorded; one with a higher number is late"] = None
    max_turns: Annotated[Int | None, "most calls; null: the agent decides"] = None
    prompt_version: Annotated[str | None, "pin: NAME@VERSION that every call of the attempt begins with"] = None
    sampling: Annotated[Sampling | None, "how every call is answered, whatever it asks; null: as it asks"] = None
    observed: Annotated[Observed | None, "what its environment showed: started, at first; ended, at last"] = None
    program: Annotated[AgentProgram | None, "that is run; null: not recorded"] = None
    fork: Annotated[ForkPoint | None, "started: the recorded moment that its first call repeats; null: none"] = None
    success: Annotated[bool | None, "ended: whether the environment says that the goal was reached"] = None
    answer_turn: Annotated[str | None, "ended: turn_id of its answer, as its end named or printed it"] = None
    answer_rule: Annotated[AnswerRule | None, "ended: which of several answers counts; null: none was set"] = None
    output: Annotated[
        str | None, "ended, to serve: what its program printed, or the agent said that it was handed to", Personal
    ] = None
    reason: Annotated[str, Personal]
    sealed: Sealed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An agent became known, changed, or was removed. The newest event about it counts."""

    MOST_BYTES: ClassVar[int] = 2 * MIB
    event_id: Annotated[str, "uuid5(agent_id, number of its events before this one)"]
    agent_id: Annotated[str, "key of the record"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: AgentKind
    name: str
    type: AgentType
    model_id: Annotated[str, "the policy, or policy@version, that answers it"]
    memory_config: Annotated[str, "JSON object"] = "{}"
    prompt: Annotated[str | None, "NAME@ALIAS or NAME@VERSION that its calls begin with; null: none"] = None
    program: Annotated[AgentProgram | None, "that answers runs of threads; null: the model answers them"] = None
    capabilities: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    reward_sources: Annotated[tuple[RewardSource, ...], "of its tasks and jobs that name none; empty: none"] = ()


def turn_problems(turn: Turn) -> Iterator[str]:
    """Return one sentence for each rule that a turn breaks."""
    if (turn.sampling_id is None) != (turn.slot is None):
        yield f"sampling_id is {turn.sampling_id!r} and slot {turn.slot}; set both or neither"
    if not 0 <= turn.choice < turn.choices:
        yield f"choice is {turn.choice}; expected 0 to {turn.choices - 1} for choices {turn.choices}"
    if (turn.finish_reason == "error") != (turn.error is not None):
        yield f"finish_reason is {turn.finish_reason} but error is {turn.error!r}; set both or neither"
    if len(turn.completion_token_ids) != len(turn.logprobs):
        lengths = f"completion_token_ids has {len(turn.completion_token_ids)} entries, logprobs {len(turn.logprobs)}"
        yield f"{lengths}; each token needs one"


def trajectory_problems(event: TrajectoryEvent) -> Iterator[str]:
    """Return one sentence for each rule that a trajectory breaks."""
    if event.event_id != derive_id(event.trajectory_id, event.kind):
        yield "event_id is not uuid5(trajectory_id, kind); use schemas.events.derive_id"
    attempt = (event.sampling_id, event.slot, event.group_size)
    if None in attempt and attempt != (None, None, None):
        yield f"sampling_id, slot and group_size are {attempt}; set all or none"
    if event.sampling_id is not None and event.trajectory_id != derive_id(event.sampling_id, event.slot):
        yield "trajectory_id is not uuid5(sampling_id, slot); use schemas.events.derive_id"
    if event.kind == "started" and (event.answer_turn, event.answer_rule) != (None, None):
        yield f"kind is started, and it has an answer: {event.answer_turn or event.answer_rule}; ended alone has one"
    if {event.ending is not None, event.turns is not None} != {event.kind == "ended"}:
        yield f"kind is {event.kind}, ending {event.ending} and turns {event.turns}; ended has both, started neither"
