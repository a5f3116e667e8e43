"""The audit's facts about conversations: events of threads, and the turns that answer runs.

ThreadEvent ──► ThreadFact      Turn of a run ──► ThreadTurn
messages ──► MessageFact, each a digest ──► ThreadReading: what a model had before it, in two digests
AccessEvent of a key ──► KeyRights ◄── the actor of events of threads and of the store
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from sys import intern
from typing import Any, NamedTuple

from plugins.threads.audit.call_steps import StepFact, step_fact
from schemas import json_text
from schemas.conventions import TASK_PARTS, THREAD, THREAD_TASK
from schemas.events import (
    ANSWERED_TASK,
    PROGRAM_RUN,
    RUN_TASK,
    AccessEvent,
    Coordinates,
    Message,
    ParentCall,
    ThreadEvent,
    Turn,
    derive_id,
)
from streams.kafka.record import Record
from streams.tools.audit.record_digests import content_digest, digest

OF_THREADS = "threads"
"""The protocol of turns that answer runs of threads."""
OF_MEMORY = "memory"
"""The protocol of turns with what an agent remembers: items of the store, and summaries."""
OWN_IDS = ("run_cancelled", "run_ended", "run_deleted", "compacted")
"""Kinds of events with ids derived from their thread and run."""
DERIVED = "5"
"""The version of a UUID that is derived from names, where its text has it; random ones have another."""
SEPARATOR = "."
"""Between a tenant and a name of its own."""


class MessageFact(NamedTuple):
    """A message."""

    role: str
    content: int
    """The sha256 of all of it, as JSON."""


class ThreadReading(NamedTuple):
    """Messages in their order, as digests."""

    system: int = 0
    """Of the first message, if it is the system's."""
    rest: int = 0
    """Of the others."""
    length: int = 0

    def extend(self, messages: Iterable[MessageFact]) -> ThreadReading:
        """Return these messages, followed by others."""
        system, rest, length = self
        for message in messages:
            if length == 0 and message.role == "system":
                system = message.content
            else:
                rest = digest(rest, message.content)
            length += 1
        return ThreadReading(system, rest, length)


class ThreadFact(NamedTuple):
    """An event of a thread."""

    at: Coordinates
    kind: str
    identity: int
    """A digest of its id."""
    content: int
    """A digest of what it says, without its time."""
    has_own_id: bool
    """Whether its id is that of what it is about, if it has to be."""
    is_derived: bool
    """Whether its id is derived: another writer of the same event gives it the same one."""
    actor: str
    run_id: str
    """Empty: it is of no run."""
    agent_id: str | None
    stateless: bool
    if_busy: str | None
    model: str
    """Empty: it requests no run."""
    memory: MemoryRule
    checkpoint: int | None
    """A digest of the id of the event that the thread continues from."""
    adds_state: bool
    """changed: whether messages or values do."""
    rolled_back: bool
    ending: str | None
    turn_id: str
    messages: tuple[MessageFact, ...]
    step: StepFact
    """Of a run: what it says of calls."""
    run_task: str
    """run_requested: the task that its agent's program works on; empty: the model answers."""
    answered_task: str
    """run_requested: the task whose run it is; empty: it is of none."""
    program_run: str
    """run_ended: the trajectory of the program that answered; empty: none did."""
    text: int
    """run_ended: a digest of the answer's text."""
    task_id: str
    """changed: the task that said it; empty: none did."""
    task_parts: frozenset[tuple[str, str]]
    """Of that task, what the thread then has."""
    summary: SummaryFact | None
    """compacted, unless that failed."""
    child: ChildFact
    """What it says of runs that answer calls of others."""


class ChildFact(NamedTuple):
    """What an event says of a run that answers a call of another."""

    run_id: str = ""
    """call_begun, call_ended: that run; empty: no run answers the call."""
    parent: ParentCall | None = None
    """run_requested: the call."""
    text: int = 0
    """A digest of the answer of a run of no thread, or of the result of a call that a run answers."""


class SummaryFact(NamedTuple):
    """The messages that a summary stands for, and where it was made."""

    stands_for: int
    digest: str
    rule: str
    trajectory_id: str
    """Of the call that made it."""


class MemoryRule(NamedTuple):
    """What an agent's memory_config says that a run reads."""

    turns: int | None = None
    has_items: bool = False
    stay: int | None = None
    """The last questions that no summary stands for; None: the agent has none made."""


class ThreadTurn(NamedTuple):
    """What a turn says that was made for a run of a thread."""

    agent_id: str
    version: int
    request_digest: str
    thread_id: str | None
    """Without its tenant."""
    reply: int
    """A digest of the message."""
    reading: ThreadReading | None
    """All that the model read; None: another turn has the beginning of it."""
    prompt: str = ""
    """NAME@VERSION; empty: none."""
    after_prompt: tuple[MessageFact, ...] = ()
    """With a prompt: the messages of it, which are not told apart here, and those of the thread."""

    def read_of(self, length: int) -> ThreadReading | None:
        """Return what the model read of a thread that has so many messages; None: another turn has the beginning."""
        if not self.after_prompt:
            return self.reading
        return ThreadReading().extend(self.after_prompt[max(len(self.after_prompt) - length, 0) :])


class KeyRights(NamedTuple):
    """What a key may name."""

    tenant: str | None
    agent_id: str | None

    def problem(self, actor: str, namespace: str) -> str | None:
        """Return why a key cannot have written a namespace; None if it can."""
        own = ".".join(label for label in (self.tenant, self.agent_id) if label is not None)
        if not own or namespace == own or namespace.startswith(f"{own}."):
            return None
        return f"{actor} wrote {namespace[:140]}, and what it names begins with {own}"


def take_key(keys: dict[str, KeyRights], event: AccessEvent) -> None:
    """Note what a key may name, by the actor that it is."""
    if event.kind == "key_created":
        keys.setdefault(f"key {event.subject_id}", KeyRights(event.tenant, event.agent_id))


def tenant_of(name: str) -> str | None:
    """Return the tenant of a name; None if it has none."""
    tenant, separator, _ = name.partition(SEPARATOR)
    return tenant if separator else None


# --- of records -------------------------------------------------------------------------------------------------------


def thread_fact(record: Record, event: ThreadEvent) -> ThreadFact:
    """Return what is kept of an event of a thread."""
    task_id, parts = event.metadata.get(THREAD_TASK), event.metadata.get(TASK_PARTS, "")
    own_id = None
    if event.kind in OWN_IDS:
        own_id = derive_id(event.thread_id, event.run_id, event.kind)
    elif event.kind == "run_answered":
        own_id = derive_id(event.thread_id, event.run_id, event.kind, event.turn_id)
    elif event.call is not None:
        about = {"call_begun": (event.call.attempt,), "call_accepted": (event.call.remote_task,)}.get(event.kind, ())
        own_id = derive_id(event.thread_id, event.run_id, event.kind, event.turn_id, event.call.call_id, *about)
    elif task_id is not None:
        own_id = derive_id(event.thread_id, task_id, parts)
    return ThreadFact(
        at=record.at,
        kind=event.kind,
        identity=digest(event.event_id),
        content=content_digest(event, "created_at", "traceparent"),
        has_own_id=own_id in (None, event.event_id),
        is_derived=own_id is not None or event.event_id[14:15] == DERIVED,
        actor=intern(event.actor),
        run_id=intern(event.run_id or ""),
        agent_id=None if event.agent_id is None else intern(event.agent_id),
        stateless=event.stateless,
        if_busy=event.if_busy,
        model=intern(event.model or ""),
        memory=_memory_rule(event.memory_config),
        checkpoint=None if event.checkpoint is None else digest(event.checkpoint),
        adds_state=bool(event.messages) or event.values is not None,
        rolled_back=event.rolled_back,
        ending=event.ending,
        turn_id=event.turn_id or "",
        messages=tuple(_message_facts(event.messages)),
        step=step_fact(event),
        run_task=event.metadata.get(RUN_TASK, ""),
        answered_task=event.metadata.get(ANSWERED_TASK, ""),
        program_run=event.metadata.get(PROGRAM_RUN, ""),
        text=digest(event.messages[0].content) if event.kind == "run_ended" and event.messages else 0,
        task_id=task_id or "",
        task_parts=frozenset() if task_id is None else frozenset((task_id, part) for part in parts.split()),
        summary=_summary(event),
        child=_child(event),
    )


def _child(event: ThreadEvent) -> ChildFact:
    child = "" if event.call is None else event.call.child_run or ""
    is_single = event.kind == "run_ended" and event.thread_id == event.run_id
    text = digest(event.messages[0].content) if event.messages and (child or is_single) else 0
    return ChildFact(child, event.parent, text)


def _summary(event: ThreadEvent) -> SummaryFact | None:
    if event.kind != "compacted" or event.error is not None:
        return None
    trajectory_id = derive_id(event.run_id, "compacted", event.checkpoint, event.stands_for)
    return SummaryFact(event.stands_for or 0, event.digest or "", event.rule or "", trajectory_id)


def thread_turn(turn: Turn) -> ThreadTurn | None:
    """Return what a turn says of a run that it answers, or that it was made for; None if it is of none."""
    if turn.protocol not in (OF_THREADS, OF_MEMORY):
        return None
    facts = tuple(_message_facts(turn.messages)) if turn.parent_id is None else None
    return ThreadTurn(
        agent_id=intern(turn.agent_id),
        version=turn.adapter_version,
        request_digest=turn.request_digest,
        thread_id=turn.metadata.get(THREAD),
        reply=_content_of(turn.reply),
        reading=None if facts is None else ThreadReading().extend(facts),
        prompt=intern(turn.prompt_version or ""),
        after_prompt=() if facts is None or turn.prompt_version is None else facts,
    )


def request_digest_of(thread_id: str, run_id: str, number: int) -> str:
    """Return the digest that a call of the model by a run has; `number`: how many answers were before."""
    parts = [thread_id, run_id, *([str(number)] if number else [])]
    return sha256(json_text.one_line(parts).encode()).hexdigest()


def _message_facts(messages: Iterable[Message]) -> Iterable[MessageFact]:
    return (MessageFact(intern(message.role), _content_of(message)) for message in messages)


def _content_of(message: Message) -> int:
    """Return the sha256 of a message as JSON, without the fields that are not set."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    fields |= {name: text for name in ("name", "tool_call_id") if (text := getattr(message, name)) is not None}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return int(sha256(json_text.one_line(fields).encode()).hexdigest(), 16)


def digest_of_all(messages: Iterable[MessageFact]) -> str:
    """Return the digest that a summary names of the messages that it stands for."""
    return sha256("\n".join(f"{message.content:064x}" for message in messages).encode()).hexdigest()


def _memory_rule(text: str | None) -> MemoryRule:
    """Return what a memory_config says; one that cannot be read says nothing, and no run with it succeeds."""
    try:
        fields = json_text.parse(text or "{}")
    except ValueError:
        return MemoryRule()
    turns, compaction = fields.get("turns"), fields.get("compaction")
    has_items = any(fields.get(name) is not None for name in ("namespace", "search"))
    stay = compaction.get("turns") if isinstance(compaction, dict) else None
    return MemoryRule(turns if isinstance(turns, int) else None, has_items, stay)
