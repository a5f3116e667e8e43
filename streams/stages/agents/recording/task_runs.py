"""Start and end runs: write `started`, `ended`, and the response of a task's run.

    begin ──► started, with the version of its group ──► calls … ──► end ──► no call is open ──► ended ──► response

Only the server knows which calls are open and how many turns there are, so it writes all of them, whichever process
runs the agents. Both requests may be repeated: nothing is done twice. An end is recorded first and then folded into the
response, so after kill -9 between the two, the next server makes the same bytes. A run without a task begins with its
first call, and ends when no call came for serve.idle_s. Any run ends after serve.longest_s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from schemas.events import AgentProgram, ForkPoint, Observed, Purpose, Sampling, TrajectoryEvent, derive_id
from schemas.serde import EncodeError
from streams.errors import CallError, EventError, LogError
from streams.kafka import times
from streams.settings.model import Serve
from streams.stages.agents.recording.conversations import Conversation, Conversations
from streams.stages.agents.recording.run_end import EndOfRun, TrajectoryEnd
from streams.stages.agents.recording.served_versions import PolicyVersions
from streams.stages.agents.recording.trajectory_events import end_of, start_of
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import response_of
from streams.stages.agents.trajectories.run_answer import printed_answer

LOOK_S = 0.02
"""How often a run that is ending is checked, while one of its calls is open."""

log = logging.getLogger("streamward.agents")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryOrder:
    """The request to start a run: one slot of an attempt at a task."""

    agent_id: str
    trajectory_id: str
    task_id: str
    sampling_id: str
    slot: int
    group_size: int
    policy: str
    purpose: Purpose
    sampling: Sampling
    adapter_version: int | None
    """The version that its task is pinned to."""
    max_turns: int | None
    metadata: dict[str, str]
    traceparent: str | None
    observed: Observed | None = None
    """The first observation of its environment."""
    prompt_version: str | None = None
    """NAME@VERSION of the prompt that its task's messages begin with."""
    program: AgentProgram | None = None
    """The task that is run."""
    subject: str | None = None
    """The person that its task is of."""
    fork: ForkPoint | None = None
    """The recorded moment that its task begins at."""

    def began(self, version: int, now: int) -> TrajectoryEvent:
        """Return its beginning. A user may be waiting for the answer to a `serve` task, so its agent decides how to
        sample."""
        return TrajectoryEvent(
            event_id=derive_id(self.trajectory_id, "started"),
            trajectory_id=self.trajectory_id,
            task_id=self.task_id,
            created_at=now,
            traceparent=self.traceparent,
            metadata=self.metadata,
            subject=self.subject,
            kind="started",
            agent_id=self.agent_id,
            policy=self.policy,
            purpose=self.purpose,
            sampling_id=self.sampling_id,
            slot=self.slot,
            group_size=self.group_size,
            adapter_version=version,
            max_turns=self.max_turns,
            prompt_version=self.prompt_version,
            sampling=None if self.purpose == "serve" else self.sampling,
            observed=self.observed,
            program=self.program,
            fork=self.fork,
            reason=f"slot {self.slot} of its task",
        )


class TaskRuns:
    """Begins and ends runs, in one event loop."""

    def __init__(self, rule: Serve, versions: PolicyVersions, writer: TurnWriter, conversations: Conversations) -> None:
        self._rule, self._versions, self._writer, self._conversations = rule, versions, writer, conversations
        self._beginning: dict[str, asyncio.Future[None]] = {}
        """Starts that the broker has not acknowledged, by trajectory."""
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def begin(self, order: TrajectoryOrder) -> Conversation:
        """Return the run once its beginning is in the log, which may have been long ago, and its end if it is ending.

        Raises CallError.
        """
        name = order.trajectory_id
        self._conversations.check_remembered(name)
        if (run := self._conversations.by_id.get(name)) is None:
            run = self._begin_run(order)
        elif run.began is None or (run.agent_id, run.task_id) != (order.agent_id, order.task_id):
            text = f"trajectory {name} is there already, of agent {run.agent_id} and task {run.task_id}"
            raise CallError("conflict", f"{text}; a run of a task has the id of its slot's response")
        run.differs = run.differs or self._why_different(run)
        if (written := self._beginning.get(name)) is not None:
            await self._wait_acknowledged(written, "beginning")
        if (ending := self._ending.get(name)) is not None:  # a client that begins it again must know that it is over
            await self._wait_acknowledged(ending, "end")
        if run.differs is not None and run.end is None:
            await self._wait_acknowledged(self._start_ending(run, TrajectoryEnd("failed", run.differs)), "end")
        return run

    async def end(self, agent_id: str, trajectory_id: str, end: TrajectoryEnd) -> Conversation:
        """Return the run once its end and its response are in the log; the first end counts. Raises CallError.

        Calls in progress are cancelled; those of a completed run have serve.acknowledge_s to end.
        """
        run = self._conversations.by_id.get(trajectory_id)
        if run is None or run.began is None or run.agent_id != agent_id:
            raise CallError("not_found", f"agent {agent_id} began no run {trajectory_id}; begin it first")
        if end.answer is not None and run.end is None and end.answer not in run.called | run.chains.turns.keys():
            text = f"run {trajectory_id} has no answer with the id {end.answer!r}"
            raise CallError("invalid", f"{text}; send that of a model's answer, or leave it out", "answer")
        await self._wait_acknowledged(self._start_ending(run, end), "end")
        return run

    def finish(self) -> None:
        """Write the records that the previous server was killed before writing: starts of trajectories, responses of
        runs."""
        for run in list(self._conversations.by_id.values()):
            if not run.started and (first := next(run.turns, None)) is not None:
                self._writer.write(start_of(run, first))
                run.started = True
            if run.end is not None and not run.responded:
                self._start_ending(run, TrajectoryEnd("completed", ""))  # the end in the log is the one that counts

    def end_idle(self, keeps_open: Callable[[str], bool] = lambda _: False, outcome: EndOfRun = lambda _: None) -> None:
        """End runs without a call for serve.idle_s, those of tasks after serve.longest_s; forget older ones.

        Leaves those that something `keeps_open`, by their names. `outcome`: how one of these ended.
        """
        now = times.now_ms()
        since, oldest = now - int(self._rule.idle_s * 1000), now - int(self._rule.longest_s * 1000)
        for run in self._conversations.idle(since, oldest):
            if run.closed is None and keeps_open(run.trajectory_id):
                continue
            old = run.begun_at < oldest
            reason = f"it began {self._rule.longest_s:g} s ago" if old else f"no call for {self._rule.idle_s:g} s"
            reason = run.closed or reason
            if run.began is not None and run.end is None:
                if old:
                    self._start_ending(run, TrajectoryEnd("timeout", reason))
                continue
            if run.started and not run.ended and run.sampling_id is None:
                run.ended = True
                end = (outcome(run.trajectory_id) or TrajectoryEnd("completed", ""))._replace(reason=reason)
                self._writer.write(end_of(run, self._versions.policy, end, now))
            if old or run.closed is not None:
                self._conversations.forget(run)

    def _begin_run(self, order: TrajectoryOrder) -> Conversation:
        """Write the beginning of a run. Raises CallError."""
        name = order.trajectory_id
        event = order.began(self._version_for(order), times.now_ms())
        try:
            written = asyncio.wrap_future(self._writer.write(event))
        except (EventError, EncodeError) as exc:
            raise CallError("invalid", f"the run cannot be recorded: {exc}") from exc
        self._beginning[name] = written
        written.add_done_callback(lambda _: self._beginning.pop(name))
        self._conversations.take(event)
        return self._conversations.by_id[name]

    def _version_for(self, order: TrajectoryOrder) -> int:
        """Return the version that answers an attempt: its task's, else that of its first run."""
        if order.adapter_version is not None:
            return order.adapter_version
        pins = (sibling.adapter_version for sibling in self._siblings(order.sampling_id, order.group_size))
        pinned = next((version for version in pins if version is not None), None)
        return self._versions.version_for(order.policy, order.task_id, None) if pinned is None else pinned

    def _why_different(self, run: Conversation) -> str | None:
        """Return why a run started differently from its siblings, in an environment that should start all the same.
        They are compared with each other, and some would be easier by luck.
        """
        began = run.began
        if began is None or began.observed is None or began.sampling_id is None:
            return None
        for other in self._siblings(began.sampling_id, began.group_size or 0):
            if other.differs is not None or (other.end is not None and other.end.ending == "failed"):
                continue  # it is compared with none of them
            first = None if other.began is None else other.began.observed
            if first is not None and first != began.observed:
                own_start, its = (
                    f"{observed.environment}, seed {observed.seed}, {observed.digest[:12]}"
                    for observed in (began.observed, first)
                )
                text = (
                    f"siblings_differ: its environment began with {own_start}, and that of slot {other.slot} with {its}"
                )
                return f"{text}; an environment shows the same for the same seed"
        return None

    def _siblings(self, sampling_id: str, group_size: int) -> Iterator[Conversation]:
        """Yield the runs of an attempt that are remembered, in the order of their slots."""
        for slot in range(group_size):
            run = self._conversations.by_id.get(derive_id(sampling_id, slot))
            if run is not None and run.sampling_id == sampling_id:
                yield run

    def _start_ending(self, run: Conversation, end: TrajectoryEnd) -> asyncio.Task[None]:
        """Begin to end a run, unless it is ending already."""
        name = run.trajectory_id

        def forget(task: asyncio.Task[None]) -> None:
            del self._ending[name]
            if not task.cancelled() and (problem := task.exception()) is not None:
                log.error("run %s is not ended: %s", name, problem)

        if name not in self._ending:
            self._ending[name] = asyncio.create_task(self._end(run, end))
            self._ending[name].add_done_callback(forget)
        return self._ending[name]

    async def _end(self, run: Conversation, end: TrajectoryEnd) -> None:
        if run.responded:
            return
        written: list[Awaitable[None]] = []
        if run.end is None:
            run.ending = True
            await self._no_call_is_open(run, self._rule.acknowledge_s if end.ending == "completed" else 0)
            event = end_of(run, self._versions.policy, _with_answer(run, end), times.now_ms())
            written.append(asyncio.wrap_future(self._writer.write(event)))
            self._conversations.take(event)
            run.ending = False
        written.append(self._write_response(run))
        await asyncio.gather(*written)
        run.responded = True

    async def _no_call_is_open(self, run: Conversation, within_s: float) -> None:
        """Return once every turn of a run is acknowledged; what is still answered after `within_s` is cancelled."""
        limit = time.monotonic() + within_s
        while run.open_calls:
            if time.monotonic() >= limit:
                for call in run.in_progress:
                    call.cancel()
            await asyncio.sleep(LOOK_S)

    def _write_response(self, run: Conversation) -> asyncio.Future[None]:
        """Write the response of a run that has ended; one too large for a record becomes a failed one."""
        if run.end is None:
            raise ValueError(f"run {run.trajectory_id} has not ended")
        trajectory = fold(run.turns, run.end)
        response = response_of(trajectory, run.end)
        run.error = response.error
        if trajectory.doubt is not None:
            log.warning("run %s of task %s: %s", run.trajectory_id, run.task_id, response.error)
        try:
            return asyncio.wrap_future(self._writer.write(response))
        except (EventError, EncodeError) as exc:
            failed = response_of(trajectory, run.end, f"too_large: {exc}")
            return asyncio.wrap_future(self._writer.write(failed))

    async def _wait_acknowledged(self, written: asyncio.Future[None], event_name: str) -> None:
        """Return once a record is in the log. Raises CallError if that takes too long."""
        within_s = 2 * self._rule.acknowledge_s  # half of it is for calls that are still answered
        try:
            await asyncio.wait_for(asyncio.shield(written), within_s)
        except (TimeoutError, LogError) as exc:
            raise CallError(
                "busy", f"the {event_name} of the run is not recorded after {within_s:g} s; try again"
            ) from exc


def _with_answer(run: Conversation, end: TrajectoryEnd) -> TrajectoryEnd:
    """Return the end of a run with the turn that its program printed, if the end does not name it."""
    if end.answer is not None or end.answer_rule is not None or end.output is None:
        return end
    trajectory = fold(run.turns)
    others = [step.turn for step in trajectory.steps if step.left_out in (None, "auxiliary")]
    others += [chain.turns[-1] for chain in trajectory.chains[:1]]
    return end._replace(answer=printed_answer(trajectory.answers, others, end.output))
