"""The trajectories of every policy of a server.

trajectories ──► restore ──► Conversations of each policy, which share serve.remembered_mb
                    └──► old ones that ended, or of a policy that is not served here: their names, which no call may use
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from schemas import key_source
from schemas.events import Coordinates, TrajectoryEvent
from streams.engines.sampling_step import LoggedAnswer
from streams.errors import CallError
from streams.kafka.log_index import LogIndex
from streams.stages.agents.recording.conversations import Conversations


class ForgottenRuns:
    """The trajectories of which only the names are remembered, with their policies."""

    def __init__(self) -> None:
        self.index: LogIndex | None = None
        """Those of an earlier start and before; a label is a place in `policies`."""
        self.policies: list[str] = []
        self._names: dict[str, str] = {}
        """The policies of the others."""

    def add(self, trajectory_id: str, policy: str) -> None:
        """Forget a trajectory, except its name."""
        self._names[trajectory_id] = sys.intern(policy)

    def add_row(self, trajectory_id: str, policy: str, at: Coordinates) -> None:
        """Put a trajectory into the index, if there is one."""
        if self.index is not None:
            self._names.pop(trajectory_id, None)
            if policy not in self.policies:
                self.policies.append(policy)
            self.index.add(trajectory_id.encode(), at, self.policies.index(policy))

    def policies_of(self, trajectory_id: str) -> set[str]:
        """Return the policies that have forgotten a trajectory with this name."""
        rows = [] if self.index is None else self.index.find(trajectory_id.encode())
        named = {self._names[trajectory_id]} if trajectory_id in self._names else set()
        return named | {self.policies[row.label] for row in rows}


@dataclass(frozen=True, slots=True)
class ForgottenOfPolicy:
    """The same of one policy."""

    runs: ForgottenRuns
    policy: str

    def add(self, trajectory_id: str) -> None:
        """Forget a trajectory, except its name."""
        self.runs.add(trajectory_id, self.policy)

    def __contains__(self, trajectory_id: object) -> bool:
        return self.policy in self.runs.policies_of(str(trajectory_id))


class ServedConversations:
    """The trajectories of every policy of a server; together they take serve.remembered_mb. Iterates over the policies'
    Conversations."""

    def __init__(self, most_bytes: int, serves: Callable[[str], bool]) -> None:
        """`serves` tells which policies are served here."""
        self._most_bytes, self.serves = most_bytes, serves
        self.of_policy: dict[str, Conversations] = {}
        self.forgotten = ForgottenRuns()
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the calls, once there was one."""
        key_source.when_erased(self.forget_subject)

    def forget_subject(self, subject: str) -> None:
        """Remember no turns of a person any more. May be called from any thread."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._forget, subject)
        else:
            self._forget(subject)

    def _forget(self, subject: str) -> None:
        for conversations in self:
            conversations.forget_subject(subject)

    def of(self, policy: str) -> Conversations | None:
        """Return the trajectories of a policy; None if it is not served here."""
        if self._loop is None:
            with contextlib.suppress(RuntimeError):  # the log is read before the first call
                self._loop = asyncio.get_running_loop()
        if policy not in self.of_policy and self.serves(policy):
            self.of_policy[policy] = Conversations(forgotten=ForgottenOfPolicy(self.forgotten, policy))
            for conversations in self:
                conversations.limit(self._most_bytes // len(self.of_policy))
        return self.of_policy.get(policy)

    def restore(self, event: TrajectoryEvent, oldest_ms: int) -> None:
        """Take in what the log had before the server began; see `Conversations.restore`."""
        conversations = self.of(event.policy)
        if conversations is None:
            self.forgotten.add(event.trajectory_id, event.policy)
        else:
            conversations.restore(event, oldest_ms)

    def check_policy(self, policy: str, trajectory_id: str | None) -> None:
        """Raise CallError (conflict) for a trajectory that is another policy's."""
        if trajectory_id is None:
            return
        owner = next((name for name in self.forgotten.policies_of(trajectory_id) if name != policy), None)
        for other, conversations in self.of_policy.items():
            if other != policy and trajectory_id in conversations.by_id:
                owner = other
        if owner is not None:
            text = f"trajectory {trajectory_id} is of policy {owner}, not of {policy}"
            raise CallError("conflict", f"{text}; use another trajectory")

    def logged_answers(self) -> Iterator[LoggedAnswer]:
        """Yield the answers to calls that are no runs of tasks, trajectory by trajectory."""
        for conversation in [run for conversations in self for run in conversations.by_id.values()]:
            chains = conversation.chains
            for turn in () if conversation.sampling_id else conversation.turns:
                root, own = chains.path(turn.turn_id)[0].turn, len(turn.completion_token_ids)
                whole = tuple(chains.tokens(turn.turn_id))
                yield LoggedAnswer(turn, whole[: len(whole) - own], chains.messages(turn.turn_id)[:-1], root.tools)

    def __iter__(self) -> Iterator[Conversations]:
        return iter(tuple(self.of_policy.values()))

    @property
    def count(self) -> int:
        """Number of remembered trajectories."""
        return sum(conversations.count for conversations in self)

    @property
    def nbytes(self) -> int:
        """Memory of their turns, in bytes."""
        return sum(conversations.nbytes for conversations in self)

    @property
    def evicted(self) -> int:
        """Number of trajectories that lost their turns because memory was full."""
        return sum(conversations.evicted for conversations in self)

    @property
    def fates(self) -> Counter[str]:
        """Turns by outcome."""
        return sum((conversations.fates for conversations in self), Counter())

    @property
    def actions(self) -> Counter[str]:
        """Actions, by whether environments could use them."""
        return sum((conversations.actions for conversations in self), Counter())
