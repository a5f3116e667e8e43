"""Answer the runs of threads whose agent has a program: each is a task, which `agents run` starts the program for.

    run ──► its task, of purpose serve ──► tasks ──► agents run ──► begin, the program, end ──► trajectories, turns
                                           run_ended ◄── what it printed, or the model's answer ◄──┘

The id of the task follows from that of the run, and the id of its trajectory from the task's place in the log: after
kill -9 the next server finds both, and starts nothing twice. A run that is cancelled or too late ends the program's run
in the log: its calls are refused from then on, its runner ends it, and it is not started if it had not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from gateway.http import errors
from plugins.threads.acp.busy_retries import AGAIN_S, until_possible
from plugins.threads.acp.run_actions import ACTOR
from plugins.threads.acp.run_execution import CallOf
from plugins.threads.acp.run_limits import RunOutcome
from plugins.threads.acp.thread_access import id_of
from plugins.threads.log.thread_state import RunState
from schemas.conventions import THREAD, conversation_of_task
from schemas.events import Ending, Message, RunEnding, Task, TrajectoryEvent, Turn, derive_id
from schemas.serde import EncodeError
from streams.access.tenants.tenant_names import tenant_in
from streams.errors import CallError, EventError
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.agents.recording.conversations import Conversation
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.recording.task_runs import TrajectoryOrder
from streams.stages.agents.trajectories.fold import fold
from streams.stages.tasks.task_index import SubmittedTask, TaskIndex

LOOK_S = 0.1
"""How often it is checked whether a program's run has ended."""
CLOCKS_MS = 60_000
"""How far the clocks of processes may differ: records are read from so long before the run."""


class RecordsRuns(Protocol):
    """The runs of tasks of a server: `ServedRuns`."""

    def has_ended(self, trajectory_id: str) -> bool:
        """Return whether the end of a run is in the log, and its response."""

    async def begin(self, order: TrajectoryOrder) -> Conversation:
        """Return the run once its beginning is in the log. Raises CallError."""

    async def end(self, agent_id: str, trajectory_id: str, end: TrajectoryEnd) -> Conversation:
        """Return the run once its end and its response are in the log. Raises CallError."""


class TaskOfRun(NamedTuple):
    """The task of a run, in the log, and the run of the program that works on it."""

    task: Task
    sampling_id: str

    @property
    def trajectory_id(self) -> str:
        """The id of the program's run."""
        return derive_id(self.sampling_id, 0)


class ProgramRuns:
    """Answers runs by the programs of their agents. Runs in one event loop."""

    def __init__(self, settings: Settings, tasks: Callable[[], TaskIndex], runs: RecordsRuns) -> None:
        """`tasks` returns the tasks of the log."""
        self._settings, self._tasks, self._runs = settings, tasks, runs
        self._stopping = False
        self._endings: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Leave the runs in progress to the next server."""
        self._stopping = True

    async def outcome(self, run: RunState, call_of: CallOf) -> RunOutcome:
        """Return the program's answer, once it has ended."""
        program: TaskOfRun | None = None
        limit_s = self._settings.serve.answer_s or None
        try:
            async with asyncio.timeout(limit_s):
                program = await self._task_of(run, call_of)
                while not self._runs.has_ended(program.trajectory_id):
                    await asyncio.sleep(LOOK_S)
                return await self._answer(run, program)
        except (CallError, EventError, EncodeError) as exc:
            return RunOutcome("error", error=str(exc))
        except TimeoutError:
            self._end_later(run, program, "timeout")
            problem = f"the program of agent {run.agent_id} did not end within {limit_s:g} s (serve.answer_s)"
            return RunOutcome("timeout", error=f"{problem}; does `streamward agents run` serve that agent?")
        except asyncio.CancelledError:
            if not self._stopping:
                self._end_later(run, program, "cancelled")
            raise

    async def _task_of(self, run: RunState, call_of: CallOf) -> TaskOfRun:
        """Return the task of a run, written if it is missing, as often as that takes.

        Raises CallError, EventError, EncodeError for a run that can be no task.
        """

        async def find_or_submit() -> SubmittedTask:
            if (known := await errors.apart(lambda: self._tasks().find(run.task_id))) is not None:
                return known
            task = _task(run, await call_of(run))
            return await errors.apart(lambda: self._tasks().submit(task))

        found = await until_possible(find_or_submit, f"the task of run {run.run_id}")
        return TaskOfRun(found.task, derive_id(run.task_id, run.agent_id, *found.at))

    async def _answer(self, run: RunState, program: TaskOfRun) -> RunOutcome:
        """Return what the log has of a program's run that has ended, as soon as it can be read."""
        while True:
            with suppress(CallError):
                return await errors.apart(self._read, run, program)
            await asyncio.sleep(AGAIN_S)

    def _read(self, run: RunState, program: TaskOfRun) -> RunOutcome:
        """Return the outcome of a program's run. Raises LogError."""
        labels, task_id = ("turns", "trajectories"), program.task.task_id
        partition = partition_of(task_id, self._settings.topics.partitions)
        ends = {tp: high for tp, (_, high) in offsets(self._settings, labels).items() if tp[1] == partition}
        since = offsets_at(self._settings, labels, run.updated_at - CLOCKS_MS)
        starts = {tp: end if since[tp] < 0 else since[tp] for tp, end in ends.items()}
        of_turns = topics(self._settings.topics)["turns"].name
        turns: list[Turn] = []
        ended: TrajectoryEvent | None = None
        for record in read(self._settings, starts, ends):
            if record.key != task_id.encode():
                continue
            event = record.decode(Turn if record.at.topic == of_turns else TrajectoryEvent)
            if isinstance(event, Turn) and event.trajectory_id == program.trajectory_id:
                turns.append(event)
            elif isinstance(event, TrajectoryEvent) and event.kind == "ended":
                ended = ended or event
        return _outcome(turns, ended, program)

    def _end_later(self, run: RunState, program: TaskOfRun | None, ending: Ending) -> None:
        """End the program's run after the run's end, if its task was written."""
        if program is not None:
            ending_task = asyncio.get_running_loop().create_task(self._end(run, program, ending))
            self._endings.add(ending_task)
            ending_task.add_done_callback(self._endings.discard)

    async def _end(self, run: RunState, program: TaskOfRun, ending: Ending) -> None:
        """End a program's run; begun first, it is not started any more. Raises nothing: it may end by itself."""
        end = TrajectoryEnd(ending, f"run {run.run_id} of its thread has ended")
        with suppress(CallError):
            await self._runs.begin(_order(run, program))
            await self._runs.end(run.agent_id, program.trajectory_id, end)


def _task(run: RunState, call: ModelCall) -> Task:
    """Return the task of a run: what the model would have read is what its program gets."""
    policy, _, version = call.model.partition("@")
    return Task(
        task_id=run.task_id,
        created_at=run.updated_at,
        metadata={"source": run.request.actor, "run_id": run.run_id}
        | ({} if run.request.stateless else {THREAD: id_of(run.thread_id)}),
        subject=run.request.subject,
        policy=policy,
        purpose="serve",
        scenario="threads",
        tenant=tenant_in(run.task_id),
        group_size=1,
        adapter_version=int(version) if version.isdecimal() else None,
        sampling=run.sampling,
        agent=run.agent_id,
        prompt_version=call.prompt_version,
        tools=run.tools,
        messages=call.messages,
    )


def _order(run: RunState, program: TaskOfRun) -> TrajectoryOrder:
    task = program.task
    return TrajectoryOrder(
        agent_id=run.agent_id,
        trajectory_id=program.trajectory_id,
        task_id=task.task_id,
        sampling_id=program.sampling_id,
        slot=0,
        group_size=task.group_size,
        policy=task.policy,
        purpose=task.purpose,
        sampling=task.sampling,
        adapter_version=task.adapter_version,
        max_turns=task.max_turns,
        metadata={"manager": ACTOR, **conversation_of_task(task)},
        traceparent=task.traceparent,
        subject=task.subject,
        prompt_version=None if task.prompt_version is None else str(task.prompt_version),
    )


def _outcome(turns: list[Turn], ended: TrajectoryEvent | None, program: TaskOfRun) -> RunOutcome:
    """Return how a run of a thread ends that a program's run has answered."""
    name = f"the program of agent {program.task.agent}"
    if ended is None:
        return RunOutcome("error", error=f"{name} has ended, and its end is not in the log any more")
    if ended.ending != "completed":
        ending: RunEnding = "timeout" if ended.ending == "timeout" else "error"
        return RunOutcome(ending, error=f"{name} {ended.ending}: {ended.reason}")
    if ended.output is not None:
        message = Message(role="assistant", content=ended.output)
        return RunOutcome("success", (message,), program_run=program.trajectory_id)
    chains = fold(turns, ended).chains
    answer = chains[0].turns[-1] if chains else None
    if answer is None or not answer.reply.content:
        return RunOutcome("error", error=f"{name} printed nothing, and no model answered it with a text")
    message = Message(role="assistant", content=answer.reply.content)
    return RunOutcome("success", (message,), answer.turn_id, program_run=program.trajectory_id)
