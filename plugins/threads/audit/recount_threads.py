"""Recount threads: their events follow from each other, and each answer equals that of the turn that its end names.

    created, run_requested, run_ended, … of one thread ──► ThreadCount ──► what no server can have written
    run_answered, run_ended ──► its turn is in turns ──► the same answer, thread, agent and version,
                                                         and it was given to the messages that the thread had
    run_ended, handed over ──► its answer is the result of the call
    run_ended, by a program ──► its task is in tasks, and a turn that it names has the same text
    call_begun, call_ended, … ──► RunCalls: each call of an answer has one result, and is made once
    run_requested ──► each run is on one thread; a turn of a run has a request
    call_begun, call_ended, of an agent ──► ChildCount: its run is requested once, and its answer is the result
    compacted ──► the summary of its turn, of messages that the thread had; later runs were given it
    end of a trajectory, for want of consent ──► its run waits for a person
    changed, by a task ──► the task is in tasks
    actor: a key ──► it names its own tenant's threads and agents

An event that came too late, because of concurrent clients or a killed server, changes nothing and is not a finding. If
retention has deleted the first records of a partition, each record is checked only by itself, and turns that may have
been deleted are not reported as missing.

Not covered: the items of the store that a run was given, and the system message with them; and whether the texts of a
task equal those in its thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plugins.threads.audit.child_counts import ChildCount
from plugins.threads.audit.thread_facts import (
    OF_MEMORY,
    KeyRights,
    ThreadFact,
    ThreadTurn,
    digest_of_all,
    request_digest_of,
    take_key,
    tenant_of,
    thread_fact,
    thread_turn,
)
from plugins.threads.audit.thread_states import HeadState, RunCount, ThreadCount
from schemas.conventions import CONSENT, WAITS_FOR
from schemas.events import AccessEvent, Coordinates, ThreadEvent, TrajectoryEvent, Turn
from streams.kafka.record import Record, partition_of
from streams.tools.audit.facts import Category, RecountOutcome
from streams.tools.audit.record_digests import digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

ENDINGS = {"success": "answered", "interrupted": "interrupted"}
"""How runs are counted by their ending; all others failed."""


SUMS = (
    ("runs of threads", "runs", "answered", "failed", "interrupted", "open"),
    ("calls by runs", "calls", "answered", "failed", "by clients", "left", "open"),
    ("child runs", "child runs", "answered", "failed", "left"),
)
"""Of each: the count, its short name, and its parts."""


class RunTurn(NamedTuple):
    """A turn, and what it says of the run that it answers."""

    at: Coordinates
    turn_id: str
    text: int
    """A digest of its answer's text."""
    of_thread: ThreadTurn | None
    """None: it answers no run of a thread."""
    is_of_memory: bool = False
    """Whether it was made behind a run, for what its agent remembers."""

    def __str__(self) -> str:
        return f"turn {self.turn_id} at {self.at}"


Turns = Mapping[tuple[int, str], list[RunTurn]]
"""By partition and trajectory, which is a run of a thread if they answer one."""


class ModelRequest(NamedTuple):
    """What a run asked its model."""

    run: RunCount
    number: int
    """How many answers with calls it had before."""
    reads: HeadState | None


class ThreadRecount(KeyedRecount[ThreadFact]):
    """The recount of threads, with the turns that answer their runs and the keys that wrote them."""

    labels, optional, counts = ("threads", "turns", "trajectories"), ("access",), ("threads",)
    sums = tuple(
        RecountSum(total, (total,), {name: f"{noun} {name}" for name in parts}, shown_with=total)
        for total, noun, *parts in SUMS
    )

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[tuple[int, str], list[RunTurn]] = {}
        self._actors: dict[str, KeyRights] = {}
        """Keys, by the actor that they are."""
        self._asked: dict[str, Coordinates] = {}
        """The ends of trajectories of runs that asked a person, and got no answer."""

    def take(self, record: Record, event: ThreadEvent | Turn | TrajectoryEvent | AccessEvent) -> None:
        """Take in an event of a thread, a turn, the end of a trajectory, or a key."""
        if isinstance(event, AccessEvent):
            take_key(self._actors, event)
        elif isinstance(event, TrajectoryEvent):
            if event.sampling_id is None and event.metadata.get(WAITS_FOR) == CONSENT:
                self._asked[event.trajectory_id] = record.at
        elif isinstance(event, Turn):
            of_thread, is_of_memory = thread_turn(event), event.protocol == OF_MEMORY
            turn = RunTurn(record.at, event.turn_id, digest(event.reply.content), of_thread, is_of_memory)
            self._turns.setdefault((record.at.partition, event.trajectory_id), []).append(turn)
        else:
            self.keep(event.thread_id, thread_fact(record, event))

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return the findings about all threads; not by policy, since runs may be of several."""
        whole, threads_of_runs, children = RecountOutcome(), dict[str, str](), ChildCount()
        for story in self.keys.values() if policy is None else ():
            check = _ThreadCheck(story, self._turns, self._actors, view)
            check.read()
            for run_id, request in check.requests.items():
                if (other := threads_of_runs.setdefault(run_id, story.key)) != story.key:
                    whole.find("contradictory", request.at, f"run {run_id} is on thread {other} already")
            for run_id in self._asked.keys() & check.runs.keys():
                if not check.runs[run_id].calls.needs_person:
                    whole.find("contradictory", self._asked[run_id], f"run {run_id} asked no person, or had the answer")
            whole.add(check.outcome)
            children.take(story.events)
        children.report(whole, is_whole=not view.is_cut("threads"))
        if policy is not None or view.is_cut("threads") or not view.reach.settled:
            return whole  # while servers work, a request may be newer than was read
        for (_, run_id), turns in self._turns.items():
            turn = next((turn for turn in turns if turn.of_thread is not None and not turn.is_of_memory), None)
            if turn is not None and run_id not in threads_of_runs:
                whole.find("phantom", turn.at, f"it answers run {run_id}, which was never requested in threads")
        return whole


class _ThreadCheck:
    """The recount of one thread."""

    def __init__(
        self, story: KeyFacts[ThreadFact], turns: Turns, actors: Mapping[str, KeyRights], view: AuditView
    ) -> None:
        self._story, self._turns, self._actors, self._view = story, turns, actors, view
        self._is_cut = view.is_cut("threads", story.events[0].at.partition)
        self._thread = ThreadCount()
        self._first: dict[int, ThreadFact] = {}
        """The newest event of each id that took effect, or the first."""
        self.requests: dict[str, ThreadFact] = {}
        """Those that the thread let in, by run."""
        self.outcome = RecountOutcome()

    @property
    def runs(self) -> Mapping[str, RunCount]:
        """The runs that were ever in progress."""
        return self._thread.begun

    def read(self) -> None:
        """Read every event."""
        counts, thread = self.outcome.counts, self._thread
        counts["threads"] += 1
        for event in self._story.events:
            counts["thread events"] += 1
            self._judge_itself(event)
            refusal = thread.refusal(event)
            run = thread.begun.get(event.run_id)
            request = None if run is None else ModelRequest(run, len(run.calls.turns), run.reads)
            if refusal is None:
                self._count(event)
                thread.take(event)
            elif event.kind == "run_requested" and event.run_id not in thread.in_log:
                thread.turned_away.add(event.run_id)
            self._judge_repetition(event, has_effect=refusal is None)
            if refusal is not None and refusal.impossible is not None:
                self._find(event, *refusal.impossible, needs_beginning=True)
            elif refusal is not None:
                counts["thread events without effect"] += 1
            if event.kind in ("run_ended", "run_answered"):
                self._judge_answer(event, request)
            elif event.kind == "compacted" and refusal is None and run is not None:
                self._judge_compaction(event, run)
            elif task_id := event.task_id or event.answered_task:
                self._judge_task(event, task_id)
        self._count_open()

    def _find(self, event: ThreadFact, category: Category, problem: str, *, needs_beginning: bool = False) -> None:
        if not (needs_beginning and self._is_cut):
            self.outcome.find(category, event.at, problem)

    def _count(self, event: ThreadFact) -> None:
        """Count an event that takes effect."""
        counts, thread = self.outcome.counts, self._thread
        if event.kind == "run_requested":
            counts["runs of threads"] += 1
            self.requests.setdefault(event.run_id, event)
            if event.if_busy == "interrupt" and thread.active is not None:
                counts["runs interrupted"] += 1
        elif event.kind == "run_ended":
            counts[f"runs {ENDINGS.get(event.ending or '', 'failed')}"] += 1
        elif event.kind == "compacted":
            counts["summaries of threads" if event.summary is not None else "summaries of threads failed"] += 1
        elif event.kind in ("run_cancelled", "run_deleted"):
            counts["runs interrupted"] += thread.runs[event.run_id].status in ("waiting", "in progress")
        elif event.kind == "deleted":
            counts["runs interrupted"] += (thread.active is not None) + len(thread.waiting)

    def _count_open(self) -> None:
        thread, counts = self._thread, self.outcome.counts
        is_open = (thread.active is not None) + len(thread.waiting)
        counts["runs open"] += is_open
        active = thread.runs.get(thread.active or "")
        for run in thread.requested:
            counts.update(run.calls.counts)
            counts["calls open" if run is active else "calls left"] += len(run.calls.open)
        if active is not None and self._view.reach.settled and not active.calls.wait:
            request = active.request
            self._find(request, "lost", f"the end of run {request.run_id} is not in threads", needs_beginning=True)
        else:
            self.outcome.in_flight["runs of threads"] += is_open

    # --- an event -----------------------------------------------------------------------------------------------------

    def _judge_itself(self, event: ThreadFact) -> None:
        thread_id = self._story.key
        if not event.has_own_id:
            self._find(event, "contradictory", "its id is not that of its thread and of what it is about")
        tenant = None if event.stateless else tenant_of(thread_id)
        agent_id = None if event.kind == "changed" else event.agent_id  # of a task it may be a policy
        if tenant is not None and agent_id is not None and tenant_of(agent_id) != tenant:
            self._find(event, "contradictory", f"agent {agent_id} is not of tenant {tenant}, whose thread it is")
        rights = self._actors.get(event.actor)
        if rights is None:
            return
        if agent_id is not None and (problem := rights.problem(event.actor, agent_id)) is not None:
            self._find(event, "contradictory", problem)
        is_single = event.stateless or event.run_id == thread_id
        problem = None if is_single else rights._replace(agent_id=None).problem(event.actor, thread_id)
        if problem is not None:
            self._find(event, "contradictory", problem)

    def _judge_task(self, event: ThreadFact, task_id: str, is_about: str = "it is of") -> None:
        """Find an event of a task that was never submitted."""
        partition = partition_of(task_id, self._view.settings.topics.partitions)
        task = self._view.loop.tasks.get((partition, task_id))
        if (task is None or not task.tasks) and not self._view.is_cut("tasks", partition):
            self._find(event, "phantom", f"{is_about} task {task_id}, which is not in tasks")

    def _judge_repetition(self, event: ThreadFact, *, has_effect: bool) -> None:
        """Find second events of an id. Those with ids derived from their run may differ, except in how it ended."""
        first = self._first.setdefault(event.identity, event)
        if has_effect:
            self._first[event.identity] = event
        if first is event:
            return
        is_same, is_derived = first.content == event.content, event.is_derived
        if is_same and not has_effect:
            self.outcome.find("repeated", event.at, f"it repeats {first.at}", accounted=True)
        elif is_same and not is_derived:
            self._find(event, "doubled", f"it repeats {first.at}, and takes effect again", needs_beginning=True)
        elif not is_same and not is_derived:
            self._find(event, "contradictory", f"it has the id of {first.at}, and is another")
        elif not is_same and event.kind == "run_ended" and not has_effect:
            problem = f"it ends run {event.run_id} otherwise than {first.at}, which counts"
            self._find(event, "contradictory", problem, needs_beginning=True)

    # --- the end of a run ---------------------------------------------------------------------------------------------

    def _judge_answer(self, event: ThreadFact, request: ModelRequest | None) -> None:
        """Find what is wrong with an answer of a run; `request`: what its thread let its model read, if it did."""
        expected = int(event.kind == "run_answered" or event.ending == "success")
        if len(event.messages) != expected:
            ending = event.ending or "calls"
            problem = f"it ended with {ending} and {len(event.messages)} messages; expected {expected}"
            self._find(event, "contradictory", problem)
        if request is not None and (task_id := request.run.request.run_task):
            self._judge_program(event, task_id)
            return
        handoff = 0 if request is None else request.run.calls.handoff
        if event.ending == "success" and (handoff or not event.turn_id) and event.text != handoff:
            self._find(event, "contradictory", "its answer is not that of the agent that it was handed to")
        if not event.turn_id:
            return
        answered = self._turn_of(event, event.run_id, "" if request is None else request.run.request.answered_task)
        if answered is None:
            return
        if answered.of_thread is None or answered.is_of_memory:
            self._find(event, "contradictory", f"{answered} answers no run of a thread")
        else:
            self._judge_turn(event, answered, answered.of_thread, request)

    def _turn_of(self, event: ThreadFact, trajectory_id: str, task_id: str = "") -> RunTurn | None:
        """Return the turn that an event names; None, with a finding, if it is not in its trajectory. With a `task_id`,
        which is then the key of its turns, it is the task's run.
        """
        partition = partition_of(task_id or trajectory_id, self._view.settings.topics.partitions)
        turns = self._turns.get((partition, trajectory_id), ())
        turn = next((turn for turn in turns if turn.turn_id == event.turn_id), None)
        if turn is None and not self._view.is_cut("turns", partition):
            self._find(event, "phantom", f"turn {event.turn_id} of run {event.run_id} is not in turns")
        return turn

    def _judge_compaction(self, event: ThreadFact, run: RunCount) -> None:
        """Find what is wrong with the summary of a thread."""
        rule, summary = run.request.memory, event.summary
        if rule.stay is None:
            self._find(event, "contradictory", f"the agent of run {event.run_id} has no summaries made")
            return
        if summary is None:
            return
        head = self._thread.head.find(event.checkpoint or 0)
        messages = [] if head is None else head.messages()
        rest = messages[summary.stands_for :]
        begins = int(bool(messages) and messages[0].role == "system")
        is_open = summary.digest != ""  # of a sealed one the digest is sealed, too
        if is_open and digest_of_all(messages[begins : summary.stands_for]) != summary.digest:
            self._find(event, "contradictory", "it stands for other messages than the thread had", needs_beginning=True)
        elif not rest or rest[0].role != "user" or sum(message.role == "user" for message in rest) < rule.stay:
            problem = f"it leaves fewer than the last {rule.stay} questions as they were"
            self._find(event, "contradictory", problem, needs_beginning=True)
        turn = self._turn_of(event, summary.trajectory_id)
        made = None if turn is None else turn.of_thread
        if turn is None:
            return
        if made is None or made.agent_id != run.request.agent_id or made.prompt != summary.rule.rpartition(" ")[2]:
            self._find(event, "contradictory", f"{turn} is not of agent {run.request.agent_id} by {summary.rule}")
        elif [message.content for message in event.messages[1:]] != [made.reply]:
            self._find(event, "contradictory", f"its summary is not that of {turn}")

    def _judge_program(self, event: ThreadFact, task_id: str) -> None:
        """Find what is wrong with the answer of a program: without a turn, what it printed."""
        if event.ending == "success":
            self._judge_task(event, task_id, "a program answered")
        answered = self._turn_of(event, event.program_run, task_id) if event.turn_id else None
        if answered is not None and answered.text != event.text:
            self._find(event, "contradictory", f"its answer is not that of {answered}")

    def _judge_turn(self, event: ThreadFact, answered: RunTurn, turn: ThreadTurn, request: ModelRequest | None) -> None:
        thread_id = self._story.key
        if event.messages and turn.reply != event.messages[0].content:
            self._find(event, "contradictory", f"its answer is not that of {answered}")
        is_single = event.run_id == thread_id
        expected = None if is_single else thread_id.rpartition(".")[2]
        if turn.thread_id != expected:
            problem = f"{answered} is of thread {turn.thread_id}, and its run of thread {expected}"
            self._find(event, "contradictory", problem)
        elif turn.request_digest and turn.request_digest != request_digest_of(
            thread_id, event.run_id, 0 if request is None else request.number
        ):
            self._find(event, "contradictory", f"{answered} answers another request than that of run {event.run_id}")
        if request is not None and not request.run.is_again:
            self._judge_turn_by_request(event, answered, turn, request)

    def _judge_turn_by_request(
        self, event: ThreadFact, answered: RunTurn, turn: ThreadTurn, model_request: ModelRequest
    ) -> None:
        request = model_request.run.request
        if turn.agent_id != request.agent_id:
            problem = f"agent {turn.agent_id} gave {answered}, and the run was requested of {request.agent_id}"
            self._find(event, "contradictory", problem)
        version = request.model.partition("@")[2]
        if version.isdecimal() and turn.version != int(version):
            problem = f"version {turn.version} gave {answered}, and the run was requested of {request.model}"
            self._find(event, "contradictory", problem)
        if model_request.reads is not None and not _could_read(turn, model_request.reads, model_request.run):
            problem = f"{answered} was given to other messages than the thread had"
            self._find(event, "contradictory", problem, needs_beginning=True)


def _could_read(turn: ThreadTurn, head: HeadState, run: RunCount) -> bool:
    """Return whether a turn was given to the messages of a thread, as the agent's memory_config leaves them."""
    memory = run.request.memory
    expected = head.last_turns(memory.turns) if run.compaction is None else head.after(run.compaction)
    reading = turn.read_of(expected.length)
    if reading is None:
        return True
    is_same_system = memory.has_items or reading.system == expected.system
    return is_same_system and reading.rest == expected.rest
