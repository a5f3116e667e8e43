"""Fair turns for policies that share a process.

    waiting policies, weights, turns so far ──► next_turn ──► one policy ──► take_turn: its next is 1 / weight later

Start-time fair queueing (Goyal, Vin and Cheng, 1996). Each turn has a start tag, in virtual time: the policy's turn
before it ended then, or it begins now if the policy was idle. The smallest tag is next:

    start = max(now, end of its last turn)        end = start + size / weight        now = start of the turn being taken

A turn has size 1, or that of so many turns taken at once. Of two policies that both wait all the time, the turns taken
in any stretch, each divided by its weight, differ by at most size_a / w_a + size_b / w_b. So none starves, and a policy
that was idle has saved up nothing.

No clock and no I/O: how long a turn takes does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turns:
    """The past turns that matter for the next."""

    now: float = 0.0
    """Virtual time: the start tag of the last turn."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """When the last turn of a policy ends, if that is after `now`."""


def next_turn(turns: Turns, waiting: Iterable[str]) -> str | None:
    """Return the waiting policy with the smallest start tag, None if none waits. Equal tags go by name."""
    return min(waiting, key=lambda policy: (_start(turns, policy), policy), default=None)


def take_turn(turns: Turns, policy: str, weight: Callable[[str], float], size: int = 1) -> Turns:
    """Return the turns after `policy` has taken one, or `size` at once. `weight` is above 0."""
    now = max(turns.now, _start(turns, policy))
    ends = {other: end for other, end in turns.ends.items() if end > now}
    return Turns(now, {**ends, policy: now + size / weight(policy)})


def _start(turns: Turns, policy: str) -> float:
    return max(turns.now, turns.ends.get(policy, 0.0))
