"""Runs that answer calls of other runs: an agent that is a tool is run for each call, with its own trajectory.

    the parent's call_begun ──► run_requested, of a thread of its own ──► run_ended ──► the parent's call_ended
    the child waits for a person or a client ──► run_paused: child ──► it continues ──► run_resumed
    the parent ends, or the call has a result ──► the child is cancelled

The id of a child is derived from its call, so after kill -9 the next server asks for the same run, which is refused as
requested already. A child acts for the caller of its parent, and what its model reads and samples counts for both.

Not covered: a child that continues its agent's earlier thread; each call begins with its message alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from gateway.agents.parameters import MAX_TOKENS
from gateway.http import errors
from gateway.http.principal import request_of
from gateway.log.run_tools import ToolReply
from plugins.agents.registry.agent_log import object_of
from plugins.threads.acp.busy_retries import AGAIN_S, end_tasks
from plugins.threads.acp.known_agents import AvailableAgent, KnownAgents
from plugins.threads.acp.run_actions import ACTOR, NextCall, RunActions, paused_event, step_event
from plugins.threads.log.thread_log import Appended, ThreadLog
from plugins.threads.log.thread_state import RunState, ThreadState
from schemas.events import CallDecision, Message, ParentCall, PausedCall, Sampling, ThreadEvent
from schemas.tool_text import NO_AGENT_MESSAGE, agent_message
from streams.access.roles import Principal
from streams.errors import CallError


class OpenRuns(Protocol):
    """The runs of a server."""

    async def open(self) -> ThreadLog:
        """Return the threads. Raises CallError."""

    async def wait(self, run_id: str) -> RunState:
        """Return a run once it has ended, or waits for an answer. Raises CallError."""

    async def cancel(self, run_id: str, actor: str) -> None:
        """End a run as cancelled, if it has not ended. Raises CallError."""

    async def record(self, event: ThreadEvent) -> Appended:
        """Write an event about a run; wait for the broker as long as it takes."""


class ChildRuns:
    """Requests the children of a server's runs, and looks after them. Of one event loop."""

    def __init__(
        self, runs: OpenRuns, actions: RunActions, agents: Callable[[], KnownAgents | None], max_depth: int
    ) -> None:
        self._runs, self._actions, self._agents, self._max_depth = runs, actions, agents, max_depth
        self._threads: ThreadLog | None = None
        self._open: dict[str, dict[str, str]] = {}
        """By the thread of their parents: children that have not ended, and the parent of each."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The work that is in progress for children, by their ids."""

    # --- a call -------------------------------------------------------------------------------------------------------

    async def answer(self, call: NextCall, before: Awaitable[object]) -> None:
        """Answer a call by a run, and record it after something else; or write that the call waits for that run."""
        name = call.run.child_id(call.step.call)
        threads = self._threads = await self._runs.open()
        if threads.find(name) is None:
            request = await errors.apart(self._request, call, name)
            if isinstance(request, ToolReply):
                await before
                await self._actions.refuse(call.run, call.step, call.reference, request)
                return
            if not call.step.begun:
                about = call.about(child_run=name)
                begun = step_event(call.run, "call_begun", call.step.call.id, call.step.begun, call=about)
                if (await self._runs.record(begun)).refusal is not None:
                    return
            await self._runs.record(request)
        try:
            child = await self._runs.wait(name)
        except CallError as exc:
            if exc.kind != "not_found":
                await asyncio.sleep(AGAIN_S)
                return
            await before
            ended, reply = call.about(child_run=name, error="deleted"), ToolReply("its run was deleted", "deleted")
            await self._actions.end(call.run, call.step, ended, reply)
            return
        await before
        if child.is_open:
            wait = PausedCall(call_id=call.step.call.id, waits_for="child")
            await self._runs.record(paused_event(call.run, (wait,)))
            return
        reply, steps = _reply(child), child.steps
        ended = call.about(
            child_run=name,
            duration_ms=max(child.updated_at - child.request.created_at, 0),
            prompt_tokens=steps.prompt_tokens,
            completion_tokens=steps.completion_tokens,
        )
        await self._actions.end(call.run, call.step, ended, reply)

    def _request(self, call: NextCall, name: str) -> ThreadEvent | ToolReply:
        """Return the event that requests a child, or why there is none. Raises as `AgentLog`."""
        run, depth = call.run, depth_of(call.run) + 1
        if depth > self._max_depth:
            problem = f"agents call each other {depth} runs deep; at most {self._max_depth} (threads.max_depth)"
            return ToolReply(problem, "max_depth")
        message = agent_message(object_of(call.step.call.arguments))
        if message is None:
            return ToolReply(NO_AGENT_MESSAGE, "invalid")
        agent = self._agent(call.tool.agent, call.rights.principal)
        if isinstance(agent, ToolReply):
            return agent
        parent = ParentCall(run_id=run.run_id, turn_id=run.steps.turns[-1], call_id=call.step.call.id, depth=depth)
        sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=MAX_TOKENS, seed=int(name[:8], 16))
        said = (Message(role="user", content=message),)
        return agent.single_run(
            name, run.request.actor, sampling, messages=said, parent=parent, subject=run.request.subject
        )

    def _agent(self, name: str | None, principal: Principal | None) -> AvailableAgent | ToolReply:
        """Return an agent that a principal may run now, or why it may not."""
        if (agents := self._agents()) is None:
            return ToolReply("this server runs no agents", "unavailable")
        try:
            agent = agents.get(request_of(principal), name)
            agents.check(agent)
        except CallError as exc:
            return ToolReply(exc.message, "not_found" if exc.kind == "not_found" else "unavailable")
        return agent

    def callers_of(self, run: RunState) -> list[RunState]:
        """Return the runs above a run, its parent first."""
        callers: list[RunState] = []
        while self._threads is not None and run.request.parent is not None:
            parent = self._threads.find(run.request.parent.run_id)
            if parent is None:
                break
            callers.append(parent)
            run = parent
        return callers

    # --- looking after them -------------------------------------------------------------------------------------------

    def take(self, threads: ThreadLog, state: ThreadState) -> None:
        """Take in that a thread has changed: as a parent of runs, and as a run that has a parent."""
        self._threads = threads
        for child, parent in list(self._open.get(state.thread_id, {}).items()):
            self._begin(threads, parent, child)
        active = state.runs.get(state.active or "")
        for step in () if active is None else active.steps.waiting:
            if active is not None and step.waits_for == "child":
                self._begin(threads, active.run_id, active.child_id(step.call))
        for run in state.runs.values() if state.stateless else ():
            if run.request.parent is not None:
                self._take_child(threads, run, run.request.parent.run_id)

    def _take_child(self, threads: ThreadLog, run: RunState, parent_id: str) -> None:
        parent = threads.find(parent_id)
        thread_id = "" if parent is None else parent.thread_id
        if run.is_open:
            self._open.setdefault(thread_id, {})[run.run_id] = parent_id
        elif (children := self._open.get(thread_id)) is not None:
            children.pop(run.run_id, None)
            if not children:
                del self._open[thread_id]
        self._begin(threads, parent_id, run.run_id)

    def _begin(self, threads: ThreadLog, parent_id: str, name: str) -> None:
        """Settle a child in a task of its own, if there is anything to do."""
        if name not in self._tasks and _next_step(threads, parent_id, name) is not None:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(self._settle(parent_id, name))
            task.add_done_callback(partial(self._finish, threads, parent_id, name))

    def _finish(self, threads: ThreadLog, parent_id: str, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and task.exception() is None:
            self._begin(threads, parent_id, name)  # something else may have happened meanwhile

    async def settle(self, parent_id: str, name: str) -> None:
        """Return once a parent has taken in that its child was answered. Raises CallError."""
        self._begin(await self._runs.open(), parent_id, name)
        if (task := self._tasks.get(name)) is not None:
            await asyncio.wait((task,))

    async def _settle(self, parent_id: str, name: str) -> None:
        """Cancel a child whose parent waits no more, or resume a parent whose child continues."""
        step = _next_step(await self._runs.open(), parent_id, name)
        if isinstance(step, ThreadEvent):
            await self._runs.record(step)
        elif step is not None:
            await self._runs.cancel(step.run_id, ACTOR)

    async def close(self) -> None:
        """Leave the rest to the next server."""
        await end_tasks(self._tasks.values())


def _next_step(threads: ThreadLog, parent_id: str, name: str) -> RunState | ThreadEvent | None:
    """Return a child that has to be cancelled, or the event that resumes its parent; None: nothing has to be done."""
    parent, child = threads.find(parent_id), threads.find(name)
    steps = parent.steps.open_calls if parent is not None and parent.is_open else ()
    step = next((step for step in steps if parent is not None and parent.child_id(step.call) == name), None)
    if parent is None or step is None:
        return child if child is not None and child.is_open else None
    child_waits = child is not None and child.is_open and bool(child.steps.waiting)
    if step.waits_for != "child" or child_waits:
        return None
    decisions = (CallDecision(call_id=step.call.id, allowed=True),)
    return step_event(parent, "run_resumed", name, parent.steps.pauses, turn_id=None, decisions=decisions)


def depth_of(run: RunState) -> int:
    """Return how many runs are above a run."""
    return 0 if run.request.parent is None else run.request.parent.depth


def _reply(child: RunState) -> ToolReply:
    """Return what the parent's model reads of a child that has ended."""
    if child.ending == "success" and child.answer:
        return ToolReply(child.answer[0].message.content)
    ending = child.ending or "error"
    return ToolReply(f"agent {child.agent_id} gave no answer: {child.error or 'its run was cancelled'}", ending)
