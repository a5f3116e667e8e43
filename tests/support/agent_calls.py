"""Agents for tests: programs that call a model many times, recorded as the server records them.

run = Recorded()
one = run.call([user("4 + 7 =")])                      the first call
run.call([*run.history(one), user("and twice that?")])  extends it

Tokens stand for themselves: each message and each reply has ids of its own, so a token says where it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.events import Message, Tool, Turn, derive_id
from schemas.tokens import Logprobs, TokenIds
from streams.stages.agents.trajectories.call_chains import Chains
from tests.support.factories import T0, turn

ADD = Tool(name="add", parameters='{"type": "object"}')


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


class Recorded:
    """The turns of one trajectory, placed and numbered as they are recorded."""

    def __init__(self, trajectory_id: str = derive_id("s1", 0)) -> None:
        self.trajectory_id, self.chains, self.turns = trajectory_id, Chains(), list[Turn]()

    def call(self, messages: Sequence[Message], tools: Sequence[Tool] = (), **changes: Any) -> Turn:
        """Record a call with this whole history: three tokens a message, two of a reply."""
        placed, number = self.chains.place(messages, tools), len(self.turns)
        begins = 0 if placed.parent is None else len(self.chains.tokens(placed.parent.turn_id))
        ids = [100 * number + place for place in range(3 * len(placed.new))]
        whole: dict[str, Any] = {
            "turn_id": derive_id(self.trajectory_id, "turn", number),
            "trajectory_id": self.trajectory_id,
            "parent_id": None if placed.parent is None else placed.parent.turn_id,
            "continuity": placed.continuity,
            "reason": placed.reason,
            "messages": placed.new,
            "tools": tuple(tools) if placed.parent is None else (),
            "request_digest": derive_id(*messages),
            "started_at": T0 + number - changes.get("choice", 0),
            "reply": assistant(f"reply {number}"),
            "prompt_token_ids": TokenIds.of(ids),
            "completion_token_ids": TokenIds.of([1_000_000 + 2 * number, 1_000_001 + 2 * number]),
            "logprobs": Logprobs.of([-0.5, -0.25]),
        }
        whole |= changes
        whole.setdefault("prompt_tokens", begins + len(whole["prompt_token_ids"]))
        made = turn(number, **whole)
        self.chains.add(made)
        self.turns.append(made)
        return made

    def history(self, of: Turn) -> list[Message]:
        """Return what a client holds after a turn: everything it sent, and the reply."""
        return list(self.chains.messages(of.turn_id))
