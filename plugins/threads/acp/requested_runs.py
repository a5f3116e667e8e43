"""Request runs, and find those that a request may see: shared by every protocol of runs.

    RunBody ──► the agent, its thread ──► run_requested ──► threads ──► acknowledged ──► RunState
    a result, yes or no ──► the run of the thread that waits ──► run_resumed ──► likewise

A client that derives the id of a run may send the same request again: it gets the same run.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request

from gateway.agents.parameters import MAX_TOKENS
from gateway.http import errors
from gateway.http.principal import actor_of, principal_of, sees, tenant_of
from plugins.threads.acp.acp_threads import LISTED, USER, thread_event
from plugins.threads.acp.known_agents import AvailableAgent, KnownAgents
from plugins.threads.acp.resumption import (
    ResumedCalls,
    check_taken,
    read_resumption,
    resumption_event,
    resumption_of_messages,
)
from plugins.threads.acp.run_execution import ThreadRuns, run_of
from plugins.threads.acp.run_limits import RECURSION_LIMIT
from plugins.threads.acp.thread_access import check_thread, id_of, own_agent, read_uuid, thread_name
from plugins.threads.acp.thread_bodies import RunBody
from plugins.threads.acp.thread_views import ThreadViews
from plugins.threads.log.thread_log import ThreadLog
from plugins.threads.log.thread_state import RunState, ThreadState
from schemas import json_text
from schemas.events import Sampling, ThreadEvent, derive_id
from streams.errors import CallError

THREAD_ID = "thread_id"
"""In paths of requests."""


class RunOrigin(NamedTuple):
    """The client's names for a run."""

    run_id: str
    message_id: str | None = None
    """What its client calls the message."""


class RequestedRuns:
    """The runs of a server, with access checks for each request."""

    def __init__(self, runs: ThreadRuns, views: ThreadViews, agents: KnownAgents) -> None:
        self._runs, self._views, self._agents = runs, views, agents

    async def request(self, request: Request, body: RunBody, origin: RunOrigin | None = None) -> RunState:
        """Return a run once it is in the log and its thread has accepted it. Raises CallError."""
        body = body.on(request.path_params.get(THREAD_ID))
        agent = await errors.apart(self._agents.get, request, body.agent_id or body.assistant_id)
        self._agents.check(agent)
        origin = origin or RunOrigin(str(uuid.uuid4()))
        run_id = origin.run_id
        if body.thread_id is not None and (waiting := await self._waiting_run(request, body.thread_id)) is not None:
            answered = resumption_of_messages(waiting, body.new_messages)
            if body.command is not None:
                answered = read_resumption(waiting, body.command.resume)
            if answered is not None:
                return await self._resume(request, waiting, answered)
        elif body.command is not None:
            raise CallError("conflict", f"no run of thread {body.thread_id} waits", "command")
        event = _run_request(request, body, agent, origin)
        if body.thread_id is None and body.on_completion == "keep":
            event = replace(event, thread_id=thread_name(request, str(uuid.uuid4())), stateless=False)
        thread = await self._check_messages(request, body, event)
        if thread is not None and thread.subject is not None and USER not in (body.metadata or {}):
            event = replace(event, subject=thread.subject)
        state, refusal = await self._runs.append(event)
        earlier = None if state is None or refusal is None else state.runs.get(run_id)
        if earlier is not None:
            if earlier.request.messages == event.messages:
                return earlier
            raise CallError("conflict", f"run {run_id} was requested with other messages; use an id once")
        if refusal is not None:
            raise CallError("conflict", f"{refusal}; wait for it, or use multitask_strategy: enqueue or interrupt")
        if state is None or run_id not in state.runs:
            raise CallError("conflict", f"run {run_id} was deleted meanwhile")
        return state.runs[run_id]

    async def _check_messages(self, request: Request, body: RunBody, event: ThreadEvent) -> ThreadState | None:
        """Return the thread of a run, which is created if allowed; None for a run of none.

        Raises CallError without a thread, or without a message.
        """
        state: ThreadState | None = None
        if not event.stateless:
            has_to_exist = body.thread_id is not None and body.if_not_exists != "create"
            if has_to_exist and await self._views.find(request, event.thread_id) is None:
                raise CallError("not_found", f"there is no thread {body.thread_id}", "thread_id", way_out=LISTED)
            state = await self._views.keep(request, event.thread_id)
            if state is None:
                created = thread_event(request, event.thread_id, "created", agent_id=own_agent(request))
                state, _ = await self._runs.append(replace(created, subject=event.subject))
                check_thread(request, state, id_of(event.thread_id))  # it may exist, hidden from this key
        if not event.messages and (state is None or not state.messages):
            raise CallError("invalid", "there is nothing to answer; send messages, or input", "messages")
        return state

    async def resume(self, request: Request, run: RunState, value: Any, event_id: str | None = None) -> RunState:
        """Return a run with an answer to what it waits for; `event_id`: of an answer that may be sent again.

        Raises CallError.
        """
        if event_id is not None and await self.has_answer(run, event_id):
            return run
        return await self._resume(request, run, read_resumption(run, value), event_id)

    async def has_answer(self, run: RunState, event_id: str) -> bool:
        """Return whether a run has taken an answer, or passed it to a child. Raises CallError."""
        return await errors.apart(_has_answer, await self._runs.open(), run, event_id)

    async def _resume(
        self, request: Request, run: RunState, answered: ResumedCalls, event_id: str | None = None
    ) -> RunState:
        """Record answers to a run; those to a call whose run waits are answers to that run."""
        waiting = {step.call.id: step for step in run.steps.waiting if step.waits_for == "child"}
        answered, values = answered.without(waiting)
        for call_id, value in values.items():
            name = run.child_id(waiting[call_id].call)
            child_event = None if event_id is None else derive_id(event_id, name)
            await self.resume(request, await self._find(request, name), value, child_event)
            await self._runs.children.settle(run.run_id, name)
        if values and not answered.decisions and not answered.results:
            return await self.find(request, run.run_id)
        event = resumption_event(run, answered, actor_of(request), event_id)
        return check_taken(await self._runs.append(event)).runs[run.run_id]

    async def _waiting_run(self, request: Request, thread_id: str) -> RunState | None:
        """Return the run of a thread that waits for an answer, if a request may see it. Raises CallError."""
        state = (await self._runs.open()).last(thread_name(request, thread_id))
        run = None if state is None else state.runs.get(state.active or "")
        return run if run is not None and run.waiting and sees_run(request, run) else None

    async def find(self, request: Request, run_id: str) -> RunState:
        """Return a run that a request may see, of the thread that its path names, if any. Raises CallError."""
        run = await self._find(request, read_uuid(run_id, "run_id"))
        thread_id = request.path_params.get(THREAD_ID)
        if thread_id is not None and run.thread_id != thread_name(request, thread_id):
            raise CallError("not_found", f"thread {thread_id[:80]} has no run {run.run_id}", "run_id")
        return run

    async def _find(self, request: Request, name: str) -> RunState:
        run = run_of(await self._runs.open(), name)
        if not sees_run(request, run):
            raise CallError("not_found", f"there is no run {name}", "run_id")
        return run


def _run_request(request: Request, body: RunBody, agent: AvailableAgent, origin: RunOrigin) -> ThreadEvent:
    """Return the event that asks for a run."""
    run_id = origin.run_id
    chosen = body.configurable
    thread = run_id if body.thread_id is None else thread_name(request, body.thread_id)
    rest: dict[str, Any] = {"tags": body.config.tags} if body.config is not None and body.config.tags else {}
    if origin.message_id is not None:
        rest["message_id"] = origin.message_id
    if body.config is not None and body.config.recursion_limit is not None:
        rest[RECURSION_LIMIT] = body.config.recursion_limit
    sampling = Sampling(
        temperature=1.0 if chosen.temperature is None else chosen.temperature,
        top_p=1.0 if chosen.top_p is None else chosen.top_p,
        max_tokens=chosen.max_tokens or MAX_TOKENS,
        seed=int(run_id[:8], 16) if chosen.seed is None else chosen.seed,
        stop=tuple(chosen.stop or ()),
    )
    return thread_event(
        request,
        thread,
        "run_requested",
        metadata=agent.metadata_of(run_id, tenant_of(request)),
        run_id=run_id,
        agent_id=agent.logged,
        labels=json_text.one_line(body.metadata or {}),
        stateless=body.thread_id is None,
        if_busy=body.multitask_strategy or "reject",
        model=agent.model,
        memory_config=agent.memory_config,
        sampling=sampling,
        request=json_text.one_line(rest) if rest else None,
        messages=body.new_messages,
        tools=agent.tools,
    )


def _has_answer(threads: ThreadLog, run: RunState, event_id: str) -> bool:
    """Raises LogError."""
    if event_id in run.steps.resumptions:
        return True
    children = ((name, threads.find(name)) for name in run.children)
    return any(child and _has_answer(threads, child, derive_id(event_id, name)) for name, child in children)


def sees_run(request: Request, run: RunState) -> bool:
    """Return whether a request may see a run."""
    return sees(principal_of(request), run.agent_id)
