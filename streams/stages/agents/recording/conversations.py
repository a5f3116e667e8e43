"""The trajectories in the log that may still be continued.

    trajectories, turns ──► take ──► Conversations ──► the one a call continues; the turns of a call that came before

The server takes in its own records once they are acknowledged, and earlier ones at its start: it knows nothing that the
log does not. Turns are remembered up to a number of bytes. Beyond it the trajectory that was idle longest loses its
turns: it cannot be continued any more, and a call that names it is refused, also once only its name is left. Not
thread-safe.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from schemas.conventions import CONVERSATION, RatedAnswer
from schemas.events import Message, Observed, Purpose, TrajectoryEvent, Turn, derive_id
from streams.errors import CallError
from streams.stages.agents.recording.calls import CallInProgress, ModelCall
from streams.stages.agents.trajectories.call_chains import Chains, Digests, exchanges, opening

K = TypeVar("K")
V = TypeVar("V")

RETRIED_MS = 600_000
"""Maximum age of an answer for a retry without a key: clients wait ten minutes by default."""
MOST_ALIKE = 16
"""Maximum number of trajectories with the same first messages that are searched for the one that a call continues."""
TURN_BYTES = 3584
"""Bytes of a turn beyond its texts and tokens: ids, digests and index entries."""
MESSAGE_BYTES = 512
"""The same for each of its messages."""


@dataclass(slots=True, eq=False)
class Conversation:
    """One trajectory."""

    trajectory_id: str
    task_id: str
    agent_id: str
    begun_at: int
    """Milliseconds since the epoch, as `last_at`."""
    last_at: int
    purpose: Purpose = "serve"
    subject: str | None = None
    """The person that it is of; a call of a run without a task may be of another."""
    continues: str | None = None
    """The conversation that it is a run of; None: it is one by itself."""
    sampling_id: str | None = None
    slot: int | None = None
    group_size: int | None = None
    adapter_version: int | None = None
    """The pinned version, which answers all its calls."""
    chains: Chains = field(default_factory=Chains)
    number: int = 0
    """Number of the next turn."""
    started: bool = False
    """Whether its start was written."""
    ended: bool = False
    began: TrajectoryEvent | None = None
    """The start of a task's run, which says how its calls are answered."""
    end: TrajectoryEvent | None = None
    """The end of a task's run, from which its response is made."""
    responded: bool = False
    """Whether that response is in the log."""
    error: str | None = None
    """Why that response failed."""
    ending: bool = False
    """Whether it is about to end: new calls are refused."""
    differs: str | None = None
    """Why its environment started differently from its siblings'."""
    called: set[str] = field(default_factory=set)
    """The first turn of each call."""
    in_progress: set[CallInProgress] = field(default_factory=set)
    open_calls: int = 0
    """Calls in progress, and turns that the broker has not acknowledged yet."""
    nbytes: int = 0
    """Memory of its turns, in bytes."""
    closed: str | None = None
    """Why its turns are no longer remembered."""

    @property
    def is_learned_from(self) -> bool:
        """Whether it is of a run that something is learned from, or measured on."""
        return self.sampling_id is not None and self.purpose != "serve"

    def check_open(self) -> None:
        """Raise CallError if no further call may begin."""
        if self.ending:
            raise CallError("conflict", "its run is ending, and no call of it is answered any more")
        limit = None if self.began is None else self.began.max_turns
        if limit is not None and len(self.called) >= limit:
            text = f"this run has made {len(self.called)} calls, and its task allows {limit} (max_turns)"
            raise CallError("invalid", f"{text}; end it with what there is")

    def subject_of(self, call: ModelCall) -> str | None:
        """Return whose words a call of it has: those of its task's subject, or else of the caller's."""
        return self.subject if self.sampling_id is not None and self.subject else call.subject or self.subject

    @property
    def turns(self) -> Iterator[Turn]:
        """Every turn that is acknowledged, in the order of the log."""
        return (placed.turn for placed in self.chains.turns.values())


class HistoryEnd(NamedTuple):
    """Where a call may continue."""

    created_at: int
    turn_id: str
    conversation: Conversation

    def age(self) -> tuple[int, str]:
        """Return a sort key that is larger for newer turns, and orders simultaneous ones the same after a restart."""
        return self.created_at, self.turn_id


class TrajectoryNames(Protocol):
    """Names of trajectories."""

    def add(self, name: str, /) -> None: ...

    def __contains__(self, name: object, /) -> bool: ...


class Conversations:
    """Every trajectory that is remembered."""

    def __init__(self, most_bytes: int = sys.maxsize, forgotten: TrajectoryNames | None = None) -> None:
        self.by_id: dict[str, Conversation] = {}
        """Trajectories in the order of their newest turns."""
        self.nbytes, self.evicted = 0, 0
        self.fates: Counter[str] = Counter()
        """Counts of turns taken in: delivered, not_delivered, failed."""
        self.actions: Counter[str] = Counter()
        """Counts of actions that environments could use and could not: usable, unusable."""
        self._most_bytes = most_bytes
        self._forgotten: TrajectoryNames = set[str]() if forgotten is None else forgotten
        """Trajectories in the log of which only the name is remembered."""
        self._of_turn: dict[str, Conversation] = {}
        self._ends: dict[tuple[str, bytes, bytes], set[HistoryEnd]] = {}
        """Turns by agent, tools, and the digest of a history with its last answer."""
        self._openings: dict[tuple[str, bytes], set[Conversation]] = {}
        """The trajectories that begin with some messages, by agent and `opening`."""
        self._exchanges: dict[tuple[str, bytes], set[Conversation]] = {}
        """The trajectories with an answer and the message before it, by agent and `exchanges`."""
        self._answered: dict[tuple[str | None, tuple[str, str, str]], dict[int, Turn]] = {}
        """The turns of the newest call that a retry may repeat, by trajectory, `request_of` and choice. Runs of the
        same task begin with the same body, so a call that names its trajectory is a retry only within it; None holds
        the newest of all, for calls that name none.
        """

    @property
    def count(self) -> int:
        """Number of remembered trajectories."""
        return len(self.by_id)

    def limit(self, most_bytes: int) -> None:
        """Remember turns up to this many bytes from now on."""
        self._most_bytes = most_bytes
        if self.by_id:
            self._make_room(next(reversed(self.by_id.values())))

    # --- taking in ----------------------------------------------------------------------------------------------------

    def take(self, event: Turn | TrajectoryEvent) -> None:
        """Take in records of the log, in its order."""
        if isinstance(event, Turn):
            self._take_turn(event)
            return
        if event.trajectory_id in self._forgotten:
            return
        conversation = self.by_id.setdefault(
            event.trajectory_id,
            Conversation(event.trajectory_id, event.task_id, event.agent_id, event.created_at, event.created_at),
        )
        conversation.purpose, conversation.sampling_id, conversation.slot = event.purpose, event.sampling_id, event.slot
        conversation.group_size, conversation.adapter_version = event.group_size, event.adapter_version
        conversation.started, conversation.subject = True, event.subject
        conversation.continues = event.metadata.get(CONVERSATION)
        conversation.ended = conversation.ended or event.kind == "ended"
        if event.sampling_id is not None:
            if event.kind == "started":
                conversation.began = conversation.began or event
            elif conversation.end is None:
                conversation.end = event
                self._count_action(event.observed)

    def _count_action(self, after: Observed | None) -> None:
        """Count the action after which this was shown."""
        if after is not None and after.ok is not None:
            self.actions["usable" if after.ok else "unusable"] += 1

    def restore(self, event: TrajectoryEvent, oldest_ms: int) -> None:
        """Take in what the log had before the server started; forget trajectories older than `oldest_ms` that ended.

        An old one without an end may be of a run that waits for a person.
        """
        self.take(event)
        conversation = self.by_id.get(event.trajectory_id)
        if conversation is None or conversation.begun_at >= oldest_ms or not conversation.ended:
            return
        if conversation.sampling_id is None or event.created_at < oldest_ms:
            self.forget(conversation)

    def forget_ended(self, oldest_ms: int) -> None:
        """Forget trajectories that began before `oldest_ms` and have ended, with their response if they have one."""
        for run in list(self.by_id.values()):
            if run.begun_at < oldest_ms and run.ended and (run.sampling_id is None or run.responded):
                self.forget(run)

    def take_response(self, response_id: str) -> None:
        """Take in that a response is in the log: the turns of its run are not needed any more."""
        if (conversation := self.by_id.get(response_id)) is not None:
            conversation.responded = True

    def _take_turn(self, turn: Turn) -> None:
        if turn.trajectory_id in self._forgotten:
            return
        conversation = self.by_id.pop(turn.trajectory_id, None)
        if conversation is None:
            started_at = turn.started_at
            conversation = Conversation(turn.trajectory_id, turn.task_id, turn.agent_id, started_at, started_at)
            conversation.sampling_id, conversation.slot = turn.sampling_id, turn.slot
            conversation.subject = turn.subject
            # the beginning of a task's run is in the log before any call
            conversation.started = turn.sampling_id is not None
        self.by_id[turn.trajectory_id] = conversation
        conversation.number = max(conversation.number, turn.number + 1)
        if turn.choice == 0:
            conversation.called.add(turn.turn_id)
        conversation.last_at = max(conversation.last_at, turn.created_at)
        if conversation.closed is not None or turn.turn_id in conversation.chains.turns:
            return
        self.fates["failed" if turn.error else "delivered" if turn.delivered else "not_delivered"] += 1
        self._count_action(turn.observed)
        nbytes = held_bytes(turn)
        conversation.nbytes += nbytes
        self.nbytes += nbytes
        node = conversation.chains.add(turn)
        self._of_turn[turn.turn_id] = conversation
        if node.broken is None and turn.error is None:
            end = HistoryEnd(turn.created_at, turn.turn_id, conversation)
            self._ends.setdefault((turn.agent_id, node.kind.tools, node.end), set()).add(end)
            if node.parent is None:
                self._openings.setdefault((turn.agent_id, opening(turn.messages)), set()).add(conversation)
            for exchange in _exchanges_of(turn):
                self._exchanges.setdefault(exchange, set()).add(conversation)
        self._offer_answer(turn)
        self._make_room(conversation)

    def _make_room(self, newest: Conversation) -> None:
        """Close the longest unused until what is remembered is within its bound; `newest` stays."""
        while self.nbytes > self._most_bytes:
            closable = (oldest for oldest in self.by_id.values() if oldest.nbytes and _may_close(oldest))
            oldest = next(closable, newest)
            if oldest is newest:
                return
            self.evicted += 1
            self.close(oldest, "it was not used for the longest time when memory was full (serve.remembered_mb)")

    def close(self, conversation: Conversation, reason: str) -> None:
        """Remember the turns of a trajectory no longer: no call continues it. One that has ended is forgotten."""
        conversation.closed = reason
        for turn_id, placed in conversation.chains.turns.items():
            self._of_turn.pop(turn_id, None)
            end = HistoryEnd(placed.turn.created_at, turn_id, conversation)
            _discard(self._ends, (conversation.agent_id, placed.kind.tools, placed.end), end)
            if placed.parent is None:
                _discard(self._openings, (conversation.agent_id, opening(placed.turn.messages)), conversation)
            for exchange in _exchanges_of(placed.turn):
                _discard(self._exchanges, exchange, conversation)
            self._forget_answer(placed.turn)
        self.nbytes -= conversation.nbytes
        conversation.chains, conversation.nbytes = Chains(), 0
        if conversation.ended:
            self.forget(conversation)

    def forget_subject(self, subject: str) -> None:
        """Remember no turns any more of trajectories in which a person spoke."""
        for conversation in list(self.by_id.values()):
            if subject == conversation.subject or any(turn.subject == subject for turn in conversation.turns):
                conversation.began = conversation.end = None
                self.close(conversation, "its user was erased")

    def note_given(self, call: ModelCall, turn_id: str) -> None:
        """Take in that an answer was read to its end: without a key of its client, no later call is a retry of it."""
        conversation = self._of_turn.get(turn_id)
        if conversation is not None and not has_key(call):
            self._forget_answer(conversation.chains.turns[turn_id].turn)

    def note_unread(self, turn_id: str) -> None:
        """Take in that a client left without reading an answer that was given to it: a retry of its call gets it."""
        for turn in self._answers_beside(turn_id):
            self._offer_answer(turn)

    def _offer_answer(self, turn: Turn) -> None:
        """Let a retry find an answer, unless there is one to a newer call with the same body."""
        for request in _requests(turn):
            before = self._answered.get(request, {})
            begun_at = next(iter(before.values())).started_at if before else turn.started_at
            if begun_at <= turn.started_at:
                same_call = before if begun_at == turn.started_at else {}
                self._answered[request] = {**same_call, turn.choice: turn}

    def _answers_beside(self, turn_id: str) -> Iterator[Turn]:
        """Yield all answers to the call of a turn; none if the turn is not remembered."""
        conversation = self._of_turn.get(turn_id)
        if conversation is None:
            return
        turn = conversation.chains.turns[turn_id].turn
        for other in conversation.turns:
            if other.started_at == turn.started_at and request_of(other) == request_of(turn):
                yield other

    def _forget_answer(self, turn: Turn) -> None:
        """Stop matching retries to the call with this answer."""
        for request in _requests(turn):
            if any(other.turn_id == turn.turn_id for other in self._answered.get(request, {}).values()):
                del self._answered[request]

    def forget(self, conversation: Conversation) -> None:
        """Forget a trajectory except its name, if the log has it."""
        if self.by_id.pop(conversation.trajectory_id, None) is None:
            return
        if conversation.started:
            self._forgotten.add(conversation.trajectory_id)
        self.close(conversation, "it has ended")

    # --- asking -------------------------------------------------------------------------------------------------------

    def check_remembered(self, trajectory_id: str) -> None:
        """Raise CallError (conflict) for a trajectory in the log of which the turns are not remembered."""
        conversation = self.by_id.get(trajectory_id)
        reason = None if conversation is None else conversation.closed
        if trajectory_id in self._forgotten:
            reason = "it has ended"
        if reason is not None:
            text = f"trajectory {trajectory_id} is in the log, and is remembered no longer: {reason}"
            raise CallError("conflict", f"{text}; use another trajectory")

    def is_run(self, trajectory_id: str | None) -> bool:
        """Return whether a trajectory is the run of a task."""
        conversation = self.by_id.get(trajectory_id or "")
        return conversation is not None and conversation.sampling_id is not None

    def is_learned_from(self, trajectory_id: str | None) -> bool:
        """Return whether a trajectory is of a run that something is learned from, or measured on."""
        conversation = self.by_id.get(trajectory_id or "")
        return conversation is not None and conversation.is_learned_from

    def has_ended(self, trajectory_id: str) -> bool:
        """Return whether a trajectory is one of a task that has ended, with its response."""
        conversation = self.by_id.get(trajectory_id)
        return trajectory_id in self._forgotten if conversation is None else conversation.responded

    def find_continued(self, call: ModelCall) -> Conversation | None:
        """Return the trajectory that a call belongs to, or None for a new one. Raises CallError (conflict)."""
        if call.trajectory_id is not None:
            conversation = self.by_id.get(call.trajectory_id)
            if conversation is not None and conversation.agent_id != call.agent_id:
                text = f"trajectory {call.trajectory_id} is of another agent than {call.agent_id}"
                raise CallError("conflict", f"{text}; use another trajectory")
            self.check_remembered(call.trajectory_id)
            if conversation is not None:
                conversation.chains.recognize(call.digests)
            return conversation
        self._recognize(call)
        return self._find_end(call, has_ended=False) or self._find_rewritten(call)

    def _find_end(self, call: ModelCall, *, has_ended: bool) -> Conversation | None:
        """Return the trajectory with the newest turn that the history of a call begins with, of those that have ended,
        or have not."""
        for _, digest in call.digests.longest_first():
            ends = self._ends.get((call.agent_id, call.digests.tools, digest), ())
            state = has_ended, call.subject
            fitting = (end for end in ends if (end.conversation.ended, end.conversation.subject) == state)
            newest = max(fitting, key=HistoryEnd.age, default=None)  # by time: a restart reads in another order
            if newest is not None:
                return newest.conversation
        return None

    def conversation_of(self, call: ModelCall, policy: str) -> str | None:
        """Return the conversation that a new trajectory of a call continues: that of its thread, or of the ended one
        whose history it begins with; None: it begins one."""
        if call.thread is not None:
            return derive_id(CONVERSATION, call.thread, call.agent_id, policy)
        earlier = None if call.trajectory_id is not None else self._find_end(call, has_ended=True)
        if earlier is None or earlier.sampling_id is not None:
            return None
        return earlier.continues or earlier.trajectory_id

    def is_continued(self, call: ModelCall) -> bool:
        """Return whether the history of a call begins with a recorded one of its agent, and its answer."""
        digests = Digests(call.messages, call.tools)  # the call's messages learn what they share with a turn
        ends = ((call.agent_id, digests.tools, digest) for _, digest in digests.longest_first())
        return any(end in self._ends for end in ends)

    def _recognize(self, call: ModelCall) -> None:
        """Find the trajectory with the newest turn that a call seems to continue, so as not to digest its history
        again."""
        alike = self._openings.get((call.agent_id, opening(call.messages)), set())
        for conversation in heapq.nlargest(MOST_ALIKE, alike, key=lambda conversation: conversation.last_at):
            if conversation.chains.recognize(call.digests):
                return

    def _find_rewritten(self, call: ModelCall) -> Conversation | None:
        """Return the trajectory of the answers that a call repeats in another history, if it is the only candidate."""
        known = (self._exchanges.get((call.agent_id, digest)) for digest in exchanges(call.messages))
        holders = [conversations for conversations in known if conversations]
        common = set.intersection(*holders) if holders else set()
        conversation = common.pop() if len(common) == 1 else None
        fits = conversation is not None and not conversation.ended and conversation.subject == call.subject
        return conversation if fits else None

    def find_answered(self, call: ModelCall, now_ms: int) -> Mapping[int, Turn] | None:
        """Return the turns of the call that this one is a retry of, by choice, if all were recorded and delivered."""
        turns = self._answered.get((call.trajectory_id, request_of(call)), {})
        if len(turns) < call.count or any(turn.error or not turn.delivered for turn in turns.values()):
            return None
        return turns if has_key(call) or turns[0].created_at >= now_ms - RETRIED_MS else None

    def messages(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a turn, its answer included."""
        conversation = self._of_turn.get(turn_id)
        return None if conversation is None else conversation.chains.messages(turn_id)

    def first_turn(self, trajectory_id: str) -> Turn | None:
        """Return the first turn of a trajectory; None if it has none that is remembered."""
        conversation = self.by_id.get(trajectory_id)
        return None if conversation is None else next(conversation.turns, None)

    def newest_messages(self, trajectory_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to the newest remembered turn of a trajectory; None if it has none."""
        conversation = self.by_id.get(trajectory_id)
        newest = None if conversation is None else max(conversation.turns, key=lambda turn: turn.number, default=None)
        return None if conversation is None or newest is None else conversation.chains.messages(newest.turn_id)

    def agent_of(self, name: str) -> str | None:
        """Return the agent of a turn or a trajectory; None if the id is not found."""
        conversation = self._of_turn.get(name) or self.by_id.get(name)
        return None if conversation is None else conversation.agent_id

    def find_rated(self, answer_id: str, choice: int | None, policy: str) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""
        conversation = self._of_turn.get(answer_id)
        if conversation is None:
            whole = self.by_id.get(answer_id)
            if whole is None or not whole.started:
                return None
            return RatedAnswer(answer_id, whole.task_id, policy, whole.slot or 0, whole.begun_at, whole.subject)
        number = conversation.chains.turns[answer_id].turn.choice if choice is None else choice
        for turn in self._answers_beside(answer_id):
            if turn.choice == number:
                return RatedAnswer(turn.turn_id, turn.task_id, policy, turn.slot or 0, turn.created_at, turn.subject)
        return None

    def idle(self, since_ms: int, begun_ms: int) -> Iterator[Conversation]:
        """Yield the trajectories to end: without a call since `since_ms`, begun before `begun_ms`, or closed.

        None of them has an open call.
        """
        for conversation in list(self.by_id.values()):
            old = conversation.last_at < since_ms or conversation.begun_at < begun_ms
            if conversation.open_calls == 0 and (old or conversation.closed is not None):
                yield conversation


def request_of(tried: ModelCall | Turn) -> tuple[str, str, str]:
    """Return the key shared by all attempts at a call: agent, digest of the body, and its key, else the digest
    again."""
    return tried.agent_id, tried.request_digest, tried.retry_key or tried.request_digest


def _requests(turn: Turn) -> Iterator[tuple[str | None, tuple[str, str, str]]]:
    """Yield the index keys of an answer: within its trajectory, and for calls that name none."""
    request = request_of(turn)
    yield turn.trajectory_id, request
    yield None, request


def _exchanges_of(turn: Turn) -> Iterator[tuple[str, bytes]]:
    """Yield the index keys of an answer for calls that repeat it in another history."""
    for digest in exchanges((*turn.messages[-1:], turn.reply)):
        yield turn.agent_id, digest


def _discard(index: dict[K, set[V]], key: K, value: V) -> None:
    """Take a value out of an index of sets, which holds no empty ones."""
    values = index.get(key, set())
    values.discard(value)
    if not values:
        index.pop(key, None)


def has_key(call: ModelCall) -> bool:
    """Return whether the client itself marks attempts at the same call."""
    return call.retry_key not in (None, call.request_digest)


def held_bytes(turn: Turn) -> int:
    """Return the approximate memory of a remembered turn, in bytes."""
    texts = [message.content for message in (*turn.messages, turn.reply)]
    texts += [call.arguments for message in (*turn.messages, turn.reply) for call in message.tool_calls]
    texts += [text for tool in turn.tools for text in (tool.description, tool.parameters)]
    tokens = (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)
    parts = len(turn.messages) * MESSAGE_BYTES + sum(len(column.data) for column in tokens)
    return TURN_BYTES + parts + sum(map(sys.getsizeof, texts))


def _may_close(conversation: Conversation) -> bool:
    """Return whether neither a call in progress nor the response to a task needs its turns."""
    return conversation.open_calls == 0 and (conversation.sampling_id is None or conversation.responded)
