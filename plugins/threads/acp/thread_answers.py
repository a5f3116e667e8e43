"""Threads, runs, states and items as the Agent Protocol has them.

ThreadState, RunState, MemoryItem ──► answers         `participants` and `context` are additions of ours
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.body import Answer
from gateway.http.principal import tenant_of
from plugins.agents.registry.agent_log import PROTOCOL_CAPABILITIES, object_of
from plugins.threads.acp.known_agents import AvailableAgent
from plugins.threads.acp.thread_access import id_of, own_labels
from plugins.threads.log.memory_state import MemoryItem
from plugins.threads.log.run_steps import ThreadMessage
from plugins.threads.log.thread_state import RunState, ThreadCheckpoint, ThreadState
from schemas.events import CallWait
from streams.access.tenants.tenant_names import without_tenant
from streams.output import moment

LANGCHAIN_TYPES = {"user": "human", "assistant": "ai"}


class ThreadMessageAnswer(Answer):
    """A message."""

    role: str
    content: str
    id: str
    type: str = Field(description="its role, as LangChain calls it")
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class AgentAnswer(Answer):
    """An agent."""

    agent_id: str
    name: str
    description: str
    metadata: dict[str, Any]
    capabilities: dict[str, bool]


class AgentSchemaAnswer(Answer):
    """What an agent takes and gives."""

    agent_id: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    state_schema: dict[str, Any]
    config_schema: dict[str, Any]


class ThreadAnswer(Answer):
    """A thread."""

    thread_id: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any]
    status: Literal["idle", "busy", "interrupted", "error"]
    values: dict[str, Any]
    messages: list[ThreadMessageAnswer]
    id: str = Field(description="thread_id")
    participants: list[str] = Field(description="the agents that ran on it")
    context: dict[str, Any] = Field(description="values")


class ThreadStateAnswer(Answer):
    """A state of a thread."""

    checkpoint: dict[str, str]
    values: dict[str, Any]
    messages: list[ThreadMessageAnswer]
    metadata: dict[str, Any]


class RequiredCall(Answer):
    """A call that a run waits for."""

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    waits_for: CallWait = Field(
        description="results: of the client's tool; consent, unfinished: yes or no of a person; child: for what "
        "the run run_id waits for; remote: an answer to what an agent of another server asks"
    )
    run_id: str | None = Field(None, description="child: the run of the agent that is called, which waits")
    question: str | None = Field(None, description="remote: what that agent asks; consent: why, if a rule asks for it")


class ThreadRunAnswer(Answer):
    """A run."""

    run_id: str
    thread_id: str | None = None
    agent_id: str
    assistant_id: str = Field(description="agent_id, as langgraph-sdk calls it")
    created_at: str
    updated_at: str
    status: Literal["pending", "error", "success", "timeout", "interrupted"]
    metadata: dict[str, Any]
    multitask_strategy: str
    error: str | None = None
    requires_action: list[RequiredCall] | None = Field(None, description="what an interrupted run waits for")


class RunResult(Answer):
    """A run that has ended, and what it came to."""

    run: ThreadRunAnswer
    values: dict[str, Any]
    messages: list[ThreadMessageAnswer]


class ItemAnswer(Answer):
    """An item of the store."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: str
    updated_at: str


class ItemList(Answer):
    """Items of the store."""

    items: list[ItemAnswer]


def list_response(answers: Iterable[Answer]) -> Response:
    """Return answers as a bare list, where other protocols wrap it in an object."""
    text = ",".join(answer.model_dump_json(exclude_unset=True) for answer in answers)
    return Response(f"[{text}]", media_type="application/json")


def message_answer(message: ThreadMessage) -> ThreadMessageAnswer:
    """Return a message."""
    sent = message.message
    optional: dict[str, Any] = {}
    if sent.name is not None:
        optional["name"] = sent.name
    if sent.tool_call_id is not None:
        optional["tool_call_id"] = sent.tool_call_id
    if sent.tool_calls:
        optional["tool_calls"] = [
            {"id": call.id, "name": call.name, "args": object_of(call.arguments), "type": "tool_call"}
            for call in sent.tool_calls
        ]
    kind = LANGCHAIN_TYPES.get(sent.role, sent.role)
    return ThreadMessageAnswer(role=sent.role, content=sent.content, id=message.message_id, type=kind, **optional)


def message_answers(messages: Iterable[ThreadMessage]) -> list[ThreadMessageAnswer]:
    """Return messages."""
    return [message_answer(message) for message in messages]


def agent_answer(agent: AvailableAgent) -> AgentAnswer:
    """Return an agent."""
    registered = {} if agent.created_at is None else {"registered_at": moment(agent.created_at)}
    return AgentAnswer(
        agent_id=agent.agent_id,
        name=agent.name,
        description=f"answered by {agent.model}",
        metadata={"model": agent.model, **registered},
        capabilities=dict.fromkeys((*PROTOCOL_CAPABILITIES, *agent.capabilities), True),
    )


def agent_name(request: Request, logged: str) -> str:
    """Return an agent's name as the caller names it."""
    return without_tenant(tenant_of(request), logged)


def thread_answer(request: Request, state: ThreadState) -> ThreadAnswer:
    """Return a thread."""
    return ThreadAnswer(
        thread_id=id_of(state.thread_id),
        created_at=moment(state.created_at),
        updated_at=moment(state.updated_at),
        metadata=dict(state.labels),
        status=state.status,
        values=dict(state.values),
        messages=message_answers(state.messages),
        id=id_of(state.thread_id),
        participants=[agent_name(request, agent) for agent in state.participants],
        context=dict(state.values),
    )


def state_answer(checkpoint: ThreadCheckpoint) -> ThreadStateAnswer:
    """Return a state of a thread."""
    metadata = {"created_at": moment(checkpoint.created_at)}
    if checkpoint.run_id is not None:
        metadata["run_id"] = checkpoint.run_id
    return ThreadStateAnswer(
        checkpoint={"checkpoint_id": checkpoint.checkpoint_id},
        values=dict(checkpoint.values),
        messages=message_answers(checkpoint.messages()),
        metadata=metadata,
    )


def run_answer(request: Request, run: RunState) -> ThreadRunAnswer:
    """Return a run."""
    agent = agent_name(request, run.agent_id)
    optional: dict[str, Any] = {}
    if not run.request.stateless:
        optional["thread_id"] = id_of(run.thread_id)
    if run.error is not None:
        optional["error"] = run.error
    if run.waiting:
        optional["requires_action"] = required_calls(run)
    return ThreadRunAnswer(
        run_id=run.run_id,
        agent_id=agent,
        assistant_id=agent,
        created_at=moment(run.request.created_at),
        updated_at=moment(run.updated_at),
        status=run.status,
        metadata=object_of(run.request.labels),
        multitask_strategy=run.request.if_busy or "reject",
        **optional,
    )


def run_result(request: Request, run: RunState) -> RunResult:
    """Return a run, and the messages of its thread when it had ended."""
    before = () if run.checkpoint is None else run.checkpoint.messages()
    values = {} if run.checkpoint is None else dict(run.checkpoint.values)
    return RunResult(run=run_answer(request, run), values=values, messages=message_answers((*before, *run.messages)))


def required_calls(run: RunState) -> list[RequiredCall]:
    """Return the calls that a run waits for."""
    return [
        RequiredCall(
            tool_call_id=step.call.id,
            name=step.call.name,
            arguments=object_of(step.call.arguments),
            waits_for=step.waits_for,
            **({"run_id": run.child_id(step.call)} if step.waits_for == "child" else {}),
            **({} if step.question is None else {"question": step.question}),
        )
        for step in run.waiting
        if step.waits_for is not None
    ]


def interrupts(run: RunState) -> list[dict[str, Any]]:
    """Return what a run waits for, as LangGraph has it."""
    return [{"id": call.tool_call_id, "value": call.model_dump(exclude_unset=True)} for call in required_calls(run)]


def item_answer(request: Request, item: MemoryItem) -> ItemAnswer:
    """Return an item."""
    return ItemAnswer(
        namespace=own_labels(request, item.namespace),
        key=item.key,
        value=item.fields,
        created_at=moment(item.created_at),
        updated_at=moment(item.updated_at),
    )
