"""Answer the runs of threads, through the recorder that answers every call of an agent.

    threads ──► the run in progress of each ──► ModelCall, of the trajectory with its id ──► recorder ──► turn
                the prompt of its agent ──┘      ▲                                                        │
                call_ended: a result ◄── tool ◄──┴────────────────── run_answered: it calls tools ◄───────┤
                                                                     run_ended: it calls none     ◄───────┘

A run is in the log before it is acknowledged, and all of its state is in the log, step by step. After kill -9 the next
server finds the runs in progress and continues them at the last recorded step: the recorder returns the logged answer,
or samples one with the same seed, and no call of a tool that has a result is made again (run_actions.py).

A log has one server at a time; a second is refused (streams/kafka/idle_member.SoleMember), since both would answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from gateway.http import errors
from plugins.agents.registry.agent_log import read_memory
from plugins.threads.acp.busy_retries import AGAIN_S, end_tasks, until_accepted, until_possible
from plugins.threads.acp.child_runs import ChildRuns
from plugins.threads.acp.run_actions import ACTOR, CallPlaces, RunActions, step_event
from plugins.threads.acp.run_frames import StreamPlace, frames
from plugins.threads.acp.run_limits import RunLimits, RunOutcome, outcome_of_handoff
from plugins.threads.acp.run_prompts import KnowsPrompts, with_prompt_and_items
from plugins.threads.acp.thread_access import id_of
from plugins.threads.log.compaction import as_read
from plugins.threads.log.memory_log import MemoryLog
from plugins.threads.log.memory_search import memories
from plugins.threads.log.memory_state import items_read, text_of_items
from plugins.threads.log.thread_log import Appended, ThreadLog, run_event
from plugins.threads.log.thread_settings import Threads
from plugins.threads.log.thread_state import RunState, ThreadState, last_turns
from schemas import json_text
from schemas.events import HANDOFF, PROGRAM_RUN, ThreadEvent
from schemas.serde import EncodeError
from streams.errors import CallError, EventError, LogError, NotFoundError
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.tasks.line_steps import LineSteps

E = TypeVar("E")
T = TypeVar("T")
log = logging.getLogger("streamward.threads")


class AnswersCall(KnowsPrompts, Protocol):
    """The recorder of the agents' stage."""

    def answer(self, call: ModelCall) -> Any:
        """Answer, `Begun` first. Raises CallError."""


CallOf = Callable[[RunState], Awaitable[ModelCall]]
"""Returns the call that a run makes of the model. Raises CallError."""
AnswersByProgram = Callable[[RunState, CallOf], Awaitable[RunOutcome]]
"""Returns the answer of the program of a run's agent; what it gets to read is that of the call."""


@dataclass(slots=True, eq=False)
class RunFeed:
    """What a run's readers wait for: sampled text, and changes of state."""

    thread_id: str
    text: str = ""
    items: str | None = None
    """The items of the store, as its first answer read them: so its later calls begin with the same messages."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    readers: int = 0

    def tell(self) -> None:
        """Wake every reader."""
        self.news.set()
        self.news = asyncio.Event()


class ThreadRuns:
    """The threads of a server, and the runs that it answers. Use as a context manager, around its event loop."""

    def __init__(
        self,
        settings: Settings,
        recorder: AnswersCall,
        memory: Callable[[], MemoryLog],
        steps: LineSteps,
        programs: AnswersByProgram,
        places: Callable[[], CallPlaces] = lambda: CallPlaces(None, None),
    ) -> None:
        """`memory` opens the agents' store, `steps` find the prompts of agents, and `places` say where calls of tools
        go. Raises SettingsError for limits that cannot be.
        """
        self._programs = programs
        self._settings, self._recorder, self._memory, self._steps = settings, recorder, memory, steps
        self._limits, max_depth = RunLimits(settings), settings.of_plugin(Threads).max_depth
        self._actions = RunActions(
            places, self.record, lambda *call: self.children.answer(*call), lambda run: self.children.callers_of(run)
        )
        self.children = ChildRuns(self, self._actions, lambda: places().agents, max_depth)
        self._threads = FollowedOnDemand(lambda settings: ThreadLog(settings, self._pass_on), settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._feeds: dict[str, RunFeed] = {}
        self._stopping, self._has_topic = False, True
        self.listeners: list[Callable[[ThreadState], None]] = []
        """They get each thread that is read or has changed, in the event loop."""

    def __enter__(self) -> ThreadRuns:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.__exit__(*exc)

    # --- the log ------------------------------------------------------------------------------------------------------

    async def open(self) -> ThreadLog:
        """Return the threads; the first time, answer the runs that are in progress. Raises CallError."""
        if (threads := self._threads.current) is None:
            self._loop = asyncio.get_running_loop()
            threads = await errors.apart(self._threads.open)
            for state in threads.threads():
                self._take(state)
        return threads

    async def resume(self) -> None:
        """Answer the runs that the previous server left in progress, as soon as the log can be read."""
        while not self._stopping:
            try:
                await self.open()
                return
            except CallError as exc:
                log.warning("threads are not read yet: %s", exc)
                self._has_topic = exc.kind == "busy"
            if not self._has_topic:
                return
            await asyncio.sleep(AGAIN_S)

    async def append(self, event: ThreadEvent) -> Appended:
        """Write an event. Raises CallError."""
        return await self._write((await self.open()).append, event)

    async def append_all(self, events: Sequence[ThreadEvent]) -> None:
        """Write events. Raises CallError."""
        await self._write((await self.open()).append_all, events)

    async def _write(self, write: Callable[[E], T], events: E) -> T:
        try:
            return await errors.apart(write, events)
        except (EventError, EncodeError) as exc:
            is_too_large = isinstance(exc, EventError) and exc.reason == "too_large"
            raise CallError("too_large" if is_too_large else "invalid", str(exc)) from exc

    def _pass_on(self, state: ThreadState) -> None:
        """Notify the event loop that a thread has changed."""
        if self._threads.current is not None and self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(self._take, state)

    # --- answering ----------------------------------------------------------------------------------------------------

    def _take(self, state: ThreadState) -> None:
        """Update a thread: answer its run in progress, and no other."""
        for listener in self.listeners:
            listener(state)
        if not self._stopping and (threads := self._threads.current) is not None:
            self.children.take(threads, state)
            self._actions.take(state)
        for run_id, feed in list(self._feeds.items()):
            if feed.thread_id == state.thread_id:
                feed.tell()
                task = self._running.get(run_id)
                if task is not None and state.active != run_id:
                    task.cancel()
        run = None if self._stopping else state.runs.get(state.active or "")
        if run is None or run.run_id in self._running or run.status != "pending":
            return
        feed = self._feed(run)
        task = asyncio.get_running_loop().create_task(self._run(run, feed))
        self._running[run.run_id] = task
        task.add_done_callback(lambda _: self._leave_or_again(run))

    def _feed(self, run: RunState) -> RunFeed:
        return self._feeds.setdefault(run.run_id, RunFeed(run.thread_id))

    def _leave_or_again(self, run: RunState) -> None:
        """Take in that nothing is done for a run any more; it may have been resumed meanwhile."""
        self._forget(run.run_id)
        if not self._stopping and (threads := self._threads.current) is not None:
            with contextlib.suppress(LogError):
                state = threads.last(run.thread_id)
                if state is not None and state.active == run.run_id:
                    self._take(state)

    def _forget(self, run_id: str) -> None:
        self._running.pop(run_id, None)
        feed = self._feeds.get(run_id)
        if feed is not None and not feed.readers:
            del self._feeds[run_id]

    async def _run(self, run: RunState, feed: RunFeed) -> None:
        try:
            by_program = self._programs(run, partial(self._call, feed=feed)) if run.task_id else None
            outcome = await (by_program or self._outcome(run, feed))
            if outcome is not None:
                await self._write_end(run, outcome)
        except CallError as exc:  # of its answer, which cannot be written
            await self._write_end(run, RunOutcome("error", error=exc.message))
        except asyncio.CancelledError:
            return  # it was cancelled, or the server stops and the next one continues it
        except Exception:  # whatever a model does, its run must end
            log.exception("run %s failed", run.run_id)
            await self._write_end(run, RunOutcome("error", error="the server failed; its output says why"))

    async def _outcome(self, run: RunState, feed: RunFeed) -> RunOutcome | None:
        """Return how a run ends, after its steps; None if it waits for an answer, or has ended."""
        try:
            async with asyncio.timeout(self._limits.left_s(run)):
                while run.status == "pending":
                    doing = f"run {run.run_id}"
                    if (outcome := await until_possible(partial(self._step, run, feed), doing)) is not None:
                        return outcome
                    run = await until_possible(partial(self._find, run.run_id), doing)
        except TimeoutError:
            return self._limits.timeout()
        return None

    async def _step(self, run: RunState, feed: RunFeed) -> RunOutcome | None:
        """Make the next call of a run, or record its next answer; return how it ends, None if it continues.

        Raises CallError; `busy` before anything was done.
        """
        if (outcome := outcome_of_handoff(run.steps)) is not None:
            return outcome
        if (limit := self._limits.limit_of(run, self.children.callers_of(run))) is not None:
            return limit
        if run.steps.open_calls:
            await self._actions.act(run)
            return None
        outcome = await self._next_answer(run, feed)
        if not (outcome.messages and outcome.messages[0].tool_calls):
            return outcome
        await self._record_answer(run, outcome, feed)
        return None

    async def _find(self, run_id: str) -> RunState:
        return run_of(await self.open(), run_id)

    async def _next_answer(self, run: RunState, feed: RunFeed) -> RunOutcome:
        """Return the agent's next answer."""
        limit_s = self._settings.serve.answer_s or None
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await until_accepted(lambda: self._answer(run, feed))
        except CallError as exc:
            return RunOutcome("error", error=exc.message)
        except TimeoutError:
            if not limit.expired():
                raise
            return RunOutcome("timeout", error=f"there is no answer after {limit_s:g} s (serve.answer_s)")

    async def _answer(self, run: RunState, feed: RunFeed) -> RunOutcome:
        call, done, read = await self._call(run, feed), None, 0
        feed.text = ""
        pieces: AsyncIterator[Piece]
        async with aclosing(self._recorder.answer(call)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Begun):
                    read = piece.prompt_tokens
                elif isinstance(piece, Delta):
                    feed.text += piece.text
                    feed.tell()
                elif isinstance(piece, Done):
                    done = piece
        if done is None:
            return RunOutcome("error", error="the answer broke off")
        return RunOutcome("success", (done.message,), done.turn_id, None, read, len(done.tokens))

    async def _record_answer(self, run: RunState, outcome: RunOutcome, feed: RunFeed) -> None:
        """Record an answer that calls tools."""
        feed.text = ""  # the next answer is another message
        fields = outcome._asdict()
        del fields["ending"], fields["error"], fields["program_run"], fields["handoff"]
        await self.record(step_event(run, "run_answered", **fields))

    async def _call(self, run: RunState, feed: RunFeed) -> ModelCall:
        """Return the next call of the model that a run makes. Raises CallError."""
        messages = () if run.checkpoint is None else run.checkpoint.messages()
        steps, parts = run.steps, [run.thread_id, run.run_id]
        whole = tuple(message.message for message in (*messages, *steps.messages))
        memory = read_memory(run.request.memory_config or "{}")
        if memory.has_items and feed.items is None:
            read = await self._recorder.opening(run.run_id)
            if read is None:
                found = await errors.apart(memories, self._settings, memory, run.tenant, whole, self._memory)
            feed.items = text_of_items(found) if read is None else items_read(read)
        if steps.turns:
            parts.append(str(len(steps.turns)))
        call = ModelCall(
            agent_id=run.agent_id,
            subject=run.request.subject,
            trajectory_id=run.run_id,
            model=run.request.model or "",
            protocol="threads",
            messages=last_turns(as_read(whole, run.compaction), memory.turns),
            tools=run.tools,
            sampling=run.sampling,
            request_digest=hashlib.sha256(json_text.one_line(parts).encode()).hexdigest(),
            retry_key=":".join(parts[1:]),
            failed_tools=steps.failed_tools,
            thread=None if run.request.stateless else id_of(run.thread_id),
        )
        return await with_prompt_and_items(run, call, feed.items or "", self._recorder, self._steps)

    async def _write_end(self, run: RunState, outcome: RunOutcome) -> None:
        answered_by = ((PROGRAM_RUN, outcome.program_run), (HANDOFF, outcome.handoff))
        event = run_event(
            run,
            "run_ended",
            ACTOR,
            ending=outcome.ending,
            turn_id=outcome.turn_id,
            error=outcome.error,
            metadata={name: value for name, value in answered_by if value is not None},
            prompt_tokens=outcome.prompt_tokens or None,
            completion_tokens=outcome.completion_tokens or None,
            messages=outcome.messages,
        )
        await self.record(event)

    async def record(self, event: ThreadEvent) -> Appended:
        """Write an event about a run; wait for the broker as long as it takes. Raises CallError if it is too large."""
        return await until_possible(lambda: self.append(event), f"{event.kind} of run {event.run_id}")

    def is_open(self, run_id: str) -> bool:
        """Return whether a run has not ended; True also while the threads cannot be read."""
        with contextlib.suppress(LogError):
            if (threads := self._threads.current) is not None:
                return (run := threads.find(run_id)) is not None and run.is_open
        return self._has_topic

    # --- reading ------------------------------------------------------------------------------------------------------

    async def wait(self, run_id: str) -> RunState:
        """Return a run once it has ended, or waits for an answer. Raises CallError."""
        async with aclosing(self.changes(run_id)) as changes:
            async for run, _ in changes:
                if run.status != "pending":
                    return run
        raise AssertionError("not reached")

    async def stream(self, run_id: str, modes: tuple[str, ...], after: StreamPlace) -> AsyncGenerator[bytes, None]:
        """Yield the events of a run after a place, until it has ended or waits for an answer. Raises CallError."""
        async with aclosing(self.changes(run_id)) as changes:
            async for run, text in changes:
                for frame in frames(run, text, modes, after):
                    after = frame.place
                    yield frame.encode()

    def end_of(self, run_id: str) -> TrajectoryEnd | None:
        """Return how a run ended: with the answer of another agent, or asking a person, who gave no answer."""
        threads = self._threads.current
        with contextlib.suppress(LogError):
            run = None if threads is None else threads.find(run_id)
            if run is not None and run.steps.handoff is not None and run.ending == "success":
                return TrajectoryEnd("completed", "", output=run.steps.handoff.text)
            if threads is not None and run is not None and _needs_consent(threads, run):
                return TrajectoryEnd("completed", "", needs_consent=True)
        return None

    async def changes(self, run_id: str) -> AsyncGenerator[tuple[RunState, str], None]:
        """Yield a run and its text so far, again and again until it has ended or waits for an answer.

        Raises CallError.
        """
        feed = self._feed(run_of(await self.open(), run_id))
        feed.readers += 1
        try:
            while True:
                news = feed.news
                run = run_of(await self.open(), run_id)
                yield run, feed.text
                if run.status != "pending":
                    return
                await news.wait()
        finally:
            feed.readers -= 1
            if run_id not in self._running:
                self._forget(run_id)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def leave(self, run_id: str, actor: str) -> None:
        """Cancel a run whose client has hung up, unless that is because the server stops."""
        if not self._stopping:
            task = asyncio.get_running_loop().create_task(self.cancel(run_id, actor))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def cancel(self, run_id: str, actor: str, *, rolled_back: bool = False) -> None:
        """End a run as cancelled, if it has not ended. Raises CallError."""
        run = run_of(await self.open(), run_id)
        if run.is_open:
            await self.append(run_event(run, "run_cancelled", actor, rolled_back=rolled_back))

    def stop(self) -> None:
        """Begin no more runs; those in progress end, or are left to the next server."""
        self._stopping = True

    async def close(self) -> None:
        """Leave the runs in progress to the next server, after the calls of tools that they make."""
        self.stop()
        await self._actions.close()
        await self.children.close()
        await end_tasks(self._running.values())


def _needs_consent(threads: ThreadLog, run: RunState) -> bool:
    """Return whether a run, or one that answers a call of it, asked a person who gave no answer. Raises LogError."""
    for step in run.steps.waiting:
        child = threads.find(run.child_id(step.call)) if step.waits_for == "child" else None
        if step.waits_for in ("consent", "unfinished") or (child is not None and _needs_consent(threads, child)):
            return True
    return False


def run_of(threads: ThreadLog, run_id: str) -> RunState:
    """Return a run. Raises CallError."""
    try:
        return threads.run(run_id)
    except NotFoundError as exc:
        raise CallError("not_found", str(exc), "run_id") from exc
    except LogError as exc:
        raise CallError("busy", f"{exc}; try again") from exc
