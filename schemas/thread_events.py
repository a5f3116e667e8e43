"""Conversations with agents, run by run, and what agents remember."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas import json_text
from schemas.event_types import MIB, Int, Millis, Personal, PersonalJson, Sealed, Subject
from schemas.message_types import Message, Tool
from schemas.task_events import Sampling

MemoryKind = Literal["put", "deleted", "skipped", "failed"]
ThreadKind = Literal[
    "created",
    "changed",
    "deleted",
    "run_requested",
    "run_answered",
    "call_begun",
    "call_accepted",
    "call_ended",
    "run_paused",
    "run_resumed",
    "run_cancelled",
    "run_ended",
    "run_deleted",
    "compacted",
]
BusyStrategy = Literal["reject", "enqueue", "interrupt"]
RunEnding = Literal["success", "error", "timeout", "interrupted", "max_turns", "max_tokens", "budget"]
CallWait = Literal["results", "consent", "unfinished", "child", "remote"]
"""What a call waits for: the client's result, a person's consent, a person who knows whether it was made, the run of an
agent that itself waits, or an answer to an agent of another server that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """An item of the agents' store was put or deleted, or a rule has put none. The newest put or deletion of a key
    counts.
    """

    MOST_BYTES: ClassVar[int] = 2 * MIB
    event_id: Annotated[
        str, "uuid5(namespace, key, writer, number of its write); by a rule: uuid5(run, remember, verdict)"
    ]
    namespace: Annotated[str, "key of the record: its labels, joined by dots; a tenant's begins with the tenant"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    kind: MemoryKind
    key: Annotated[str, "of the item, in its namespace; skipped, failed: the run"]
    actor: Annotated[str, "the key, the person or the program that did it"]
    value: Annotated[str | None, "put: JSON object", PersonalJson] = None
    run_id: Annotated[str | None, "the run that it comes from, by its agent's rule; null: by no rule"] = None
    verdict_id: Annotated[str | None, "event_id of the verdict on that run; null: its end was enough"] = None
    answer_turn: Annotated[str | None, "of that run: turn_id of its answer"] = None
    rule: Annotated[str | None, "prompt NAME@VERSION, or function MODULE:NAME and the sha256 of its file"] = None
    item_turn: Annotated[str | None, "turn_id of the call that the prompt made; null: there was none"] = None
    error: Annotated[str | None, "failed: why nothing was put", Personal] = None
    sealed: Sealed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCall:
    """A call of a registered tool, which the server makes for a run."""

    call_id: Annotated[str, "as the model's answer has it"]
    tool_id: Annotated[str, "of the registry"]
    arguments: Annotated[str, "JSON object", PersonalJson]
    digest: Annotated[str | None, "sha256 of the accepted description; null: it was refused before it was found"] = None
    attempt: Annotated[Int, "how often it had begun before"] = 0
    idempotent: Annotated[bool, "whether its entry says that it may be made again"] = False
    duration_ms: Annotated[Int | None, "call_ended: how long it took; null: it was not made"] = None
    error: Annotated[str | None, "call_ended: why its result is none, in a word; null: it has one"] = None
    child_run: Annotated[str | None, "the run that answers it; null: its tool is no agent, or it was refused"] = None
    remote_task: Annotated[str | None, "call_accepted, call_ended: the task of another server that answers it"] = None
    handoff: Annotated[bool, "whether its result, unless there is none, is the answer of the run"] = False
    prompt_tokens: Annotated[Int | None, "call_ended, of an agent: read by its run and by those it called"] = None
    completion_tokens: Annotated[Int | None, "call_ended, of an agent: sampled by the same"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCall:
    """The call of another run that a run answers."""

    run_id: str
    turn_id: Annotated[str, "the turn of its answer with the call"]
    call_id: str
    depth: Annotated[Int, "how many runs are above: 1 if that run answers no call itself"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedCall:
    """A call that a run waits for."""

    call_id: str
    waits_for: CallWait
    question: Annotated[str | None, "remote: what that agent asks; consent: why a rule asks for it", Personal] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecision:
    """What a person decided about a call."""

    call_id: str
    allowed: bool
    answer: Annotated[str | None, "of a call that waited for remote: what that agent is told", Personal] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadEvent:
    """A thread was made, changed, deleted or compacted, or a run on it was requested, did something, or ended.

    A thread is the fold of these. What the model read and sampled are the turns of the trajectory with the run's id.
    """

    event_id: Annotated[
        str,
        "created, changed, run_requested, run_resumed: random; the others: uuid5(thread, run, kind), and for a step "
        "what it is about",
    ]
    thread_id: Annotated[str, "key of the record, a tenant's with the tenant and a dot before it; without one, run_id"]
    created_at: Millis
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], Personal] = field(default_factory=dict)
    subject: Subject = None
    kind: ThreadKind
    actor: Annotated[str, "the key, the person or the program that did it"]
    run_id: Annotated[
        str | None, "run_*, call_*: the run, the trajectory of this id; compacted: the one that ended"
    ] = None
    agent_id: Annotated[str | None, "created: the only agent that it is for; run_requested: the one that answers"] = (
        None
    )
    labels: Annotated[
        str | None, "JSON object, what clients call metadata: created, changed, run_requested", PersonalJson
    ] = None
    values: Annotated[str | None, "JSON object, the thread's context: created, changed", PersonalJson] = None
    checkpoint: Annotated[str | None, "changed: the event after which it continues; compacted: that it is about"] = None
    stateless: Annotated[bool, "run_requested: of no thread"] = False
    if_busy: Annotated[BusyStrategy | None, "run_requested: what becomes of it while another run is in progress"] = None
    model: Annotated[str | None, "run_requested: POLICY, or POLICY@VERSION"] = None
    memory_config: Annotated[str | None, "run_requested: JSON object, of the agent: what the model gets to read"] = None
    sampling: Annotated[Sampling | None, "run_requested: how tokens are drawn"] = None
    request: Annotated[str | None, "run_requested: JSON object, the rest of what the client sent", PersonalJson] = None
    rolled_back: Annotated[bool, "run_cancelled: the thread forgets its messages, too"] = False
    ending: Annotated[RunEnding | None, "run_ended: how"] = None
    turn_id: Annotated[
        str | None,
        "run_answered, run_ended: the turn with the answer; call_*, run_paused: of the answer with the call; "
        "compacted: with the summary",
    ] = None
    error: Annotated[str | None, "run_ended: why there is no answer; compacted: why no summary", Personal] = None
    prompt_tokens: Annotated[Int | None, "run_answered, run_ended: tokens that the model read"] = None
    completion_tokens: Annotated[Int | None, "run_answered, run_ended: tokens that were sampled"] = None
    call: Annotated[RunCall | None, "call_*: the call"] = None
    stands_for: Annotated[
        Int | None, "compacted: later runs read `messages` for so many of the state's first, its system message aside"
    ] = None
    digest: Annotated[str | None, "compacted: sha256 over the sha256 of each of these, as JSON", Personal] = None
    rule: Annotated[str | None, "compacted: the rule and its version, and the prompt of the summary"] = None
    parent: Annotated[ParentCall | None, "run_requested: the call that it answers; null: it is no child"] = None
    messages: Annotated[
        tuple[Message, ...],
        "created, changed, run_requested: new ones; run_answered, run_ended: the answer; call_ended, run_resumed: "
        "results of calls; compacted: the summary",
    ] = ()
    tools: Annotated[tuple[Tool, ...], "run_requested: what the agent may call; its metadata has the server's"] = ()
    waits: Annotated[tuple[PausedCall, ...], "run_paused: the calls that wait"] = ()
    decisions: Annotated[tuple[CallDecision, ...], "run_resumed: what a person decided"] = ()
    sealed: Sealed = None


RUN_TASK, PROGRAM_RUN = "run_task", "program_run"
"""Metadata of a run that a program answers. `run_requested`: the task that it works on. `run_ended`, with success: the
trajectory of the program, which its turn is of; without a turn the answer is what the program printed."""
HANDOFF = "handoff"
"""Metadata of `run_ended`, with success and without a turn: the call whose result is the answer."""
ANSWERED_TASK = "answered_task"
"""Metadata of `run_requested`: the task whose run it is; its turns are those of the task's run, which has its id."""
MEMORY_LABEL = re.compile(r"[^.\x00-\x1f\x7f]{1,128}")
"""What a label of a namespace may be: names with a dot would be two labels."""
MOST_LABELS = 16
"""Most labels of a namespace, its tenant's among them."""
MOST_KEY_CHARACTERS = 512
"""Longest key of an item."""


def namespace_problem(namespace: str) -> str | None:
    """Return what is wrong with a namespace; None if it is one."""
    labels = namespace.split(".")
    if len(labels) > MOST_LABELS:
        return f"namespace has {len(labels)} labels; expected 1 to {MOST_LABELS}"
    for number, label in enumerate(labels):
        if MEMORY_LABEL.fullmatch(label) is None:
            expected = "1 to 128 characters, no control character and no dot among them"
            return f"namespace[{number}] is {label[:140]!r}; expected {expected}"
    return None


def memory_problems(event: MemoryEvent) -> Iterator[str]:
    """Return one sentence for each rule that a memory breaks."""
    if (problem := namespace_problem(event.namespace)) is not None:
        yield problem
    if not 1 <= len(event.key) <= MOST_KEY_CHARACTERS:
        yield f"key has {len(event.key)} characters; expected 1 to {MOST_KEY_CHARACTERS}"
    if (event.kind == "put") != (event.value is not None):
        yield f"kind is {event.kind} and value is {'null' if event.value is None else 'set'}; put alone has one"
    if (event.run_id is None) != (event.rule is None):
        yield f"run_id is {event.run_id!r} and rule is {event.rule!r}; set both or neither"
    if (event.kind == "failed") != (event.error is not None):
        yield f"kind is {event.kind} and error is {event.error!r}; failed alone has one"
    yield from _object_problems("value", event.value)


_RUN_FIELDS = ("agent_id", "if_busy", "model", "memory_config", "sampling")
"""What a request for a run has; of these an event of another kind has an agent at most."""


def thread_problems(event: ThreadEvent) -> Iterator[str]:
    """Return one sentence for each rule that a thread breaks."""
    if event.kind.startswith(("run_", "call_", "compacted")) != (event.run_id is not None):
        yield f"kind is {event.kind} and run_id is {event.run_id!r}; events of a run alone have one"
    for name in _RUN_FIELDS:
        if event.kind == "run_requested" and getattr(event, name) is None:
            yield f"kind is run_requested and {name} is null; a run needs it"
        elif event.kind != "run_requested" and name != "agent_id" and getattr(event, name) is not None:
            yield f"kind is {event.kind} and {name} is set; run_requested alone has one"
    if (event.kind == "run_ended") != (event.ending is not None):
        yield f"kind is {event.kind} and ending is {event.ending}; run_ended alone has one"
    yield from _compaction_problems(event) if event.kind == "compacted" else _ending_problems(event)
    yield from _step_problems(event)
    if event.stateless and event.thread_id != event.run_id:
        yield f"thread_id is {event.thread_id} of stateless run {event.run_id}; expected the run's"
    for name in ("labels", "values", "memory_config", "request"):
        yield from _object_problems(name, getattr(event, name))


def _ending_problems(event: ThreadEvent) -> Iterator[str]:
    has_turn = event.ending == "success" or event.kind.startswith(("run_answered", "call_", "run_paused"))
    is_of_others = event.ending == "success" and not event.metadata.keys().isdisjoint((PROGRAM_RUN, HANDOFF))
    if has_turn != (event.turn_id is not None) and not is_of_others:
        expected = "an answer and what is done for it have a turn, and nothing else"
        yield f"kind is {event.kind}, ending {event.ending} and turn_id {event.turn_id!r}; {expected}"
    if (event.ending not in (None, "success", "interrupted")) != (event.error is not None):
        yield f"ending is {event.ending} and error is {event.error!r}; a run that fails alone has one"


def _compaction_problems(event: ThreadEvent) -> Iterator[str]:
    if event.rule is None:
        yield "kind is compacted and rule is null; name the rule and its version"
    parts = (event.checkpoint, event.turn_id, event.stands_for, event.digest, event.messages or None)
    if event.error is None and None in parts:
        yield "a summary has checkpoint, turn_id, stands_for, digest and messages; without one, error says why"
    if event.error is not None and parts != (None,) * len(parts):
        yield f"error is {event.error!r}, and there is a summary; set one of them"


def _step_problems(event: ThreadEvent) -> Iterator[str]:
    """Yield what is wrong with the fields of a run's steps."""
    if event.kind.startswith("call_") != (event.call is not None):
        yield f"kind is {event.kind}, and call is {'null' if event.call is None else 'set'}; events of a call have one"
    if event.call is not None:
        yield from _object_problems("call.arguments", event.call.arguments)
    if (event.kind == "run_paused") != bool(event.waits):
        yield f"kind is {event.kind}, and {len(event.waits)} calls wait; run_paused alone has some"
    if event.parent is not None and (event.kind != "run_requested" or event.parent.depth < 1):
        yield f"kind is {event.kind}, and parent has depth {event.parent.depth}; run_requested alone has one, from 1"
    if event.kind == "call_accepted" and (event.call is None or event.call.remote_task is None):
        yield "kind is call_accepted and call.remote_task is null; name the task"
    if event.decisions and event.kind != "run_resumed":
        yield f"kind is {event.kind}, and it has decisions; run_resumed alone may have some"
    if event.kind == "run_answered" and None in (event.prompt_tokens, event.completion_tokens):
        yield "kind is run_answered, and its tokens are null; count them"


def _object_problems(name: str, text: str | None) -> Iterator[str]:
    """Yield why a text that is set is no JSON object."""
    if text is None:
        return
    try:
        value = json_text.parse(text)
    except ValueError as exc:
        yield f"{name} is no JSON: {exc}"
        return
    if not isinstance(value, dict):
        yield f"{name} is {text[:80]}; expected a JSON object"
