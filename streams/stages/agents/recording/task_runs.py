"""The beginning and the end of runs: `started`, `ended`, and the response that a task's run comes to.

    begin ──► started, with the version of its group ──► calls … ──► end ──► no call is open ──► ended ──► response

Only the server knows which calls are open and how many turns there are, so it writes all of them, for whoever runs the
agents. Both requests may be repeated: what was done before is not done again. An end is recorded first and folded into
the response then, so after kill -9 between the two, the next server makes the same bytes of it.

A run that is no task's begins with its first call, and ends when none came for serve.idle_s. One that nobody ends ends
after serve.longest_s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from schemas.events import Observed, Purpose, Sampling, TrajectoryEvent, derive_id
from schemas.serde import EncodeError
from streams.errors import CallError, EventError, LogError
from streams.kafka import times
from streams.settings.model import Serve
from streams.stages.agents.recording.conversations import Conversation, Conversations
from streams.stages.agents.recording.served_versions import PolicyVersions
from streams.stages.agents.recording.trajectory_events import end_of, start_of
from streams.stages.agents.recording.turn_writer import TurnWriter
from streams.stages.agents.runs.run_end import RunEnd
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import response_of

LOOK_S = 0.02
"""How often a run that ends is looked at, while a call of it is open."""

log = logging.getLogger("streamward.agents")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a run is asked to be: one slot of an attempt at a task."""

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
    """What its environment showed at first."""

    def began(self, version: int, now: int) -> TrajectoryEvent:
        """Return its beginning. Somebody may still read the answer to a `serve` task, so its agent decides how."""
        return TrajectoryEvent(
            event_id=derive_id(self.trajectory_id, "started"),
            trajectory_id=self.trajectory_id,
            task_id=self.task_id,
            created_at=now,
            traceparent=self.traceparent,
            metadata=self.metadata,
            kind="started",
            agent_id=self.agent_id,
            policy=self.policy,
            purpose=self.purpose,
            sampling_id=self.sampling_id,
            slot=self.slot,
            group_size=self.group_size,
            adapter_version=version,
            max_turns=self.max_turns,
            sampling=None if self.purpose == "serve" else self.sampling,
            observed=self.observed,
            reason=f"slot {self.slot} of its task",
        )


class TaskRuns:
    """Begins and ends runs. All of it in one event loop."""

    def __init__(self, rule: Serve, versions: PolicyVersions, writer: TurnWriter, conversations: Conversations) -> None:
        self._rule, self._versions, self._writer, self._conversations = rule, versions, writer, conversations
        self._beginning: dict[str, asyncio.Future[None]] = {}
        """Beginnings that the broker has not acknowledged, by trajectory."""
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def begin(self, order: RunOrder) -> Conversation:
        """Return the run once its beginning is in the log, which may have been long ago, and its end if it is ending.

        Raises CallError.
        """
        name = order.trajectory_id
        self._conversations.check_remembered(name)
        if (known := self._conversations.by_id.get(name)) is None:
            known = self._begun(order)
        elif known.began is None or (known.agent_id, known.task_id) != (order.agent_id, order.task_id):
            what = f"trajectory {name} is there already, of agent {known.agent_id} and task {known.task_id}"
            raise CallError("conflict", f"{what}; a run of a task has the id of its slot's response")
        known.differs = known.differs or self._differs(known)
        if (written := self._beginning.get(name)) is not None:
            await self._acknowledged(written, "beginning")
        if (ending := self._ending.get(name)) is not None:  # who begins it again must know that it is over
            await self._acknowledged(ending, "end")
        if known.differs is not None and known.end is None:
            await self._acknowledged(self._ended(known, RunEnd("failed", known.differs)), "end")
        return known

    async def end(self, agent_id: str, trajectory_id: str, end: RunEnd) -> Conversation:
        """Return the run once its end and its response are in the log; the first end counts. Raises CallError.

        Calls in progress are cancelled; those of a run that completed have serve.acknowledge_s to end.
        """
        known = self._conversations.by_id.get(trajectory_id)
        if known is None or known.began is None or known.agent_id != agent_id:
            raise CallError("not_found", f"agent {agent_id} began no run {trajectory_id}; begin it first")
        await self._acknowledged(self._ended(known, end), "end")
        return known

    def finish(self) -> None:
        """Write what the server before this one was killed over: beginnings of trajectories, responses of runs."""
        for known in list(self._conversations.by_id.values()):
            if not known.started and (first := next(known.turns, None)) is not None:
                self._writer.write(start_of(known, first))
                known.started = True
            if known.end is not None and not known.responded:
                self._ended(known, RunEnd("completed", ""))  # the end in the log is the one that counts

    def end_idle(self) -> None:
        """End runs without a call for serve.idle_s, those of tasks after serve.longest_s; forget what is that old."""
        now = times.now_ms()
        since, oldest = now - int(self._rule.idle_s * 1000), now - int(self._rule.longest_s * 1000)
        for known in self._conversations.idle(since, oldest):
            old = known.begun_at < oldest
            reason = f"it began {self._rule.longest_s:g} s ago" if old else f"no call for {self._rule.idle_s:g} s"
            reason = known.closed or reason
            if known.began is not None and known.end is None:
                if old:
                    self._ended(known, RunEnd("timeout", reason))
                continue
            if known.started and not known.ended and known.sampling_id is None:
                known.ended = True
                self._writer.write(end_of(known, self._versions.policy, RunEnd("completed", reason), now))
            if old or known.closed is not None:
                self._conversations.forget(known)

    def _begun(self, order: RunOrder) -> Conversation:
        """Write the beginning of a run. Raises CallError."""
        name = order.trajectory_id
        event = order.began(self._version(order), times.now_ms())
        try:
            written = asyncio.wrap_future(self._writer.write(event))
        except (EventError, EncodeError) as exc:
            raise CallError("invalid", f"the run cannot be recorded: {exc}") from exc
        self._beginning[name] = written
        written.add_done_callback(lambda _: self._beginning.pop(name))
        self._conversations.take(event)
        return self._conversations.by_id[name]

    def _version(self, order: RunOrder) -> int:
        """Return the version that answers an attempt: its task's, else what its first run was given."""
        if order.adapter_version is not None:
            return order.adapter_version
        pins = (one.adapter_version for one in self._siblings(order.sampling_id, order.group_size))
        pinned = next((version for version in pins if version is not None), None)
        return self._versions.version_for(order.policy, order.task_id, None) if pinned is None else pinned

    def _differs(self, known: Conversation) -> str | None:
        """Return why a run did not begin as its siblings did, in an environment that should show all of them the same.

        They would be compared with each other, and it would be luck which of them was easier.
        """
        began = known.began
        if began is None or began.observed is None or began.sampling_id is None:
            return None
        for other in self._siblings(began.sampling_id, began.group_size or 0):
            if other.differs is not None or (other.end is not None and other.end.ending == "failed"):
                continue  # it is compared with none of them
            first = None if other.began is None else other.began.observed
            if first is not None and first != began.observed:
                mine, its = (
                    f"{one.environment}, seed {one.seed}, {one.digest[:12]}" for one in (began.observed, first)
                )
                what = f"siblings_differ: its environment began with {mine}, and that of slot {other.slot} with {its}"
                return f"{what}; an environment shows the same for the same seed"
        return None

    def _siblings(self, sampling_id: str, group_size: int) -> Iterator[Conversation]:
        """Yield the runs of an attempt that are remembered, in the order of their slots."""
        for slot in range(group_size):
            one = self._conversations.by_id.get(derive_id(sampling_id, slot))
            if one is not None and one.sampling_id == sampling_id:
                yield one

    def _ended(self, known: Conversation, end: RunEnd) -> asyncio.Task[None]:
        """Begin to end a run, unless it is ending already."""
        name = known.trajectory_id

        def over(task: asyncio.Task[None]) -> None:
            del self._ending[name]
            if not task.cancelled() and (problem := task.exception()) is not None:
                log.error("run %s is not ended: %s", name, problem)

        if name not in self._ending:
            self._ending[name] = asyncio.create_task(self._end(known, end))
            self._ending[name].add_done_callback(over)
        return self._ending[name]

    async def _end(self, known: Conversation, end: RunEnd) -> None:
        if known.responded:
            return
        written: list[Awaitable[None]] = []
        if known.end is None:
            known.ending = True
            await self._no_call_is_open(known, self._rule.acknowledge_s if end.ending == "completed" else 0)
            event = end_of(known, self._versions.policy, end, times.now_ms())
            written.append(asyncio.wrap_future(self._writer.write(event)))
            self._conversations.take(event)
            known.ending = False
        written.append(self._response(known))
        await asyncio.gather(*written)
        known.responded = True

    async def _no_call_is_open(self, known: Conversation, within_s: float) -> None:
        """Return once every turn of a run is acknowledged; what is still answered after `within_s` is cancelled."""
        limit = time.monotonic() + within_s
        while known.open_calls:
            if time.monotonic() >= limit:
                for call in known.in_progress:
                    call.cancel()
            await asyncio.sleep(LOOK_S)

    def _response(self, known: Conversation) -> asyncio.Future[None]:
        """Write the response of a run that has ended; one that no record can hold becomes a failed one."""
        if known.end is None:
            raise ValueError(f"run {known.trajectory_id} has not ended")
        trajectory = fold(known.turns, known.end)
        try:
            return asyncio.wrap_future(self._writer.write(response_of(trajectory, known.end)))
        except (EventError, EncodeError) as exc:
            failed = response_of(trajectory, known.end, f"too_large: {exc}")
            return asyncio.wrap_future(self._writer.write(failed))

    async def _acknowledged(self, written: asyncio.Future[None], what: str) -> None:
        """Return once something is in the log. Raises CallError if that takes too long."""
        within_s = 2 * self._rule.acknowledge_s  # half of it is for calls that are still answered
        try:
            await asyncio.wait_for(asyncio.shield(written), within_s)
        except (TimeoutError, LogError) as exc:
            raise CallError("busy", f"the {what} of the run is not recorded after {within_s:g} s; try again") from exc
