"""The calls that a run makes: of the registered tools of its agent, those of one answer at once, each recorded.

    answer with calls ──► the client's tool: run_paused, results      a tool that needs consent: run_paused, consent
                     ├──► ToolGuard: allowed, consent or refused, by what the run has read
                     └──► RunTools, with the rights of the run's caller ──► call_begun ──► call_ended: the result

After kill -9 the next server finds a call that was begun and has no end. It is made again if its entry is idempotent;
otherwise it may have been made or not, and the run waits until a person says so. A call that is denied, or that
fails, is a result that the model reads. An agent that is a tool answers by a run of its own (child_runs.py), and one of
another server by a task, which the next server continues (call_accepted), and which ends with its run.

The calls of one answer are made at the same time, and their results are recorded in its order. Calls of environments,
which keep their state from call to call, are made one after the other, and a handoff alone.

Not covered: a task of another server whose run ends while this server is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from gateway.http.authentication import Authentication
from gateway.log.run_tools import CallableTool, CallInRun, CallRights, CallStop, RunTools, ToolReply, rights_of
from plugins.agents.registry.agent_log import read_memory
from plugins.threads.acp.busy_retries import AGAIN_S
from plugins.threads.acp.known_agents import KnownAgents
from plugins.threads.log.run_steps import CallStep
from plugins.threads.log.thread_log import Appended, run_event
from plugins.threads.log.thread_state import RunState, ThreadState
from schemas.conventions import TOOL_IDS
from schemas.events import Message, PausedCall, RunCall, ThreadEvent, derive_id
from schemas.tool_text import INPUT_REQUIRED
from streams.errors import CallError, LogError, StreamwardError
from streams.stages.agents.tool_guard import ALLOWED, CallRuling, GuardedCall, ReadPart, ToolGuard, text_parts

ACTOR = "serve"
"""The actor of the events that a server writes about runs."""
CALLS_AT_ONCE, CALLS_OF_RUN = 32, 8
"""Of all runs of a server, and of one."""
MOST_CHARACTERS = 100_000
"""Longest result of a call."""
ENDS_WITHIN_S = 20.0
"""How long calls in progress may take once the server should stop."""
NO_TOOLS = "no loaded plugin of this server calls registered tools"
NO_KEYS = CallRights()

log = logging.getLogger("streamward.threads")


class CallPlaces(NamedTuple):
    """Where calls go, once every part of the server is open."""

    tools: RunTools | None
    """None: no part has registered tools."""
    authentication: Authentication | None
    agents: KnownAgents | None = None
    """Those that may be tools; None: there are none."""
    guard: ToolGuard | None = None
    """The guard of calls, by what a run has read; None: all may be made."""


class NextCall(NamedTuple):
    """A call that may be made now."""

    run: RunState
    step: CallStep
    reference: str
    tool: CallableTool
    rights: CallRights

    def about(self, **ended: Any) -> RunCall:
        """Return what the events of the call say of it."""
        call = self.step.call
        return RunCall(
            call_id=call.id,
            tool_id=self.tool.tool_id,
            arguments=call.arguments,
            digest=self.tool.digest,
            attempt=self.step.begun,
            idempotent=self.tool.idempotent,
            handoff=self.tool.handoff,
            **ended,
        )

    def stop(self, accept: Callable[[str], None]) -> CallStop:
        """Return what ends the call, with the names that a task of another server has or gets."""
        run, call, step = self.run, self.step.call, self.step
        about = ("call",) if step.answer is None else ("answer", run.steps.pauses)
        message_id = derive_id(run.run_id, *about, run.steps.turns[-1], call.id)
        return CallStop(message_id, step.remote_task, step.answer, accept)


class RefusedCall(NamedTuple):
    """A call that is not made, with the reason as its result."""

    step: CallStep
    reference: str
    reply: ToolReply


NextStep = NextCall | RefusedCall | PausedCall


def registered_tools(run: RunState) -> dict[str, str]:
    """Return ID@DIGEST of each tool that the server calls for a run, by the name that the model calls it."""
    references = run.request.metadata.get(TOOL_IDS, "").split()
    names = [tool.name for tool in run.tools[len(run.tools) - len(references) :]]
    return dict(zip(names, references, strict=True))


class RunActions:
    """Makes the calls of a server's runs. Of one event loop."""

    def __init__(
        self,
        places: Callable[[], CallPlaces],
        record: Callable[[ThreadEvent], Coroutine[Any, Any, Appended]],
        ask: Callable[[NextCall, Awaitable[object]], Awaitable[None]],
        callers: Callable[[RunState], Sequence[RunState]] = lambda _: (),
    ) -> None:
        """`record` returns once an event is in the log and its own fold has it; `ask` lets an agent answer a call, and
        records what it came to after something else; `callers` are the runs above a run.
        """
        self._places, self._record, self._ask, self._callers = places, record, ask, callers
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "calls-tools")
        self._calls: dict[asyncio.Task[None], CallStop] = {}
        self._asked: dict[str, RunState] = {}
        """Runs that wait for an answer to an agent of another server, by their ids."""
        self._is_stopping = False

    async def act(self, run: RunState) -> None:
        """Make the calls of a run that may be made now; without one, write that the run waits. Raises CallError."""
        try:
            steps = await self._next_steps(run)
        except LogError as exc:
            log.warning("run %s waits for the registry of tools: %s", run.run_id, exc)
            await asyncio.sleep(AGAIN_S)
            return
        waits = [step for step in steps if isinstance(step, PausedCall)]
        if len(waits) == len(steps):
            await self._record(paused_event(run, waits))
            return
        limit, tasks = asyncio.Semaphore(CALLS_OF_RUN), list[asyncio.Task[None]]()
        try:
            async with asyncio.TaskGroup() as group:
                for step in steps:
                    if not isinstance(step, PausedCall):
                        before = asyncio.gather(*tasks[-1:], return_exceptions=True)
                        tasks.append(group.create_task(self._carry_out(run, step, before, limit)))
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc

    async def _next_steps(self, run: RunState) -> list[NextStep]:
        """Return what may be done about the open calls of a run, in their order. Raises LogError."""
        steps: dict[str, NextStep] = {}
        references, keeps_state = registered_tools(run), False
        for step in run.steps.open_calls:
            if step.call.id in steps:
                continue  # a second call of this id is made once the first has its result
            call = await self._next_step(run, step, references.get(step.call.name))
            if isinstance(call, NextCall) and call.tool.keeps_state:
                if keeps_state:
                    break  # it depends on the result of the one before
                keeps_state = True
            if isinstance(call, NextCall) and call.tool.handoff:
                if all(isinstance(earlier, PausedCall) for earlier in steps.values()):
                    steps[step.call.id] = call
                break  # with its result the run ends
            steps[step.call.id] = call
        return [*steps.values()]

    async def _next_step(self, run: RunState, step: CallStep, reference: str | None) -> NextStep:
        if reference is None:
            return PausedCall(call_id=step.call.id, waits_for="results")
        if step.allowed is False:
            return RefusedCall(step, reference, ToolReply("a person refused this call", "refused"))
        rights, tool = await self._apart(self._find, run, reference)
        if isinstance(tool, ToolReply):
            return RefusedCall(step, reference, tool)
        if step.begun and step.allowed is None and not (tool.idempotent or step.remote_task):
            return PausedCall(call_id=step.call.id, waits_for="unfinished")
        if tool.needs_consent and step.allowed is None and not step.begun:
            return PausedCall(call_id=step.call.id, waits_for="consent")
        ruling = ALLOWED if step.begun else await self._apart(self._rule, run, step, tool)
        if ruling.outcome == "refused":
            return RefusedCall(step, reference, ToolReply(ruling.reason, "refused"))
        if ruling.outcome == "consent":
            return PausedCall(call_id=step.call.id, waits_for="consent", question=ruling.reason)
        return NextCall(run, step, reference, tool, rights)

    async def _carry_out(
        self, run: RunState, step: NextCall | RefusedCall, before: Awaitable[object], limit: asyncio.Semaphore
    ) -> None:
        """Make a call, or refuse it; its result is recorded after those `before`."""
        if isinstance(step, RefusedCall):
            await before
            await self.refuse(run, *step)
            return
        async with limit:
            await (self._make if step.tool.agent is None else self._ask)(step, before)

    async def close(self) -> None:
        """Wait for the calls in progress, so that their results are recorded; stop those that take too long."""
        self._is_stopping = True
        calls = dict(self._calls)
        for stop in calls.values():
            if stop.task_id is not None:
                stop.leave()
        if calls:
            _, late = await asyncio.wait(calls, timeout=ENDS_WITHIN_S)
            for task in late:
                calls[task].stop()
                task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def take(self, state: ThreadState) -> None:
        """Take in that a thread has changed: tasks of other servers end with the runs that wait for them."""
        for run in [run for run in self._asked.values() if run.thread_id == state.thread_id]:
            now = state.runs.get(run.run_id)
            if now is None or not now.is_open:
                asyncio.get_running_loop().run_in_executor(self._threads, self._cancel, run)
            if now is None or not now.waiting:
                del self._asked[run.run_id]
        active = state.runs.get(state.active or "")
        if active is not None and any(step.waits_for == "remote" for step in active.waiting):
            self._asked[active.run_id] = active

    def _cancel(self, run: RunState) -> None:
        """Cancel the tasks of other servers that a run has waited for."""
        tools, references = self._places().tools, registered_tools(run)
        for step in run.steps.waiting:
            if tools is None or step.waits_for != "remote" or step.remote_task is None:
                continue
            try:
                rights, _ = self._find(run, references[step.call.name])
                tools.cancel(references[step.call.name], rights.principal, step.remote_task)
            except StreamwardError as exc:
                log.warning("task %s of run %s may continue: %s", step.remote_task, run.run_id, exc)

    # --- one call -----------------------------------------------------------------------------------------------------

    def _find(self, run: RunState, reference: str) -> tuple[CallRights, CallableTool | ToolReply]:
        """Return a tool, and with which rights it is called. Raises LogError."""
        places = self._places()
        if places.tools is None:
            return NO_KEYS, ToolReply(NO_TOOLS, "unavailable")
        rights = rights_of(places.authentication, run.request.actor, run.agent_id)
        if rights.denied is not None:
            return rights, ToolReply(rights.denied, "denied")
        return rights, places.tools.find(reference, rights.principal)

    def _rule(self, run: RunState, step: CallStep, tool: CallableTool) -> CallRuling:
        """Return whether a call may be made, by what its run and the runs above have read."""
        guard = self._places().guard
        if guard is None:
            return ALLOWED
        return guard.decide(
            GuardedCall(
                door="threads",
                agent_id=run.agent_id,
                conversation=run.run_id,
                call_id=step.call.id,
                tool_id=tool.tool_id,
                name=step.call.name,
                arguments=step.call.arguments,
                read=tuple(part for each in (run, *self._callers(run)) for part in _read_by(each)),
                consent=step.decided_by if step.allowed else None,
            )
        )

    async def _make(self, call: NextCall, before: Awaitable[object]) -> None:
        """Make a call, and record it. Cancelled, it is stopped, unless the server stops: then it ends."""
        if self._is_stopping:
            raise asyncio.CancelledError  # the next server makes it
        if call.step.remote_task is None:
            begun = step_event(call.run, "call_begun", call.step.call.id, call.step.begun, call=call.about())
            if (await self._record(begun)).refusal is not None:
                return
        loop = asyncio.get_running_loop()

        def accept(task_id: str) -> None:
            event = step_event(
                call.run, "call_accepted", call.step.call.id, task_id, call=call.about(remote_task=task_id)
            )
            if asyncio.run_coroutine_threadsafe(self._record(event), loop).result().refusal is not None:
                stop.stop()

        stop = call.stop(accept)
        task = loop.create_task(self._finish(call, stop, before))
        self._calls[task] = stop
        task.add_done_callback(self._calls.pop)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self._is_stopping:
                await loop.run_in_executor(None, stop.stop)
            raise

    async def _finish(self, call: NextCall, stop: CallStop, before: Awaitable[object]) -> None:
        tools, started = self._places().tools, time.monotonic()
        assert tools is not None  # noqa: S101 - the tool was found there
        in_run = CallInRun(call.step.call.arguments, call.run.steps.made)
        try:
            reply = await self._apart(tools.call, call.reference, call.rights.principal, in_run, stop)
        except LogError as exc:
            reply = ToolReply(f"the registry of tools cannot be read: {exc}", "unavailable")
        except Exception:  # whatever a tool does, its run continues
            log.exception("call %s of run %s failed", call.step.call.id, call.run.run_id)
            reply = ToolReply("the call failed; the output of the server says why", "failed")
        finally:
            stop.disarm()
        if stop.is_stopped:
            return  # its run has ended
        if reply.error == INPUT_REQUIRED:
            await before
            wait = PausedCall(call_id=call.step.call.id, waits_for="remote", question=reply.text)
            await self._record(paused_event(call.run, (wait,)))
            return
        duration_ms = round((time.monotonic() - started) * 1000)
        await before
        ended = call.about(duration_ms=duration_ms, remote_task=stop.task_id)
        await self.end(call.run, call.step, ended, reply)

    async def refuse(self, run: RunState, step: CallStep, reference: str, reply: ToolReply) -> None:
        """Record a call that is not made, with the reason as its result."""
        tool_id = reference.partition("@")[0]
        refused = RunCall(call_id=step.call.id, tool_id=tool_id, arguments=step.call.arguments)
        await self.end(run, step, refused, reply)

    async def end(self, run: RunState, step: CallStep, call: RunCall, reply: ToolReply) -> None:
        """Record the result of a call; in place of one that the log does not take, the reason. Raises CallError."""
        if len(reply.text) > MOST_CHARACTERS:
            problem = f"the result has {len(reply.text)} characters; at most {MOST_CHARACTERS}"
            reply = ToolReply(problem, "too_large")
        try:
            await self._record(_call_ended(run, step, call, reply))
        except CallError as exc:
            await self._record(_call_ended(run, step, call, ToolReply(exc.message, exc.kind)))

    async def _apart(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(copy_context().run, call, *arguments)
        )


def _read_by(run: RunState) -> Iterator[ReadPart]:
    """Yield what a run has read, each part with its source; in a run that answers a call, its caller is no user."""
    messages = () if run.checkpoint is None else run.checkpoint.messages()
    if read_memory(run.request.memory_config or "{}").has_items:
        yield ReadPart("remembered", "", "")
    for part in text_parts([message.message for message in (*messages, *run.steps.messages)]):
        if part.kind != "user" or run.request.parent is None:
            yield part


def _call_ended(run: RunState, step: CallStep, call: RunCall, reply: ToolReply) -> ThreadEvent:
    message = Message(role="tool", content=reply.text, tool_call_id=step.call.id)
    call = replace(call, error=reply.error)
    return step_event(run, "call_ended", step.call.id, messages=(message,), call=call)


def paused_event(run: RunState, waits: Sequence[PausedCall]) -> ThreadEvent:
    """Return the event that a run waits for these."""
    names = [f"{wait.call_id} {wait.waits_for}" for wait in waits]
    return step_event(run, "run_paused", run.steps.pauses, *names, waits=tuple(waits))


def step_event(run: RunState, kind: Any, *about: object, **fields: Any) -> ThreadEvent:
    """Return an event of a step of a run; its id is derived from its answer's turn, and what it is `about`."""
    turn_id = fields.setdefault("turn_id", run.steps.turns[-1] if run.steps.turns else None)
    return run_event(run, kind, ACTOR, turn_id, *about, **fields)
