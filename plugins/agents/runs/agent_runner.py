"""Answer the tasks that name an agent by running that agent's program.

    tasks ──► TaskQueue ──► begun when there is room to train on it ──► a process a slot, N at once ──► commit
                                begin ──► the server writes `started`      │ its calls: the server writes turns
                                end   ──► `ended`, response           ◄────┘ its exit code

An attempt has an id that follows from the record of its task, so a process that reads it again after kill -9 finds the
same runs: ended ones stay as they are, those that only began are ended as failed, the others begin. A task is done, and
its offset committed, when all its runs have ended. One run's outcome does not affect the others.

A process runs the agent for one policy, or for every policy of a fleet (fleet.policies), whose tasks begin in turn.
The members of its consumer group serve the same agent and policies (streams/kafka/group_names.py).

The rules by which a train task waits for the trainer are those of the policy stage (streams/adapters/admission).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self, get_args

from pydantic import SecretStr

from plugins.agents.registry.registration import next_event, registrations, tools_in
from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.run_metrics import AgentMetrics
from plugins.agents.runs.run_server import AgentServer
from schemas.conventions import conversation_of_task
from schemas.events import (
    AgentEvent,
    AgentProgram,
    AgentType,
    AnswerRule,
    Coordinates,
    Ending,
    Observed,
    Response,
    Task,
    derive_id,
)
from streams.adapters.admission.held_back import HeldBack, room
from streams.adapters.admission.policy_log import PolicyLog, PolicyState, give_up_ms
from streams.adapters.admission.sampling_batch import WaitingTask, choose
from streams.adapters.admission.task_queue import TaskQueue, settings_of
from streams.adapters.admission.task_reader import TaskReader
from streams.adapters.router import route
from streams.engines.fair_share import Turns, next_turn, take_turn
from streams.errors import RefusedError, ServerUnavailable
from streams.kafka import times
from streams.kafka.admin import offsets
from streams.kafka.client import POLL_S
from streams.kafka.group_names import GroupScope
from streams.kafka.producer import Producer
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import BrokerOutage, BrokerUnreachable, StoppedWaiting
from streams.observability.metrics import OFF, Meter
from streams.observability.trace_context import parse, sending
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.trajectories.response import UNANSWERED

STAGE: Final = "agents"
WATCH_S = 1.0
"""How often it is checked whether others have ended a run."""
BUSY_POLL_S = 0.05
"""Longest wait for new tasks while runs are in progress, which may end at any time."""
ENDINGS = (*get_args(Ending), "refused", "unfinished")
"""How runs may end; the last two: refused by the server, so that this process writes a failed response, and left for
the next process to end."""
MANAGER_GONE = "manager_gone: the manager that started its process did not see it end"

log = logging.getLogger("streamward.agents")


class AgentWork(NamedTuple):
    """One run of an agent, ready to begin."""

    run: Callable[[ProgramRun, threading.Event], TrajectoryEnd]
    """Runs it to its end, e.g. `run_process` with a program. May raise OSError."""
    observed: Observed | None = None
    """The first observation of its environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """How the tasks of an agent are run."""

    agent_id: str
    work: Callable[[Task], AgentWork] | None
    """Returns the next run of a task. It never raises: an error ends that run. None: the server answers the agent's
    runs, with the tools that it is registered with."""
    program: AgentProgram | None = None
    """The program, as its runs record it."""
    server: str
    """The address of `streamward serve`."""
    key: SecretStr | None = None
    """The server's key, if it requires one."""
    parallel: int
    folder: Path
    """The folder that contains a folder for each run."""
    answers_threads: bool = False
    """Register the program, so that runs of threads are tasks for it, too."""
    fleet: bool = False
    """Run it for every policy of fleet.policies, not only for policy.name."""
    answer_rule: AnswerRule | None = None
    """Rule that chooses between several answers of a run. None: the one that the run names or prints."""
    time_limit_s: float = 600.0
    """How long a run may take that the server answers; `work` has a limit of its own."""
    until_done: bool = False
    """End when every task in the log at the start is done."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingPolicy:
    """The tasks of one policy that wait for the agent."""

    state: PolicyState
    queue: TaskQueue
    held_back: HeldBack


@dataclass(slots=True, eq=False)
class TaskAttempt:
    """A task with runs that have begun."""

    policy: WaitingPolicy
    waiting: WaitingTask
    sampling_id: str
    slots: deque[int]
    """Runs that have not begun yet."""
    runs: set[Future[str]] = field(default_factory=set)
    failed: deque[Response] = field(default_factory=deque)
    """The responses of runs that the server refused; they are still to be written."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when its results no longer count."""
    holds_a_place: bool = False
    """Whether admission counts it until its group is out."""
    unfinished: bool = False
    """Whether an end could not be reported to the server: the next process that reads the task does it."""


def run(settings: Settings, plan: AgentPlan, *, stop: threading.Event, meter: Meter = OFF) -> Counter[str]:
    """Answer tasks until `stop` is set, or all are done; return how the runs ended.

    Runs in progress are waited for. Raises LogError if the broker refuses or is unreachable too long, NotFoundError for
    a missing topic.
    """
    schema_registry.wait(settings, meter, stop)
    with AgentRunner(settings, plan, BrokerOutage(settings.kafka, stop, meter), stop) as runner:
        try:
            while runner.running or not (stop.is_set() or (plan.until_done and runner.done())):
                runner.step()
        except StoppedWaiting as exc:
            log.warning("%s", exc)
    return runner.endings


class AgentRunner:
    """Runs one agent. Use as a context manager, and call `step` from one thread."""

    def __init__(self, settings: Settings, plan: AgentPlan, outage: BrokerOutage, stop: threading.Event) -> None:
        self._settings, self._plan, self._outage, self._stop = settings, plan, outage, stop
        self.endings: Counter[str] = Counter()
        """Number of runs by how they ended, including runs of an earlier process if their task is read again."""
        self._nonce = uuid.uuid4().hex
        single = None if plan.fleet else settings.policy.name
        self._log = PolicyLog(settings, outage, single)
        self._producer = Producer(settings, outage=outage, stage=STAGE)
        serving = GroupScope(stage=STAGE, fleet=settings.fleet, policy=single, agent=plan.agent_id)
        self._tasks = TaskReader(settings, serving, self._producer, outage, self._log, self._note_skipped)
        self._policies: dict[str, WaitingPolicy] = {}
        self._turns = Turns()
        self._left_alone: set[str] = set()
        """Policies for which another process runs this agent's tasks."""
        if single is not None and plan.work is not None:
            self._register(single)
        if single is not None:
            self._policies[single] = self._new_policy(single)
        self._server = AgentServer(plan.server, plan.agent_id, stop, outage.meter, plan.key, plan.program)
        self._metrics = AgentMetrics(outage.meter, plan.agent_id)
        self._pool = ThreadPoolExecutor(plan.parallel, thread_name_prefix="runs-agent")
        self._attempts: dict[Coordinates, TaskAttempt] = {}
        self._watched: dict[str, tuple[Callable[[], bool], threading.Event]] = {}
        """Runs in progress that others may end: whether one has ended, and what stops its program."""
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watches-runs", daemon=True)
        self._ends = {tp: end for tp, (first, end) in offsets(settings, ["tasks"]).items() if end > first}
        """End of `tasks` at the start."""

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for attempt in self._attempts.values():
            attempt.stop.set()
        self._pool.shutdown()
        self._over.set()
        self._watcher.join()
        self._server.close()
        self._tasks.close()
        self._log.close()
        self._producer.__exit__(kind)

    @property
    def running(self) -> int:
        """Number of runs in progress."""
        return sum(len(attempt.runs) for attempt in self._attempts.values())

    def done(self) -> bool:
        """Whether every task that was in the log at the start is done, here or in another process of this agent."""
        if self._attempts or any(policy.queue for policy in self._policies.values()):
            return False
        try:
            committed = self._tasks.committed(self._ends)
        except BrokerUnreachable:
            return False
        return all(committed[tp] >= end for tp, end in self._ends.items())

    def step(self) -> None:
        """Read tasks, begin runs in free slots, handle those that ended, commit."""
        self._metrics.look([policy.queue for policy in self._policies.values()], self.running)
        self._log.follow()
        queued = {name for name, policy in self._policies.items() if policy.queue}
        policies = self._tasks.poll(BUSY_POLL_S if self._attempts or queued else POLL_S) | queued
        for name in policies:
            if name not in self._policies:
                self._policies[name] = self._new_policy(name)
            self._policies[name].queue.read()
            self._policies[name].queue.sweep()
        for attempt in list(self._attempts.values()):
            self._look(attempt)
        while self.running < self._plan.parallel and not self._stop.is_set() and self._begin_one():
            pass
        for name in policies:
            waiting = self._policies[name]
            waiting.held_back.look(waiting.queue.waiting, set_aside=waiting.queue.set_aside)
        self._tasks.commit()

    def _new_policy(self, name: str) -> WaitingPolicy:
        state, tasks = self._log.state(name), self._tasks.tasks(name)
        settings = settings_of(self._settings, name) if self._plan.fleet else self._settings
        queue = TaskQueue(settings, tasks, self._log, self._outage.meter, stage=STAGE)
        return WaitingPolicy(state, queue, HeldBack(state.router, state.admission))

    def _note_skipped(self, task: Task) -> None:
        """Log once for each policy that its tasks for this agent need a separate process."""
        if task.agent == self._plan.agent_id and task.policy not in self._left_alone:
            self._left_alone.add(task.policy)
            log.info(
                "tasks of policy %s for agent %s are another process's; `streamward doctor` says if there is none",
                task.policy,
                task.agent,
            )

    def _begin_one(self) -> bool:
        """Begin the next run; return False if none was waiting."""
        attempt = next((attempt for attempt in self._attempts.values() if attempt.slots), None) or self._next()
        if attempt is None:
            return False
        slot = attempt.slots.popleft()
        attempt.runs.add(self._pool.submit(self._run, attempt, slot))
        return True

    def _next(self) -> TaskAttempt | None:
        """Begin the next task that may be answered now, taking policies in turn."""
        ready = {name for name, policy in self._policies.items() if policy.queue.waiting}
        while (name := next_turn(self._turns, ready)) is not None:
            if (attempt := self._next_of(self._policies[name])) is not None:
                self._turns = take_turn(self._turns, name, self._settings.fleet.weight_of)
                return attempt
            ready.discard(name)
        return None

    def _next_of(self, policy: WaitingPolicy) -> TaskAttempt | None:
        router, admission, queue = policy.state.router, policy.state.admission, policy.queue
        version_for, has_room = partial(route, router.serving_here), partial(room, router, admission)
        while chosen := choose(queue.waiting, version_for=version_for, room=has_room, limit=1):
            if queue.drop_overtaken(chosen.tasks):
                continue
            (waiting,) = chosen.tasks
            task = waiting.task
            sampling_id = derive_id(task.task_id, self._plan.agent_id, *waiting.at)
            attempt = TaskAttempt(policy, waiting, sampling_id, deque(range(task.group_size)))
            if not waiting.urgent and not admission.hopeless(policy.state.batches_of(chosen.version)):
                attempt.holds_a_place = True
                admission.start(task.task_id, give_up_ms=None)
            queue.begin(waiting)
            policy.held_back.note_answered(chosen.tasks)
            self._attempts[waiting.at] = attempt
            return attempt
        return None

    def _look(self, attempt: TaskAttempt) -> None:
        """Handle runs that ended; a task is done with its last one."""
        waiting, queue, admission = attempt.waiting, attempt.policy.queue, attempt.policy.state.admission
        is_ours = waiting in queue
        for ended in [run for run in attempt.runs if run.done()]:
            attempt.runs.discard(ended)
            self.endings[ended.result()] += 1
            self._metrics.ended(ended.result())
        if not is_ours or queue.why_overtaken(waiting) is not None:
            attempt.slots.clear()
            attempt.stop.set()
        if attempt.runs or attempt.slots:
            return
        del self._attempts[waiting.at]
        if attempt.holds_a_place:
            limit = give_up_ms(self._settings, times.now_ms(), waiting.deadline_ms)
            admission.start(waiting.task.task_id, give_up_ms=limit)
        if is_ours and not attempt.unfinished:
            for response in attempt.failed:
                self._producer.send(response)
            queue.finish_answered(waiting)

    # --- in a thread of the pool --------------------------------------------------------------------------------------

    def _run(self, attempt: TaskAttempt, slot: int) -> str:
        """Run the agent once, from its beginning to its end in the log; return how it ended."""
        with sending(attempt.waiting.trace or parse(attempt.waiting.task.traceparent)):
            return self._run_traced(attempt, slot)

    def _run_traced(self, attempt: TaskAttempt, slot: int) -> str:
        task, began = attempt.waiting.task, None
        metadata = {"manager": self._nonce, **conversation_of_task(task)}
        try:
            work = AgentWork(self._act) if self._plan.work is None else self._plan.work(task)
            known_run = self._server.begin(task, attempt.sampling_id, slot, metadata, work.observed)
            name = known_run.trajectory_id
            if known_run.ending is not None:
                ended = TrajectoryEnd(known_run.ending, "")
            elif known_run.metadata != metadata and self._plan.work is not None:
                ended = TrajectoryEnd("failed", MANAGER_GONE)
            else:
                self._metrics.began()
                began = time.monotonic()
                url, folder = f"{self._server.url}/{name}", self._plan.folder / name
                context = ProgramRun(self._plan.agent_id, name, task, url, folder, self._plan.key)
                if task.purpose == "serve":  # its thread's run may be cancelled
                    order = (name, task, attempt.sampling_id, slot, metadata, work.observed)
                    self._watched[name] = partial(self._server.has_ended, *order), attempt.stop
                ended = self._work(work, context, attempt.stop)
            if ended.answer is None and self._plan.answer_rule is not None:
                ended = ended._replace(answer_rule=self._plan.answer_rule)
            # the run has ended: if its response is missing, it is made
            if (error := self._server.end(name, ended).error) is not None and ended.ending == "completed":
                log.warning("task %s, slot %d: nothing is learned from it: %s", task.task_id, slot, error)
            log.info("task %s, slot %d: %s: %s", task.task_id, slot, ended.ending, ended.reason)
            return ended.ending
        except RefusedError as exc:
            log.error("task %s, slot %d: %s", task.task_id, slot, exc)
            attempt.failed.append(_failed_response(task, self._plan.agent_id, attempt.sampling_id, slot, str(exc)))
            return "refused"
        except ServerUnavailable as exc:  # this process is stopping; the next one reads the task again
            log.warning("task %s, slot %d: %s", task.task_id, slot, exc)
            attempt.unfinished = True
            return "unfinished"
        finally:
            if began is not None:
                self._metrics.took(time.monotonic() - began)
                self._watched.pop(name, None)

    def _watch(self) -> None:
        """Stop the programs of runs that have ended in the log."""
        while not self._over.wait(WATCH_S):
            for has_ended, stop in list(self._watched.values()):
                with suppress(RefusedError):
                    if has_ended():
                        stop.set()

    def _work(self, work: AgentWork, context: ProgramRun, stop: threading.Event) -> TrajectoryEnd:
        try:
            return work.run(context, stop)
        except OSError as exc:
            return TrajectoryEnd("failed", f"it was not run: {exc}")

    def _act(self, run: ProgramRun, stop: threading.Event) -> TrajectoryEnd:
        return self._server.act(run, stop, self._plan.time_limit_s)

    def _register(self, policy: str) -> None:
        """Register this agent, unless the log has the same registration; its other fields are kept."""
        agent_id, router = self._plan.agent_id, self._log.state(policy).router
        before = registrations(self._settings, self._outage).get(agent_id, [])
        primary = router.adapters.versions[router.serving_here.primary]
        kind: AgentType = "PROMPT_BASED" if not primary.version else "FINE_TUNED" if primary.tuned_by else "RL_TRAINED"
        event = AgentEvent(
            event_id="", agent_id=agent_id, created_at=0, kind="registered", name=agent_id, type=kind, model_id=policy
        )
        if before and before[-1].kind == "registered":
            event = replace(before[-1], type=kind, model_id=policy, metadata=tools_in(before[-1]))
        if self._plan.answers_threads:
            event = replace(event, program=self._plan.program)
        news = next_event(before, event)
        if news is not None:
            self._producer.send(news)
            self._producer.flush()


def _failed_response(task: Task, agent_id: str, sampling_id: str, slot: int, reason: str) -> Response:
    """Return a failed response for a run that the server refuses, so that its group does not wait for the deadline."""
    return Response(
        response_id=derive_id(sampling_id, slot),
        sampling_id=sampling_id,
        task_id=task.task_id,
        created_at=times.now_ms(),
        traceparent=task.traceparent,
        metadata={"purpose": task.purpose},
        subject=task.subject,
        policy=task.policy,
        slot=slot,
        group_size=task.group_size,
        adapter_version=UNANSWERED,
        base_digest="",
        tokenizer_digest="",
        engine="",
        finish_reason="error",
        error=f"refused: {reason}",
        prompt_tokens=0,
        completion_tokens=0,
        latency_ms=0.0,
        text="",
        sampling=task.sampling,
        agent_id=agent_id,
    )
