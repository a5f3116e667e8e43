"""Scores of an agent's run from its environment's rewards and results, turn by turn.

    environment   its rewards, else whether the goal was reached                 any number; 1 or 0
    tools         the share of turns with a usable action, or good calls         0 to 1
    verified      whether the goal was reached                                   1 or 0

All of them read the episode's log, so an old run can be scored again with other settings. A verdict's
steps sum to its value, so more turns score higher only where the environment rewards them.
"""

from __future__ import annotations

from schemas.events import Response, Task
from streams.scorers.text import NotNegative
from streams.scorers.verdict import ScoreError, ScorerOptions, Verdict

NOT_RECORDED = "no_environment"


class EnvironmentOptions(ScorerOptions):
    """Settings of `environment`."""

    turn_penalty: NotNegative = 0.0
    """Taken off for every turn: of two runs that come to the same, the shorter one is worth more."""


def environment(task: Task, response: Response, settings: EnvironmentOptions) -> Verdict:
    """Return the sum of the environment's rewards; without rewards, 1 for success and 0 for failure.

        value = sum over turns k of (r_k - turn_penalty)

    Raises ScoreError(no_environment) if neither is in the log.
    """
    penalty, turns = settings.turn_penalty, response.turns
    parts = {"turns": float(len(turns))} | ({} if response.success is None else {"success": float(response.success)})
    if any(turn.reward is not None for turn in turns):
        steps = tuple((turn.reward or 0.0) - penalty for turn in turns)
        return Verdict(sum(steps), parts, steps=steps)
    return Verdict(_success(response, "environment") - penalty * len(turns), parts)


def tools(task: Task, response: Response, settings: ScorerOptions) -> Verdict:
    """Return the share of turns with a usable action, or with good calls of tools, among turns with a result.

        value = sum over turns k of ok_k / n

    Raises ScoreError(no_environment) if there is none.
    """
    usable = [turn.ok for turn in response.turns if turn.ok is not None]
    if not usable:
        raise _missing(response, "tools", "whether an action could be used")
    steps = tuple(1.0 / len(usable) if turn.ok else 0.0 for turn in response.turns)
    return Verdict(sum(usable) / len(usable), {"turns": float(len(response.turns))}, steps=steps)


def verified(task: Task, response: Response, settings: ScorerOptions) -> Verdict:
    """Return 1 if the environment reports that the goal was reached, else 0. Raises ScoreError(no_environment)."""
    return Verdict(_success(response, "verified"))


def _success(response: Response, scorer: str) -> float:
    if response.success is None:
        raise _missing(response, scorer, "whether the goal was reached")
    return float(response.success)


def _missing(response: Response, scorer: str, fact: str) -> ScoreError:
    return ScoreError(
        f"{scorer}: response {response.response_id} does not say {fact}; it scores runs of agents in an environment "
        "(the agent `environment`, or an agent that sends X-Streamward-Observed), and `tools` those that call tools",
        reason=NOT_RECORDED,
    )
