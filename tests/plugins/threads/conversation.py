"""A log of threads as servers write it: runs that are requested, answered, cancelled and deleted, with their turns.

    Conversations: request ──► the product's own fold ──► answer: the messages that its run reads ──► Turn, run_ended

What a run reads comes from the fold that servers follow, so a recount that agrees has come to the same by its own code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from plugins.agents.registry.agent_log import read_memory
from plugins.threads.log.compaction import REQUEST, RULE, as_read, cuts, digest_of, summary_source
from plugins.threads.log.thread_state import RunState, ThreadState, fold, last_turns, refusal
from schemas.conventions import CONVERSATION
from schemas.events import (
    AccessEvent,
    CallDecision,
    CallWait,
    Event,
    MemoryEvent,
    Message,
    PausedCall,
    RunCall,
    ThreadEvent,
    ToolCall,
    Turn,
    derive_id,
)
from tests.support.agent_calls import assistant, user
from tests.support.factories import T0, memory_event, thread_event, trajectory, turn

RED = "red.1f0c1f0c-0000-4000-8000-000000000001"
"""A thread of tenant red."""
OPEN = "2f0c1f0c-0000-4000-8000-000000000002"
"""A thread of nobody's."""
RED_KEY, CALC_KEY = "key 0011", "key 0022"
"""Of tenant red; of its agent calc."""
SUMMARIZED = '{"compaction": {"over_tokens": 1, "turns": 1, "prompt": "summary@2"}}'
"""Of an agent whose threads are compacted."""


def actor_on(thread_id: str) -> str:
    return RED_KEY if thread_id == RED else "api"


def run_name(number: int) -> str:
    return f"3f0c1f0c-0000-4000-8000-{number:012d}"


def keys() -> list[AccessEvent]:
    return [
        AccessEvent(
            event_id=derive_id(name, "key_created"),
            subject_id=name,
            created_at=T0,
            kind="key_created",
            actor="ann",
            reason="for tests",
            role="submitter",
            secret_sha256="a" * 64,
            tenant="red",
            agent_id=agent_id,
        )
        for name, agent_id in (("0011", None), ("0022", "calc"))
    ]


def turn_of(run: RunState, reply: str | Message, **changes: Any) -> Turn:
    """Return the turn that a server records for a run."""
    thread_id, run_id = run.thread_id, run.run_id
    before = () if run.checkpoint is None else run.checkpoint.messages()
    read = tuple(one.message for one in (*before, *run.steps.messages))
    number = [str(len(run.steps.turns))] if run.steps.turns else []
    request = json.dumps([thread_id, run_id, *number], ensure_ascii=False).encode()
    whole: dict[str, Any] = {
        "turn_id": derive_id(run_id, "turn", *number),
        "number": len(run.steps.turns),
        "trajectory_id": run_id,
        "task_id": run_id,
        "metadata": {} if run.request.stateless else {"thread": thread_id.rpartition(".")[2]},
        "agent_id": run.agent_id,
        "sampling_id": None,
        "slot": None,
        "protocol": "threads",
        "request_digest": hashlib.sha256(request).hexdigest(),
        "reply": assistant(reply) if isinstance(reply, str) else reply,
        "messages": last_turns(as_read(read, run.compaction), read_memory(run.request.memory_config or "{}").turns),
    }
    return turn(**whole | changes)


@dataclass
class Conversations:
    """Threads, event by event."""

    events: list[Event] = field(default_factory=list)
    states: dict[str, ThreadState | None] = field(default_factory=dict)
    begun: list[RunState] = field(default_factory=list)
    """Every run that was in progress once."""
    newest: dict[str, RunState] = field(default_factory=dict)
    """Every run, as it was last."""
    answered: dict[str, ThreadEvent] = field(default_factory=dict)

    def write(self, event: Event) -> str | None:
        """Write an event, and return why it changed nothing."""
        if isinstance(event, ThreadEvent):
            event = replace(event, created_at=T0 + len(self.events))
        self.events.append(event)
        if not isinstance(event, ThreadEvent):
            return None
        before = self.states.get(event.thread_id)
        reason = refusal(before, event)
        after = self.states[event.thread_id] = fold(before, event)
        self.newest |= {} if after is None else after.runs
        if after is not None and after.active is not None and after.active not in {run.run_id for run in self.begun}:
            self.begun.append(after.runs[after.active])
        return reason

    def create(self, thread_id: str = RED, **changes: Any) -> None:
        name = derive_id("created", len(self.events))
        self.write(thread_event("created", thread_id, **{"event_id": name, "actor": actor_on(thread_id)} | changes))

    def request(self, number: int, text: str = "1 + 1 =", thread_id: str = RED, **changes: Any) -> str | None:
        whole = {
            "event_id": derive_id("requested", len(self.events)),
            "agent_id": "red.calc",
            "actor": actor_on(thread_id),
            "messages": (user(text),),
        }
        return self.write(thread_event("run_requested", thread_id, run_name(number), **whole | changes))

    def answer(self, thread_id: str = RED, reply: str = "2", **changes: Any) -> None:
        """Answer the run in progress; `changes` are those of its turn."""
        state = self.states[thread_id]
        assert state is not None and state.active is not None
        self.end(state.runs[state.active], reply, **changes)

    def end(self, run: RunState, reply: str = "2", **changes: Any) -> None:
        """End a run, with the turn that it has or with a new one."""
        run = self.newest[run.run_id]
        if (known := self.answered.get(run.run_id)) is not None:
            self.write(known)
            return
        self._start(run)
        made = turn_of(run, reply, **changes)
        self.write(made)
        ended = self.ending(run.thread_id, run.run_id, turn_id=made.turn_id, messages=(made.reply,))
        self.answered[run.run_id] = ended
        self.write(ended)

    def call_tools(self, *calls: str, thread_id: str = RED) -> None:
        """Let the run in progress answer with calls of tools."""
        run = self._active(thread_id)
        made = tuple(ToolCall(id=f"{len(run.steps.turns)} {name}", name="add", arguments="{}") for name in calls)
        self._start(run)
        answer = turn_of(run, Message(role="assistant", content="", tool_calls=made))
        self.write(answer)
        fields = {"turn_id": answer.turn_id, "prompt_tokens": 1, "completion_tokens": 1}
        name = derive_id(thread_id, run.run_id, "run_answered", answer.turn_id)
        self.about_step("run_answered", run, event_id=name, messages=(answer.reply,), **fields)

    def begin(self, thread_id: str = RED, **changes: Any) -> None:
        """Begin the first call without a result."""
        self._about_call("call_begun", thread_id, **changes)

    def finish(self, thread_id: str = RED, **changes: Any) -> None:
        """Give the first call its result."""
        self._about_call("call_ended", thread_id, **{"duration_ms": 5} | changes)

    def accept(self, task: str, thread_id: str = RED) -> None:
        """Let a task of another server answer the first call without a result."""
        self._about_call("call_accepted", thread_id, remote_task=task)

    def pause(self, thread_id: str = RED, waits_for: CallWait = "consent") -> None:
        """Let the run in progress wait for its first call without a result."""
        run = self._active(thread_id)
        waits = (PausedCall(call_id=run.steps.open_calls[0].call.id, waits_for=waits_for),)
        name = derive_id(run.run_id, run.steps.pauses, waits_for)
        self.about_step("run_paused", run, event_id=name, turn_id=run.steps.turns[-1], waits=waits)

    def resume(self, thread_id: str = RED, *, allowed: bool = True, result: str | None = None) -> None:
        """Answer the call that the run in progress waits for."""
        run = self._active(thread_id)
        call_id = run.steps.waiting[0].call.id
        fields: dict[str, Any] = {"decisions": (CallDecision(call_id=call_id, allowed=allowed),)}
        if result is not None:
            fields = {"messages": (Message(role="tool", content=result, tool_call_id=call_id),)}
        name = derive_id("resumed", len(self.events))
        self.about_step("run_resumed", run, event_id=name, actor=actor_on(thread_id), **fields)

    def _start(self, run: RunState) -> None:
        """Write the beginning of a run's trajectory, before its first turn."""
        if run.steps.turns:
            return
        thread = run.thread_id.rpartition(".")[2]
        of_thread = {CONVERSATION: derive_id(CONVERSATION, thread, run.agent_id, "default")}
        started = trajectory(
            "started", trajectory_id=run.run_id, task_id=run.run_id, agent_id=run.agent_id, purpose="serve",
            sampling_id=None, slot=None, group_size=None, metadata={} if run.request.stateless else of_thread,
        )  # fmt: skip
        self.write(started)

    def _active(self, thread_id: str) -> RunState:
        state = self.states[thread_id]
        assert state is not None and state.active is not None
        return state.runs[state.active]

    def _about_call(self, kind: Any, thread_id: str, **changes: Any) -> None:
        run = self._active(thread_id)
        step, turn_id = run.steps.open_calls[0], run.steps.turns[-1]
        call = RunCall(call_id=step.call.id, tool_id="add", arguments="{}", attempt=step.begun)
        call = replace(call, **changes)
        about = {"call_begun": (call.attempt,), "call_accepted": (call.remote_task,)}.get(kind, ())
        name = derive_id(thread_id, run.run_id, kind, turn_id, call.call_id, *about)
        results = (Message(role="tool", content="11", tool_call_id=call.call_id),) if kind == "call_ended" else ()
        self.about_step(kind, run, event_id=name, turn_id=turn_id, call=call, messages=results)

    def about_step(self, kind: Any, run: RunState, **changes: Any) -> None:
        self.write(thread_event(kind, run.thread_id, run.run_id, **{"actor": "serve"} | changes))

    def ending(self, thread_id: str, run_id: str, **changes: Any) -> ThreadEvent:
        return thread_event("run_ended", thread_id, run_id, actor="serve", **changes)

    def compact(self, thread_id: str = RED, summary: str = "Sums.", **changes: Any) -> ThreadEvent | None:
        """Write a summary of all but the last turns, with its turn, after the run that ended last; None: too short."""
        state = self.states[thread_id]
        assert state is not None and state.last is not None
        run = state.runs[state.last]
        rule = read_memory(run.request.memory_config or "{}").compaction
        messages, before = tuple(one.message for one in state.messages), state.compaction_of(state.head)
        count = None if rule is None else next(cuts(messages, rule, before), None)
        if count is None:
            return None
        trajectory_id = derive_id(run.run_id, "compacted", state.head.checkpoint_id, count)
        prompt = "summary@2"
        made = turn(
            turn_id=derive_id(trajectory_id, "turn"), trajectory_id=trajectory_id, task_id=trajectory_id,
            agent_id=run.agent_id, sampling_id=None, slot=None, protocol="memory", reply=assistant(summary),
            messages=summary_source(messages, count, before), prompt_version=prompt,
        )  # fmt: skip
        started = trajectory(
            "started", trajectory_id=trajectory_id, task_id=trajectory_id, agent_id=run.agent_id, purpose="serve",
            sampling_id=None, slot=None, group_size=None,
        )  # fmt: skip
        event = thread_event(
            "compacted", thread_id, run.run_id, actor="serve", checkpoint=state.head.checkpoint_id,
            stands_for=count, digest=digest_of(messages[:count]), rule=f"{RULE} {prompt}", turn_id=made.turn_id,
            messages=(user(REQUEST), assistant(summary)),
        )  # fmt: skip
        event = replace(event, **changes)
        for each in (started, made, event):
            self.write(each)
        return event

    def about_run(self, kind: Any, number: int, thread_id: str = RED, **changes: Any) -> str | None:
        """Cancel or delete a run."""
        return self.write(thread_event(kind, thread_id, run_name(number), **{"actor": actor_on(thread_id)} | changes))


def conversation() -> Conversations:
    """Return two keys, and a thread of tenant red with three runs: two answered, and one that waited for the second."""
    made = Conversations(list[Event](keys()))
    made.create()
    made.request(0)
    made.answer()
    made.request(1, "2 + 2 =")
    made.request(2, "3 + 3 =", if_busy="enqueue")
    made.answer(reply="4")
    made.answer(reply="6")
    return made


def item(kind: Any = "put", number: int = 0, *, namespace: str = "red.people", **changes: Any) -> MemoryEvent:
    """Return the event with this number of an item of the store."""
    whole: dict[str, Any] = {
        "event_id": derive_id(namespace, "ann", "w", number),
        "namespace": namespace,
        "kind": kind,
        "actor": RED_KEY,
        "value": None if kind == "deleted" else json.dumps({"number": number}),
    }
    return memory_event(**whole | changes)


def system(text: str) -> Message:
    return Message(role="system", content=text)
