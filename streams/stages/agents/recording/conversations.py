"""The trajectories that may still be continued, as the log has them.

    trajectories, turns ──► take ──► Conversations ──► the one a call continues; the turns of a call that came before

The server takes in what it writes, once it is acknowledged, and at its start what was written before: it knows nothing
that the log does not. Turns are remembered up to a number of bytes. Beyond it the trajectory that got none for the
longest time is left without its turns: nothing continues it any more, and a call that names it is refused, also once
all that is left of it is its name. Not thread-safe.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from schemas.conventions import RatedAnswer
from schemas.events import Message, Observed, Purpose, TrajectoryEvent, Turn
from streams.errors import CallError
from streams.stages.agents.recording.calls import CallInProgress, ModelCall
from streams.stages.agents.trajectories.chains import Chains

RETRIED_MS = 600_000
"""How old an answer may be that a retry without a key gets: clients wait ten minutes for one unless told otherwise."""
TURN_BYTES = 3072
"""What a turn takes besides its texts and tokens: ids, digests, and its places in the indexes."""
MESSAGE_BYTES = 512
"""The same of each of its messages."""


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
    sampling_id: str | None = None
    slot: int | None = None
    group_size: int | None = None
    adapter_version: int | None = None
    """Pin: the version that answers all of it."""
    chains: Chains = field(default_factory=Chains)
    number: int = 0
    """Of the next turn."""
    started: bool = False
    """Whether its beginning was written."""
    ended: bool = False
    began: TrajectoryEvent | None = None
    """The beginning of a task's run, which says how its calls are answered."""
    end: TrajectoryEvent | None = None
    """The end of a task's run, of which its response is made."""
    responded: bool = False
    """Whether that response is in the log."""
    ending: bool = False
    """Whether it is about to end: no call begins any more."""
    differs: str | None = None
    """Why its environment did not begin as that of its siblings."""
    called: set[str] = field(default_factory=set)
    """The first turn of each call."""
    in_progress: set[CallInProgress] = field(default_factory=set)
    open_calls: int = 0
    """Calls in progress, and turns that the broker has not acknowledged yet."""
    nbytes: int = 0
    """What its turns take in memory."""
    closed: str | None = None
    """Why its turns are remembered no longer."""

    def check_open(self) -> None:
        """Raise CallError if no further call may begin."""
        if self.ending:
            raise CallError("conflict", "its run is ending, and no call of it is answered any more")
        most = None if self.began is None else self.began.max_turns
        if most is not None and len(self.called) >= most:
            what = f"this run has made {len(self.called)} calls, and its task allows {most} (max_turns)"
            raise CallError("invalid", f"{what}; end it with what there is")

    @property
    def turns(self) -> Iterator[Turn]:
        """Every turn that is acknowledged, in the order of the log."""
        return (placed.turn for placed in self.chains.turns.values())


class Conversations:
    """Every trajectory that is remembered."""

    def __init__(self, most_bytes: int = sys.maxsize) -> None:
        self.by_id: dict[str, Conversation] = {}
        """In the order of their newest turns."""
        self.nbytes, self.evicted = 0, 0
        self.fates: Counter[str] = Counter()
        """Turns that were taken in: delivered, not_delivered, failed."""
        self.actions: Counter[str] = Counter()
        """Actions that environments could use, and others: usable, unusable."""
        self._most_bytes = most_bytes
        self._gone: set[str] = set()
        """Names of trajectories in the log of which nothing else is remembered."""
        self._of_turn: dict[str, Conversation] = {}
        self._ends: dict[tuple[str, bytes, bytes], Conversation] = {}
        """By agent, tools, and the digest of a history with its last answer."""
        self._answered: dict[tuple[str | None, tuple[str, str, str]], dict[int, Turn]] = {}
        """The turns of the newest call that a retry may be of, by trajectory, `request_of` and choice.

        Runs of the same task begin with the same body, so a call that names its trajectory is only a retry within it;
        under None is the newest of any, for those that name none.
        """

    @property
    def count(self) -> int:
        """How many are remembered."""
        return len(self.by_id)

    def limit(self, most_bytes: int) -> None:
        """Remember turns up to this many bytes from now on."""
        self._most_bytes = most_bytes
        if self.by_id:
            self._make_room(next(reversed(self.by_id.values())))

    # --- taking in ----------------------------------------------------------------------------------------------------

    def take(self, event: Turn | TrajectoryEvent) -> None:
        """Take in what is in the log, in its order."""
        if isinstance(event, Turn):
            self._turn(event)
            return
        if event.trajectory_id in self._gone:
            return
        known = self.by_id.setdefault(
            event.trajectory_id,
            Conversation(event.trajectory_id, event.task_id, event.agent_id, event.created_at, event.created_at),
        )
        known.purpose, known.sampling_id, known.slot = event.purpose, event.sampling_id, event.slot
        known.group_size, known.adapter_version = event.group_size, event.adapter_version
        known.started = True
        known.ended = known.ended or event.kind == "ended"
        if event.sampling_id is not None:
            if event.kind == "started":
                known.began = known.began or event
            elif known.end is None:
                known.end = event
                self._count_action(event.observed)

    def _count_action(self, after: Observed | None) -> None:
        """Count the action after which this was shown."""
        if after is not None and after.ok is not None:
            self.actions["usable" if after.ok else "unusable"] += 1

    def restore(self, event: TrajectoryEvent, oldest_ms: int) -> None:
        """Take in what the log had before the server began, as far as it matters of what began before `oldest_ms`."""
        self.take(event)
        known = self.by_id.get(event.trajectory_id)
        if known is None or known.begun_at >= oldest_ms:
            return
        if known.sampling_id is None:
            self.close(known, "it began longer than serve.longest_s ago")
        elif known.ended and event.created_at < oldest_ms:
            self.forget(known)

    def take_response(self, response_id: str) -> None:
        """Take in that a response is in the log: nobody needs the turns of its run any more."""
        if (known := self.by_id.get(response_id)) is not None:
            known.responded = True

    def _turn(self, turn: Turn) -> None:
        if turn.trajectory_id in self._gone:
            return
        known = self.by_id.pop(turn.trajectory_id, None)
        if known is None:
            at = turn.started_at
            known = Conversation(turn.trajectory_id, turn.task_id, turn.agent_id, at, at)
            known.sampling_id, known.slot = turn.sampling_id, turn.slot
            known.started = turn.sampling_id is not None  # the beginning of a task's run is in the log before any call
        self.by_id[turn.trajectory_id] = known
        known.number = max(known.number, turn.number + 1)
        if turn.choice == 0:
            known.called.add(turn.turn_id)
        known.last_at = max(known.last_at, turn.created_at)
        if known.closed is not None or turn.turn_id in known.chains.turns:
            return
        self.fates["failed" if turn.error else "delivered" if turn.delivered else "not_delivered"] += 1
        self._count_action(turn.observed)
        held = held_bytes(turn)
        known.nbytes += held
        self.nbytes += held
        node = known.chains.add(turn)
        self._of_turn[turn.turn_id] = known
        if node.broken is None and turn.error is None:
            self._ends[turn.agent_id, node.kind.tools, node.end] = known
        for request in _requests(turn):
            before = self._answered.get(request, {})
            if before and next(iter(before.values())).started_at != turn.started_at:
                before = {}
            self._answered[request] = {**before, turn.choice: turn}
        self._make_room(known)

    def _make_room(self, newest: Conversation) -> None:
        """Close the longest unused until what is remembered is within its bound; `newest` stays."""
        while self.nbytes > self._most_bytes:
            leaves = next((known for known in self.by_id.values() if known.nbytes and _may_close(known)), newest)
            if leaves is newest:
                return
            self.evicted += 1
            self.close(leaves, "it was not used for the longest time when memory was full (serve.remembered_mb)")

    def close(self, known: Conversation, why: str) -> None:
        """Remember the turns of a trajectory no longer: no call continues it. One that has ended is forgotten."""
        known.closed = why
        for turn_id, placed in known.chains.turns.items():
            self._of_turn.pop(turn_id, None)
            end = known.agent_id, placed.kind.tools, placed.end
            if self._ends.get(end) is known:
                del self._ends[end]
            self._forget_answer(placed.turn)
        self.nbytes -= known.nbytes
        known.chains, known.nbytes = Chains(), 0
        if known.ended:
            self.forget(known)

    def given(self, call: ModelCall, turn_id: str) -> None:
        """Take in that an answer was read to its end: without a key of its client, no later call is a retry of it."""
        known = self._of_turn.get(turn_id)
        if known is not None and not has_key(call):
            self._forget_answer(known.chains.turns[turn_id].turn)

    def _forget_answer(self, turn: Turn) -> None:
        """Let no call be a retry any more of the one with this answer."""
        for request in _requests(turn):
            if any(other.turn_id == turn.turn_id for other in self._answered.get(request, {}).values()):
                del self._answered[request]

    def forget(self, known: Conversation) -> None:
        """Remember no more than the name of a trajectory, if the log has it."""
        if self.by_id.pop(known.trajectory_id, None) is None:
            return
        if known.started:
            self._gone.add(known.trajectory_id)
        self.close(known, "it has ended")

    # --- asking -------------------------------------------------------------------------------------------------------

    def check_remembered(self, trajectory_id: str) -> None:
        """Raise CallError (conflict) for a trajectory that is in the log, and whose turns are not known here."""
        known = self.by_id.get(trajectory_id)
        why = "it has ended" if trajectory_id in self._gone else None if known is None else known.closed
        if why is not None:
            what = f"trajectory {trajectory_id} is in the log, and is remembered no longer: {why}"
            raise CallError("conflict", f"{what}; use another trajectory")

    def continued_by(self, call: ModelCall) -> Conversation | None:
        """Return the trajectory that a call belongs to, or None for a new one. Raises CallError (conflict)."""
        if call.trajectory_id is not None:
            known = self.by_id.get(call.trajectory_id)
            if known is not None and known.agent_id != call.agent_id:
                what = f"trajectory {call.trajectory_id} is of another agent than {call.agent_id}"
                raise CallError("conflict", f"{what}; use another trajectory")
            self.check_remembered(call.trajectory_id)
            return known
        for digest in reversed(call.digests.prefixes[1:]):
            known = self._ends.get((call.agent_id, call.digests.tools, digest))
            if known is not None and not known.ended:
                return known
        return None

    def answered(self, call: ModelCall, now_ms: int) -> Mapping[int, Turn] | None:
        """Return the turns of the call that this one is a retry of, by choice, if all were recorded and delivered."""
        turns = self._answered.get((call.trajectory_id, request_of(call)), {})
        if len(turns) < call.count or any(turn.error or not turn.delivered for turn in turns.values()):
            return None
        return turns if has_key(call) or turns[0].created_at >= now_ms - RETRIED_MS else None

    def messages(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to a turn, its answer included."""
        known = self._of_turn.get(turn_id)
        return None if known is None else known.chains.messages(turn_id)

    def agent_of(self, name: str) -> str | None:
        """Return whose a turn or a trajectory is; None if there is none of this id."""
        known = self._of_turn.get(name) or self.by_id.get(name)
        return None if known is None else known.agent_id

    def rated(self, answer_id: str, choice: int | None, policy: str) -> RatedAnswer | None:
        """Return the turn of this id, or of another choice of its call, or the trajectory of this id; None if none."""
        known = self._of_turn.get(answer_id)
        if known is None:
            whole = self.by_id.get(answer_id)
            if whole is None or not whole.started:
                return None
            return RatedAnswer(answer_id, whole.task_id, policy, whole.slot or 0, whole.begun_at)
        turn = known.chains.turns[answer_id].turn
        for other in known.chains.turns.values():
            same = request_of(other.turn) == request_of(turn) and other.turn.started_at == turn.started_at
            if same and other.turn.choice == (turn.choice if choice is None else choice):
                found = other.turn
                return RatedAnswer(found.turn_id, found.task_id, policy, found.slot or 0, found.created_at)
        return None

    def idle(self, since_ms: int, begun_ms: int) -> Iterator[Conversation]:
        """Yield those that are to end: without a call since `since_ms`, begun before `begun_ms`, or closed.

        None of them has an open call.
        """
        for known in list(self.by_id.values()):
            old = known.last_at < since_ms or known.begun_at < begun_ms
            if known.open_calls == 0 and (old or known.closed is not None):
                yield known


def request_of(tried: ModelCall | Turn) -> tuple[str, str, str]:
    """Return what every try of a call has in common: agent, digest of the body, and its key, else the digest again."""
    return tried.agent_id, tried.request_digest, tried.retry_key or tried.request_digest


def _requests(turn: Turn) -> Iterator[tuple[str | None, tuple[str, str, str]]]:
    """Yield where an answer is looked for: within its trajectory, and by calls that name none."""
    request = request_of(turn)
    yield turn.trajectory_id, request
    yield None, request


def has_key(call: ModelCall) -> bool:
    """Return whether the client itself says which calls are tries of the same one."""
    return call.retry_key not in (None, call.request_digest)


def held_bytes(turn: Turn) -> int:
    """Return about how much memory a turn takes while it is remembered."""
    texts = [message.content for message in (*turn.messages, turn.reply)]
    texts += [call.arguments for message in (*turn.messages, turn.reply) for call in message.tool_calls]
    texts += [text for tool in turn.tools for text in (tool.description, tool.parameters)]
    tokens = (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)
    parts = len(turn.messages) * MESSAGE_BYTES + sum(len(column.data) for column in tokens)
    return TURN_BYTES + parts + sum(map(sys.getsizeof, texts))


def _may_close(known: Conversation) -> bool:
    """Return whether nobody needs its turns: a call in progress, or the response to a task."""
    return known.open_calls == 0 and (known.sampling_id is None or known.responded)
