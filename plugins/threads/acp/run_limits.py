"""How much a run may do, and how it ends: answers, tokens, time and money, each by a name of its own.

RunState, settings of threads, prices ──► RunLimits ──► RunOutcome: max_turns, max_tokens, budget, timeout
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plugins.threads.log.run_steps import RunSteps
from plugins.threads.log.thread_settings import Threads
from plugins.threads.log.thread_state import RunState
from schemas.events import Message, RunEnding
from streams.errors import SettingsError
from streams.kafka import times
from streams.settings.model import Settings

RECURSION_LIMIT = "recursion_limit"
"""In the request for a run: its own limit of answers."""


class RunOutcome(NamedTuple):
    """The outcome of a run, or of one of its answers."""

    ending: RunEnding
    messages: tuple[Message, ...] = ()
    turn_id: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    program_run: str | None = None
    """The trajectory of the program that answered; without a turn the answer is what it printed."""
    handoff: str | None = None
    """The call whose result is the answer."""


def outcome_of_handoff(steps: RunSteps) -> RunOutcome | None:
    """Return how a run ends that was handed over, once all calls of its answer have results; None: it was not."""
    if steps.handoff is None or steps.open_calls:
        return None
    message = Message(role="assistant", content=steps.handoff.text)
    return RunOutcome("success", (message,), handoff=steps.handoff.call_id)


class RunLimits:
    """The limits of the runs of a server."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for a budget without prices."""
        self._limits, prices = settings.of_plugin(Threads), settings.prices
        self._prompt_usd, self._completion_usd = prices.prompt_usd or 0.0, prices.completion_usd or 0.0
        if self._limits.budget_usd and prices.prompt_usd is None:
            raise SettingsError(
                "threads.budget_usd has no effect without prices; set prices.prompt_usd and prices.completion_usd"
            )

    def limit_of(self, run: RunState, callers: Sequence[RunState] = ()) -> RunOutcome | None:
        """Return how a run ends that has done as much as it may; None: it may continue.

        `callers`: the runs above it, whose tokens and costs it shares.
        """
        limits, answers = self._limits, len(run.steps.turns)
        read = sum(each.steps.prompt_tokens for each in (run, *callers))
        sampled = sum(each.steps.completion_tokens for each in (run, *callers))
        max_turns, name = limits.max_turns, "threads.max_turns"
        if (recursion_limit := run.order.get(RECURSION_LIMIT, max_turns)) < max_turns:
            max_turns, name = recursion_limit, "config.recursion_limit"
        if answers >= max_turns:
            return RunOutcome("max_turns", error=f"its {answers} answers end with calls; at most {max_turns} ({name})")
        if limits.max_tokens and sampled >= limits.max_tokens:
            text = f"{sampled} tokens were sampled; at most {limits.max_tokens} (threads.max_tokens)"
            return RunOutcome("max_tokens", error=text)
        cost = (read * self._prompt_usd + sampled * self._completion_usd) / 1e6
        if limits.budget_usd and cost >= limits.budget_usd:
            text = f"its tokens cost {cost:g} USD; at most {limits.budget_usd:g} (threads.budget_usd)"
            return RunOutcome("budget", error=text)
        left_s = self.left_s(run)
        return self.timeout() if left_s is not None and left_s <= 0 else None

    def left_s(self, run: RunState) -> float | None:
        """Return how long a run may still work, seconds; None: as long as it wants."""
        if not self._limits.run_s:
            return None
        began_at = run.updated_at if run.checkpoint is None else run.checkpoint.created_at
        since = run.steps.resumed_at or began_at
        return self._limits.run_s - (times.now_ms() - since) / 1000

    def timeout(self) -> RunOutcome:
        """Return the outcome of a run that worked for too long."""
        return RunOutcome("timeout", error=f"it has no answer after {self._limits.run_s:g} s (threads.run_s)")
