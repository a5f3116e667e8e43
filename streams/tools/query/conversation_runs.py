"""The runs of a conversation: which there are, and what they are together.

    trajectories, groups of tasks ──► by conversation: its runs in order ──► complete once none of them is open
    turns of each run ──► the first call of a run continues the run before it ──► one Trajectory

A conversation is a thread of one agent and policy, or a chat with the calls that continued it after it had ended. Its
id is in the beginning and the end of each run (`schemas.conventions.CONVERSATION`); a run without a task and without an
id is a conversation by itself. The run of a task is over with its group, which has its scores.

A run begins with its whole history. If its first prompt has the tokens of an earlier run at its beginning, it is joined
to them, so that every answer of the conversation is in one chain; otherwise it is a chain of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.conventions import CONVERSATION
from schemas.events import Coordinates, Message, TrajectoryEvent, Turn
from schemas.tokens import TokenIds
from streams.stages.agents.trajectories.call_chains import Chains
from streams.stages.agents.trajectories.fold import Trajectory, fold

RUN_TURNS = 100_000
"""The first number of a conversation's second run: its turn n has this number + n. A run has fewer turns."""
OUT_OF_ORDER = ("late", "conflict")
"""Turns that are left out of a run before it is joined to others."""


def conversation_of(event: TrajectoryEvent) -> str:
    """Return the conversation that a run is of."""
    return event.metadata.get(CONVERSATION, event.trajectory_id)


@dataclass(slots=True)
class ConversationRun:
    """A run of a conversation."""

    trajectory_id: str
    task_id: str
    created_at: int
    """Of its first record in the log, which orders runs."""
    end: Coordinates | None = None
    """Where it ended, or the group of its task is; None: it is open."""
    is_in_place: bool = False
    """Whether its end is among the records that are selected."""


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """A conversation of which every run has ended, or some of its runs."""

    name: str
    """Of the conversation, or of the one run."""
    runs: tuple[ConversationRun, ...]
    """In order."""
    position: Coordinates
    """Of the end of the last one."""


class ConversationRuns:
    """Every run that has begun without a task, or as one of a conversation."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, ConversationRun]] = {}
        self._of_tasks: dict[str, str] = {}
        """The conversations of tasks."""
        self._conversations: dict[Coordinates, str] = {}
        """By the end of a run."""
        self._changed: set[str] = set()
        """Conversations with a run that ended since they were last returned."""

    def take(self, event: TrajectoryEvent, at: Coordinates, is_in_place: bool) -> None:
        """Add the beginning or the end of a run, the first of each kind; a task's run ends with its group."""
        conversation = conversation_of(event)
        if event.sampling_id is not None:
            if CONVERSATION not in event.metadata:
                return
            self._of_tasks[event.task_id] = conversation
        runs = self._runs.setdefault(conversation, {})
        run = runs.setdefault(
            event.trajectory_id, ConversationRun(event.trajectory_id, event.task_id, event.created_at)
        )
        run.created_at = min(run.created_at, event.created_at)
        if event.kind == "ended" and event.sampling_id is None:
            self._end(run, conversation, at, is_in_place)

    @property
    def has_tasks(self) -> bool:
        """Whether a run of a conversation is that of a task."""
        return bool(self._of_tasks)

    def take_group(self, task_id: str, at: Coordinates, is_in_place: bool) -> bool:
        """End the runs of a task by its group; return whether it is one of a conversation."""
        conversation = self._of_tasks.get(task_id)
        if conversation is None:
            return False
        for run in self._runs[conversation].values():
            if run.task_id == task_id:
                self._end(run, conversation, at, is_in_place)
        return True

    def _end(self, run: ConversationRun, conversation: str, at: Coordinates, is_in_place: bool) -> None:
        if run.end is None:
            run.end, run.is_in_place = at, is_in_place
            self._conversations[at] = conversation
            self._changed.add(conversation)

    def newly_complete(self) -> list[EndedRuns]:
        """Return the conversations without an open run that have changed, by the ends of their last runs."""
        ended: list[EndedRuns] = []
        for conversation in sorted(self._changed):
            runs = self._in_order(conversation)
            position = runs[-1].end
            if position is not None and all(run.end is not None for run in runs):
                self._changed.remove(conversation)
                ended += [EndedRuns(conversation, runs, position)] if runs[-1].is_in_place else []
        return sorted(ended, key=lambda runs: runs.position)

    def runs_at(self, ends: Mapping[Coordinates, Mapping[str, Collection[str]]]) -> list[EndedRuns]:
        """Return the answers that end there, with their runs, by their ends; without run ids, the run that does."""
        ended: list[EndedRuns] = []
        for position in sorted(ends.keys() & self._conversations.keys()):
            runs = self._in_order(self._conversations[position])
            for name, ids in sorted(ends[position].items()):
                chosen = tuple(run for run in runs if (run.trajectory_id in ids if ids else run.end == position))
                ended.append(EndedRuns(name, chosen, position))
        return ended

    def _in_order(self, conversation: str) -> tuple[ConversationRun, ...]:
        runs = self._runs[conversation].values()
        return tuple(sorted(runs, key=lambda run: (run.created_at, run.trajectory_id)))


def join_runs(runs: Sequence[Trajectory], ended: TrajectoryEvent | None) -> Trajectory:
    """Return runs as one, numbered on; `ended` is the end of the last one."""
    chains = Chains()
    turns: list[Turn] = []
    for place, run in enumerate(runs):
        for step in run.steps:
            if step.left_out in OUT_OF_ORDER:
                continue
            turn = step.turn if place == 0 or step.turn.parent_id is not None else _continuing(step.turn, chains)
            turns.append(replace(turn, number=len(turns)))
            chains.add(turns[-1])
    return fold(turns, None if ended is None else replace(ended, turns=len(turns)))


def _continuing(turn: Turn, chains: Chains) -> Turn:
    """Return the first call of a later run after the turn whose messages and tokens it begins with, if there is one."""
    placed = chains.place(turn.messages, turn.tools) if turn.messages else None
    parent = None if placed is None else placed.parent
    if placed is None or parent is None:
        return turn
    before = chains.tokens(parent.turn_id).data
    if not turn.prompt_token_ids.data.startswith(before):
        return turn
    return replace(
        turn,
        parent_id=parent.turn_id,
        continuity=placed.continuity,
        reason=placed.reason,
        messages=placed.new,
        prompt_token_ids=TokenIds(turn.prompt_token_ids.data[len(before) :]),
        tools=(),
    )


def numbered_turns(runs: Sequence[Trajectory]) -> Iterator[Turn]:
    """Yield every turn as it was recorded, numbered on, for figures. The first call of a later run begins with what the
    earlier ones have: of its messages only those after the last answer are new.
    """
    for place, run in enumerate(runs):
        for step in run.steps:
            turn, number = step.turn, place * RUN_TURNS + step.turn.number
            is_root = place > 0 and turn.parent_id is None
            yield replace(turn, number=number, messages=_after_last_answer(turn.messages) if is_root else turn.messages)


def _after_last_answer(messages: Sequence[Message]) -> tuple[Message, ...]:
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    return tuple(messages[answers[-1] + 1 :]) if answers else tuple(messages)
