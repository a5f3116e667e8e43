"""Fold the turns of a run into its trajectory: chains of calls in which every sampled token has one owner.

    turns, ended ──► forest (call_chains.py) ──► chains: the conversation, then its branches ──► Trajectory
                                       └─► left out, with the reason

The conversation is the chain that ends with the answer (run_answer.py): the last call of its lineage, and where a
history was rewritten, the new one, unless the end of the run says otherwise. Any other last call ends a branch. A token
in several chains bears loss in the first of them, and is context in the others. Turns without loss anywhere are left
out by name: an auxiliary call, a failed one, a tool call that the client replaced by its own, an answer that was not
delivered, a late one, one with tokens that do not fit its parent's. An answer with a forced form stays, as context for
later turns and for scorers: its tokens were not drawn from the policy, and bear no loss. The fold depends only on its
arguments, so every process gets the same trajectory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from schemas.events import Continuity, Message, TrajectoryEvent, Turn
from streams.stages.agents.trajectories.call_chains import Chains, PlacedTurn, Role
from streams.stages.agents.trajectories.run_answer import AFTERWARDS, call_of, calls_after, find_answer

LeftOutReason = Literal["auxiliary", "failed", "replaced", "undelivered", "late", "conflict", "broken"]


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """One turn, and how the fold uses it."""

    turn: Turn
    role: Role
    continuity: Continuity
    """Its relation to the turns before it, in the order of the log."""
    reason: str
    chain: int | None = None
    """Number of the chain that owns its tokens; None: it is left out."""
    left_out: LeftOutReason | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether its form was forced: it bears no loss although it is in a chain."""
        return self.chain is not None and self.turn.constraint is not None


@dataclass(frozen=True, slots=True)
class CallChain:
    """A path through the forest, from a first call to a last one."""

    turns: tuple[Turn, ...]
    continuity: Continuity
    """Kind of the first call that only this chain has."""
    reason: str
    leaves: int = 0
    """Number of the chain with which it shares its first turns."""
    shared: int = 0
    """Number of shared turns; they bear no loss here."""

    @property
    def messages(self) -> list[Message]:
        """Its messages, including the last answer."""
        return [message for turn in self.turns for message in (*turn.messages, turn.reply)]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A run in the form for training."""

    steps: tuple[TrajectoryStep, ...]
    """Every turn, in the order of the log."""
    chains: tuple[CallChain, ...]
    """The conversation, and then its branches in the order of their last calls."""
    answers: tuple[Turn, ...] = ()
    """The turns that may be its answer, the oldest first, if there are several."""
    doubt: str | None = None
    """Why its answer may not be the conversation's."""

    @property
    def calls_in_chains(self) -> int:
        """Number of calls that are in a chain."""
        return sum(step.chain is not None for step in self.steps)

    @property
    def versions(self) -> tuple[int, ...]:
        """Adapter versions that answered the calls in a chain."""
        return tuple(sorted({step.turn.adapter_version for step in self.steps if step.chain is not None}))

    def __str__(self) -> str:
        """Return e.g. `41 of 43 calls delivered, 1 of them without loss; 2 auxiliary`."""
        counts = Counter(step.left_out for step in self.steps if step.left_out is not None)
        forced = sum(step.is_constrained for step in self.steps)
        loss = f", {forced} of them without loss" if forced else ""
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        calls = "call" if len(self.steps) == 1 else "calls"
        others = [left_out] if left_out else []
        doubt = ["its answer is in doubt"] if self.doubt is not None else []
        return "; ".join([f"{self.calls_in_chains} of {len(self.steps)} {calls} delivered{loss}", *others, *doubt])


def fold(turns: Iterable[Turn], ended: TrajectoryEvent | None = None) -> Trajectory:
    """Return the trajectory of these turns, given in the order of the log. A copy of a turn changes nothing."""
    chains, out, numbers = Chains(), dict[str, LeftOutReason](), dict[int, str]()
    by_id: dict[str, Turn] = {}
    for turn in turns:
        if turn.turn_id in by_id:
            continue
        by_id[turn.turn_id] = turn
        if numbers.setdefault(turn.number, turn.turn_id) != turn.turn_id:
            out[turn.turn_id] = "conflict"
        elif ended is not None and ended.turns is not None and turn.number >= ended.turns:
            out[turn.turn_id] = "late"
        else:
            node = chains.add(turn)
            if turn.error is not None:
                out[turn.turn_id] = "failed"
            elif node.broken is not None:
                out[turn.turn_id] = "broken"
    nodes = list(chains.turns.values())
    named = _path_to_named_answer(chains, ended)
    asides = {} if ended is None else dict.fromkeys(_asides(chains, nodes, out) - named, NOT_TAKEN_UP)
    usable = _usable(chains, nodes, out, asides.keys() | _auxiliary(chains, nodes) - named)
    answer = find_answer(chains, _leaves(nodes, usable), usable, ended)
    if ended is not None and answer.node is not None:
        for name in calls_after(answer.node, [node for node in nodes if node.turn.turn_id in usable]):
            asides[name], out[name] = AFTERWARDS, "auxiliary"
            usable.remove(name)
    call_chains, owner = _chains(chains, _leaves(nodes, usable), answer.node)
    steps = (_step(chains, turn, owner.get(turn.turn_id), out.get(turn.turn_id)) for turn in by_id.values())
    marked = (_aside(step, asides[name]) if (name := step.turn.turn_id) in asides else step for step in steps)
    answers = tuple(node.turn for node in answer.rivals)
    return Trajectory(tuple(marked), tuple(call_chains), answers, answer.doubt)


def of_each(turns: Iterable[Turn], ends: Iterable[TrajectoryEvent] = ()) -> dict[str, Trajectory]:
    """Return every trajectory of these turns, by id; turns may be interleaved."""
    ended = {event.trajectory_id: event for event in reversed(list(ends)) if event.kind == "ended"}
    by_trajectory: dict[str, list[Turn]] = {}
    for turn in turns:
        by_trajectory.setdefault(turn.trajectory_id, []).append(turn)
    return {name: fold(of_trajectory, ended.get(name)) for name, of_trajectory in by_trajectory.items()}


NOT_TAKEN_UP = "no tools, and no call after it has its answer"


def _path_to_named_answer(chains: Chains, ended: TrajectoryEvent | None) -> frozenset[str]:
    """Return the turn that the end of a run names as its answer, and those that it continues."""
    turn_id = None if ended is None else ended.answer_turn
    return frozenset(node.turn.turn_id for node in chains.path(turn_id or ""))


def _auxiliary(chains: Chains, nodes: list[PlacedTurn]) -> set[str]:
    return {node.turn.turn_id for node in nodes if chains.role(node) == "auxiliary"}


def _asides(chains: Chains, nodes: list[PlacedTurn], out: dict[str, LeftOutReason]) -> frozenset[str]:
    """Return the calls that turned out not to belong to the conversation: summaries and titles. The last call of a
    conversation is its answer, whatever it offers.
    """
    sound = [node for node in nodes if node.turn.turn_id not in out and chains.role(node) == "conversation"]
    last = call_of(sound[-1]) if sound else None
    return frozenset(node.turn.turn_id for node in sound if chains.is_aside(node) and call_of(node) != last)


def _usable(
    chains: Chains, nodes: list[PlacedTurn], out: dict[str, LeftOutReason], auxiliary: Collection[str]
) -> set[str]:
    """Return the turns that bear loss, and the reasons why others do not."""
    usable: set[str] = set()
    for node in reversed(nodes):
        name = node.turn.turn_id
        if name in out:
            continue
        is_continued = any(child.turn.turn_id in usable for child in node.children)
        if name in auxiliary:
            out[name] = "auxiliary"
        elif not is_continued and node.replaced_by is not None:
            out[name] = "replaced"
        elif node.turn.delivered or is_continued:
            usable.add(name)
        else:
            out[name] = "undelivered"
    return usable


def _leaves(nodes: list[PlacedTurn], usable: Collection[str]) -> list[PlacedTurn]:
    """Return the usable turns that no other one continues."""
    within = [node for node in nodes if node.turn.turn_id in usable]
    return [node for node in within if not any(child.turn.turn_id in usable for child in node.children)]


def _chains(
    chains: Chains, last: list[PlacedTurn], answer: PlacedTurn | None
) -> tuple[list[CallChain], dict[str, int]]:
    """Return the chains that end with these turns, and the number of the chain that owns each of their turns."""
    ordered = ([answer] if answer is not None else []) + [node for node in last if node is not answer]
    owner: dict[str, int] = {}
    call_chains: list[CallChain] = []
    for number, end in enumerate(ordered):
        path = chains.path(end.turn.turn_id)
        shared = sum(node.turn.turn_id in owner for node in path)
        first_own = path[shared]
        call_chains.append(
            CallChain(
                turns=tuple(node.turn for node in path),
                continuity=first_own.continuity,
                reason=first_own.reason,
                leaves=owner[path[shared - 1].turn.turn_id] if shared else 0,
                shared=shared,
            )
        )
        owner.update((node.turn.turn_id, number) for node in path[shared:])
    return call_chains, owner


def _aside(step: TrajectoryStep, reason: str) -> TrajectoryStep:
    """Return the step of a call that only the whole trajectory shows to be auxiliary."""
    return replace(step, role="auxiliary", continuity="auxiliary", reason=step.turn.error or reason)


def _step(chains: Chains, turn: Turn, chain: int | None, out: LeftOutReason | None) -> TrajectoryStep:
    node = chains.turns.get(turn.turn_id)
    if node is None:
        reason = "its number is that of a turn before it" if out == "conflict" else "it was recorded after the end"
        return TrajectoryStep(turn, "conversation", turn.continuity, reason, None, out)
    role, reason = chains.role(node), node.broken or node.reason
    continuity = node.continuity
    if chain is not None and role == "auxiliary":
        role = "conversation"  # it is the answer that the end of the run names
    if role == "auxiliary" and node.parent is None and continuity == "first":
        continuity, reason = "auxiliary", "no tools, and the conversation has some"
    if out == "replaced":
        reason = f"its client put another call in its place, as turn {node.replaced_by} shows"
    return TrajectoryStep(turn, role, continuity, turn.error or reason, chain, out)
