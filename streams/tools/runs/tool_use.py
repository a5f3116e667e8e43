"""The tools that a run called, and their outcomes.

    turns in order, what the environment showed at last ──► tool_use() ──► ToolUse: counts

The meaning of each count is defined here; view `runs` has the same in SQL, and a test compares them.

answered    A turn without an error whose client got the reply.
tool call   A call in the reply of an answered turn. A reply without one is a call where its environment says that it
            called a tool by writing text.
failed tool A call whose result says so by its protocol: the environment could not use the action (`observed.ok`), the
            result was sent with Anthropic's `is_error`, or it is the JSON of MCP's result with `isError`. An action
            of several calls that an environment could not use is one. What a result says in words is never read: a
            text that begins with "error" may be what the tool was asked for.
retry       A call of the same tool with the same arguments, character by character, as a call before it; and a turn
            whose recorded continuity is `rewrites`.
rewrite     A call whose history is not that of the calls before it: recorded as `rewrites` or `forks`. Of several
            answers to a call the first counts.
recovery    A failed tool after which a tool succeeded, and a turn with an error after which one was answered.
escalation  A call of a tool whose name is in `serve.escalation_tools`.

The result of a call counts once, where it was first sent; what an environment made of an action counts if the turn
before it was answered, so that a call which had to be sent again changes nothing. Turns are in the order of their
numbers. Not covered: calls that are written as text are never retries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from schemas.events import Observed, Turn
from streams.stages.agents.trajectories.tool_results import results_of

AT_LAST = 2**31 - 1
"""The number of what an environment showed after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Counts of a run, as the module defines them."""

    tool_calls: int = 0
    failed_tools: int = 0
    retries: int = 0
    rewrites: int = 0
    recoveries: int = 0
    escalations: int = 0


@dataclass(slots=True)
class _Tally:
    """The calls and results of the turns up to now."""

    calls: list[tuple[str, str | None]] = field(default_factory=list)
    """Name and arguments; None: written as text."""
    results: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """By call or action: the number of the turn that has it, and whether it succeeded."""

    def take_action(self, number: int, observed: Observed | None, before: Turn | None) -> None:
        """Add what an environment made of the turn before, as a turn of this number shows it."""
        if observed is None or observed.ok is None or before is None or not is_answered(before):
            return
        if observed.tool is None and not before.reply.tool_calls:
            return
        if observed.tool is not None and not before.reply.tool_calls:
            self.calls.append((observed.tool, None))
        self.results[f"action {number}"] = (number, observed.ok)

    def take_results(self, turn: Turn) -> None:
        """Add the results that a turn was sent."""
        for name, ok in results_of(turn).items():
            self.results.setdefault(name, (turn.number, ok))


def is_answered(turn: Turn) -> bool:
    """Return whether the client got the reply."""
    return turn.error is None and turn.delivered


def tool_use(turns: Sequence[Turn], last: Observed | None, escalation_tools: Collection[str]) -> ToolUse:
    """Return the counts of a run; each of its turns comes once. `last`: what its environment showed at the end."""
    tally, before = _Tally(), None
    ordered = sorted(turns, key=lambda turn: turn.number)
    for turn in ordered:
        tally.take_action(turn.number, turn.observed, before)
        if turn.observed is None:
            tally.take_results(turn)
        if is_answered(turn):
            tally.calls += [(call.name, call.arguments) for call in turn.reply.tool_calls]
        before = turn
    tally.take_action(AT_LAST, last, before)
    sent = [call for call in tally.calls if call[1] is not None]
    return ToolUse(
        tool_calls=len(tally.calls),
        failed_tools=sum(not ok for _, ok in tally.results.values()),
        retries=len(sent) - len(set(sent)) + sum(turn.continuity == "rewrites" for turn in ordered),
        rewrites=sum(turn.continuity in ("forks", "rewrites") and turn.choice == 0 for turn in ordered),
        recoveries=sum(_recoveries(tally, ordered)),
        escalations=sum(name in escalation_tools for name, _ in tally.calls),
    )


def _recoveries(tally: _Tally, turns: Sequence[Turn]) -> Iterator[bool]:
    """Yield of each failure whether something of its kind succeeded after it."""
    last_success = max((number for number, ok in tally.results.values() if ok), default=-1)
    last_answer = max((turn.number for turn in turns if is_answered(turn)), default=-1)
    yield from (number < last_success for number, ok in tally.results.values() if not ok)
    yield from (turn.number < last_answer for turn in turns if turn.error is not None)
