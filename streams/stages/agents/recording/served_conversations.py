"""The trajectories of every policy of a server.

trajectories ──► restore ──► Conversations of each policy, which share serve.remembered_mb
                    └──► of a policy that is not served here: its name, which no call may use
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from schemas import key_source
from schemas.events import TrajectoryEvent
from streams.engines.sampling_step import LoggedAnswer
from streams.errors import CallError
from streams.stages.agents.recording.conversations import Conversations


class ServedConversations:
    """The trajectories of every policy of a server; together they take serve.remembered_mb. Iterates over the policies'
    Conversations."""

    def __init__(self, most_bytes: int, serves: Callable[[str], bool]) -> None:
        """`serves` tells which policies are served here."""
        self._most_bytes, self._serves = most_bytes, serves
        self.of_policy: dict[str, Conversations] = {}
        self._elsewhere: dict[str, str] = {}
        """Policies of trajectories in the log that are not served here."""
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
        if policy not in self.of_policy and self._serves(policy):
            self.of_policy[policy] = Conversations()
            for conversations in self:
                conversations.limit(self._most_bytes // len(self.of_policy))
        return self.of_policy.get(policy)

    def restore(self, event: TrajectoryEvent, oldest_ms: int) -> None:
        """Take in what the log had before the server began; see `Conversations.restore`."""
        conversations = self.of(event.policy)
        if conversations is None:
            self._elsewhere[event.trajectory_id] = sys.intern(event.policy)
        else:
            conversations.restore(event, oldest_ms)

    def check_policy(self, policy: str, trajectory_id: str | None) -> None:
        """Raise CallError (conflict) for a trajectory that is another policy's."""
        if trajectory_id is None:
            return
        owner = self._elsewhere.get(trajectory_id)
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
