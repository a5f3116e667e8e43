"""Turn records of conversations into what the audit keeps of them.

ThreadEvent, Turn ──► ThreadFact, ThreadTurn
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from sys import intern

from schemas import json_text
from schemas.conventions import TASK_PARTS, THREAD, THREAD_TASK
from schemas.events import Message, ThreadEvent, Turn, derive_id
from streams.kafka.record import Record
from streams.tools.audit.record_digests import content_digest, digest
from streams.tools.audit.thread_facts import MemoryRule, MessageFact, ThreadFact, ThreadReading, ThreadTurn

OF_THREADS = "threads"
"""The protocol of turns that answer runs of threads."""
OWN_IDS = ("run_cancelled", "run_ended", "run_deleted")
"""Kinds of events whose ids follow from their thread and run."""
DERIVED = "5"
"""The version of a UUID that is derived from names, where its text has it; random ones have another."""


def thread_fact(record: Record, event: ThreadEvent) -> ThreadFact:
    """Return what is kept of an event of a thread."""
    task_id, parts = event.metadata.get(THREAD_TASK), event.metadata.get(TASK_PARTS, "")
    own_id = None
    if event.kind in OWN_IDS:
        own_id = derive_id(event.thread_id, event.run_id, event.kind)
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
        task_id=task_id or "",
        task_parts=frozenset() if task_id is None else frozenset((task_id, part) for part in parts.split()),
    )


def thread_turn(turn: Turn) -> ThreadTurn | None:
    """Return what a turn says of the run that it answers; None if it answers none."""
    if turn.protocol != OF_THREADS:
        return None
    facts = tuple(_message_facts(turn.messages)) if turn.parent_id is None else None
    return ThreadTurn(
        agent_id=intern(turn.agent_id),
        version=turn.adapter_version,
        request_digest=turn.request_digest,
        thread_id=turn.metadata.get(THREAD),
        reply=digest(turn.reply),
        reading=None if facts is None else ThreadReading().extend(facts),
        after_prompt=() if facts is None or turn.prompt_version is None else facts,
    )


def request_digest_of(thread_id: str, run_id: str) -> str:
    """Return the digest that the call of a run has."""
    return sha256(json_text.one_line([thread_id, run_id]).encode()).hexdigest()


def _message_facts(messages: Iterable[Message]) -> Iterable[MessageFact]:
    return (MessageFact(intern(message.role), digest(message)) for message in messages)


def _memory_rule(text: str | None) -> MemoryRule:
    """Return what a memory_config says; one that cannot be read says nothing, and no run with it succeeds."""
    try:
        fields = json_text.parse(text or "{}")
    except ValueError:
        return PLAIN
    turns = fields.get("turns")
    if turns is None and "namespace" not in fields:
        return PLAIN
    return MemoryRule(turns if isinstance(turns, int) else None, fields.get("namespace") is not None)


PLAIN = MemoryRule()
