"""The recorded moments that a fork may begin at: model calls of runs and conversations, answers without turns.

    MomentKey, … ──► tasks, turns, responses of these keys ──► Moment: messages, tokens, version

Not covered: calls with a text or tokens instead of messages (`/v1/completions`), which no task can repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from schemas.events import Message, Response, Sampling, Task, Tool, Turn
from schemas.tokens import TokenIds
from streams.errors import EventError
from streams.settings.model import Settings
from streams.stages.agents.trajectories.call_chains import Chains
from streams.stages.tasks.submit import records_of

E = TypeVar("E", Task, Turn, Response)


class MomentKey(NamedTuple):
    """Where a moment is recorded."""

    task_id: str
    trajectory_id: str
    turn: int


class CallInput(NamedTuple):
    """What a recorded call read."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    tokens: TokenIds
    answered: int = 0
    """How many of the messages, the last answer included, are those of the turn that it continues; 0: of none."""
    answered_tokens: TokenIds = TokenIds()
    """The tokens of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A recorded model call, with its task. A conversation has none."""

    key: MomentKey
    task: Task | None
    turn: Turn | None
    """None: an answer of the policy to a task, without turns."""
    response: Response | None
    chains: Chains

    @property
    def policy(self) -> str:
        """The policy that was asked."""
        return self._record.policy

    @property
    def version(self) -> int:
        """The version that answered."""
        return self._record.adapter_version

    @property
    def sampling(self) -> Sampling:
        """How its tokens were drawn."""
        return self._record.sampling

    @property
    def subject(self) -> str | None:
        """The person whose words it has."""
        return self._record.subject

    @property
    def tokenizer_digest(self) -> str:
        """The tokenizer of its tokens."""
        return self._record.tokenizer_digest

    @property
    def prompt(self) -> CallInput:
        """What the call read: every message and token before its answer. Raises EventError."""
        turn = self.turn
        if turn is None:
            if self.task is None or self.response is None:
                raise EventError(f"run {self.key.trajectory_id}: its task is not in the log any more; it is not forked")
            return CallInput(self.task.messages, self.task.tools, self.response.prompt_token_ids)
        path = self.chains.path(turn.turn_id)
        if not path[0].turn.messages:
            raise EventError(f"{self.name} was a text without messages, and a task consists of messages; fork another")
        tokens, messages = TokenIds(), tuple[Message, ...]()
        if turn.parent_id is not None:
            if len(path) < 2:
                raise EventError(f"{self.name}: the turn that it continues is not in the log any more; fork another")
            tokens, messages = self.chains.tokens(turn.parent_id), self.chains.messages(turn.parent_id)
        whole = TokenIds(tokens.data + turn.prompt_token_ids.data)
        return CallInput((*messages, *turn.messages), path[0].turn.tools, whole, len(messages), tokens)

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"turn {self.key.turn} of run {self.key.trajectory_id}"

    @property
    def text(self) -> str:
        """Its answer."""
        return self.turn.reply.content if self.turn is not None else self.response.text if self.response else ""

    @property
    def _record(self) -> Turn | Response:
        record = self.turn or self.response
        assert record is not None, "a moment is a turn or a response"  # noqa: S101 - how moments are made
        return record


def find_moment(settings: Settings, task_id: str, name: str) -> Moment | None:
    """Return the moment of a turn or a response, by its id and that of its task; None if it is neither."""
    turns = (turn for turn in _events(settings, [task_id], "turns", Turn) if turn.turn_id == name)
    turn = next(turns, None)
    key = MomentKey(task_id, name, 0) if turn is None else MomentKey(task_id, turn.trajectory_id, turn.number)
    return next(read_moments(settings, [key]), None)


def read_moments(settings: Settings, keys: Sequence[MomentKey]) -> Iterator[Moment]:
    """Yield the moments of these keys that the log has, in their order. Raises LogError."""
    wanted, tasks = {key.trajectory_id for key in keys}, dict[str, Task]()
    turns, responses = defaultdict[str, list[Turn]](list), dict[str, Response]()
    task_ids = list(dict.fromkeys(key.task_id for key in keys))
    for task in _events(settings, task_ids, "tasks", Task):
        tasks.setdefault(task.task_id, task)
    for turn in _events(settings, task_ids, "turns", Turn):
        if turn.trajectory_id in wanted:
            turns[turn.trajectory_id].append(turn)
    for response in _events(settings, task_ids, "responses", Response):
        responses.setdefault(response.response_id, response)
    forests = {name: _forest(of_run) for name, of_run in turns.items()}
    for key in keys:
        chains = forests.get(key.trajectory_id, Chains())
        numbered = (node.turn for node in chains.turns.values() if node.turn.number == key.turn)
        turn_of, response_of = next(numbered, None), responses.get(key.trajectory_id)
        if turn_of is not None or response_of is not None:
            yield Moment(key=key, task=tasks.get(key.task_id), turn=turn_of, response=response_of, chains=chains)


def _events(settings: Settings, keys: Iterable[str], label: str, kind: type[E]) -> Iterator[E]:
    for record in records_of(settings, keys, label):
        event = record.decode(kind)
        if isinstance(event, kind):
            yield event


def _forest(turns: Iterable[Turn]) -> Chains:
    chains = Chains()
    for turn in turns:
        chains.add(turn)
    return chains
