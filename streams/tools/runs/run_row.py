"""A run as one row: its course, its cost, the tools it called, its scores and its verdict.

    Finished (its task, answer, turns, scores, feedback) + rules, verdict ──► FinishedRun

A run is a conversation, an agent's run, or the answer to a task without an agent, which has one turn. The runs of one
thread, and a chat with the calls that continued it, are one conversation. View `runs` has a column for each field, with
the same values (streams/tools/query/runs_view.py); it also has open runs, and answers in open groups.

Read `Finished` with `unfit` selected; otherwise failed answers and scorers' reasons are missing.

Not covered: turns that the log no longer has. Their run keeps the figures of its response, and no tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from schemas.conventions import CONSENT, COST, OUTSIDE_ENGINE, WAITS_FOR
from schemas.events import JobPrices, Purpose, RowEnding, RunVerdict, TrajectoryEvent, Turn
from streams.access.tenants.tenant_names import tenant_in
from streams.settings.model import Settings
from streams.tools.query.finished import Finished
from streams.tools.runs.tool_use import is_answered, tool_use

CHAT = "chat"
"""The scenario of a run without a task."""
DEFAULT = "default"
"""The scenario of a run whose task is no longer in the log."""


@dataclass(frozen=True, slots=True)
class FigureRules:
    """The settings that the figures of a run depend on."""

    prices: JobPrices | None = None
    """Of tokens; None: none is set."""
    escalation_tools: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the rules in force."""
        of_tokens, prices = settings.prices, None
        if of_tokens.prompt_usd is not None and of_tokens.completion_usd is not None:
            prices = JobPrices(prompt=of_tokens.prompt_usd, completion=of_tokens.completion_usd)
        return cls(prices, settings.serve.escalates)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """One run. None: the log has no such figure."""

    answer_id: str
    """The response, or the conversation."""
    task_id: str
    """A conversation is its own task."""
    policy: str
    agent_id: str | None
    scenario: str
    tenant: str | None
    purpose: Purpose
    thread: str | None
    """The thread that it is of."""
    run_ids: tuple[str, ...]
    """Of a conversation: its runs, in order. Of others: the answer_id."""
    versions: tuple[int, ...]
    """That answered, in order."""
    began_ms: int
    ended_ms: int | None
    ending: RowEnding | None
    """None: it is open. A row of `run_row` always has one."""
    reason: str | None
    """Why it ended."""
    turns: int
    """Model calls."""
    failed_turns: int
    malformed: int
    """Turns with a call of a tool that could not be read."""
    tool_calls: int
    failed_tools: int
    retries: int
    rewrites: int
    recoveries: int
    escalations: int
    """These six as streams/tools/runs/tool_use.py defines them."""
    latency_ms: float
    """Of a response, as it was recorded; of a conversation, from the first call to the last answer of each of its
    runs."""
    prompt_tokens: int
    """Each token of a run once, however many of its calls had it before them."""
    sampled_tokens: int
    cost_usd: float | None
    """Of its tokens by the prices in force, or those recorded with an outside model, and what its scores say that they
    cost; None: no price is set."""
    reward: float | None
    """That counted in its group."""
    scores: Mapping[str, float]
    """By source; without feedback, and without scores that failed."""
    feedback: float | None
    """Mean of what people said of it and of its turns."""
    success: bool | None
    """Whether its environment says that the goal was reached."""
    verdict: RunVerdict | None
    """The one that counts (plugins/improve/curation/verdicts.py)."""


def run_row(finished: Finished, rules: FigureRules, verdict: RunVerdict | None = None) -> FinishedRun:
    """Return the row of a run; `verdict` is the one that counts."""
    turns, task, response, ended = finished.turns, finished.task, finished.response, finished.ended
    figures = _figures_of_turns(finished, turns) if turns else _figures_of_response(finished)
    tools = tool_use(turns, None if ended is None else ended.observed, rules.escalation_tools)
    source = response or ended or turns[0]
    agent_id = source.agent_id if source.agent_id is not None or finished.began is None else finished.began.agent_id
    return FinishedRun(
        answer_id=finished.answer_id,
        task_id=finished.task_id,
        policy=source.policy,
        agent_id=agent_id,
        scenario=task.scenario if task is not None else CHAT if response is None else DEFAULT,
        tenant=tenant_in(agent_id) if task is None or task.tenant is None else task.tenant,
        purpose=finished.purpose,
        thread=finished.thread,
        run_ids=finished.run_ids,
        **_course(finished, turns),
        **figures,
        tool_calls=tools.tool_calls,
        failed_tools=tools.failed_tools,
        retries=tools.retries,
        rewrites=tools.rewrites,
        recoveries=tools.recoveries,
        escalations=tools.escalations,
        cost_usd=_cost_usd(finished, figures["prompt_tokens"], figures["sampled_tokens"], rules.prices),
        reward=finished.reward,
        scores={source: reward.value for source, reward in finished.scores.items() if reward.value is not None},
        feedback=finished.mean_feedback,
        verdict=verdict,
    )


def _course(finished: Finished, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return when it began and how it ended."""
    response, began, ended = finished.response, finished.began, finished.ended
    start = None if began is None else began.created_at
    if start is None and response is not None:
        start = response.created_at - int(response.latency_ms)
    if start is None:
        start = min(turn.started_at for turn in turns)
    course: dict[str, Any] = {"began_ms": start, "ended_ms": None, "ending": None, "reason": None, "success": None}
    if response is not None:
        course["ended_ms"] = response.created_at
        course["ending"] = "completed" if response.error is None else "failed"
        course["reason"] = response.error or response.finish_reason
        course["success"] = response.success
    if ended is not None:
        failed = response.error if response is not None and ended.ending == "completed" else None
        waits = response is None and ended.ending == "completed" and _waits_for_tool(turns, ended)
        wait = "waits_for_consent" if ended.metadata.get(WAITS_FOR) == CONSENT else "waits_for_tool"
        ending = wait if waits else ended.ending
        course |= {"ended_ms": ended.created_at, "ending": ending, "reason": failed or ended.reason}
        course["success"] = ended.success if response is None else response.success
    return course


def _waits_for_tool(turns: Sequence[Turn], ended: TrajectoryEvent) -> bool:
    """Return whether the last answer calls a tool, and the end has no result of it: of an environment, or a handoff."""
    last = max((turn for turn in turns if turn.continuity != "auxiliary"), key=lambda turn: turn.number, default=None)
    has_result = ended.observed is not None or ended.output is not None
    return last is not None and is_answered(last) and bool(last.reply.tool_calls) and not has_result


def _figures_of_turns(finished: Finished, turns: Sequence[Turn]) -> dict[str, Any]:
    times: dict[str, tuple[int, int]] = {}
    for turn in turns:
        first, last = times.get(turn.trajectory_id, (turn.started_at, turn.created_at))
        times[turn.trajectory_id] = min(first, turn.started_at), max(last, turn.created_at)
    latency_ms = float(sum(last - first for first, last in times.values()))
    return {
        "versions": tuple(sorted({turn.adapter_version for turn in turns})),
        "turns": len(turns),
        "failed_turns": sum(turn.error is not None for turn in turns),
        "malformed": sum(turn.malformed is not None for turn in turns),
        "latency_ms": latency_ms if finished.response is None or finished.runs else finished.response.latency_ms,
        "prompt_tokens": sum(len(turn.prompt_token_ids) for turn in turns),
        "sampled_tokens": sum(len(turn.completion_token_ids) for turn in turns),
    }


def _figures_of_response(finished: Finished) -> dict[str, Any]:
    """Return the figures of an answer without turns: one turn, or of an agent as many as it says."""
    response = finished.response
    if response is None:
        return {"versions": (), "latency_ms": 0.0} | dict.fromkeys(
            ("turns", "failed_turns", "malformed", "prompt_tokens", "sampled_tokens"), 0
        )
    is_direct = response.agent_id is None
    return {
        "versions": (response.adapter_version,) if response.adapter_version >= 0 else (),
        "turns": 1 if is_direct else response.steps or 0,
        "failed_turns": int(is_direct and response.error is not None),
        "malformed": 0,
        "latency_ms": response.latency_ms,
        "prompt_tokens": response.prompt_tokens,
        "sampled_tokens": response.completion_tokens,
    }


def _cost_usd(finished: Finished, prompt_tokens: int, sampled_tokens: int, prices: JobPrices | None) -> float | None:
    response = finished.response
    if response is not None and response.engine == OUTSIDE_ENGINE:
        recorded = response.metadata.get(COST)
        tokens_usd = None if recorded is None else float(recorded)
    else:
        tokens_usd = None if prices is None else _tokens_usd(prompt_tokens, sampled_tokens, prices)
    if tokens_usd is None:
        return None
    scores = [reward for run in finished.runs or (finished,) for reward in run.scores.values()]
    return math.fsum([tokens_usd, *(reward.components.get(COST, 0.0) for reward in scores)])


def _tokens_usd(prompt_tokens: int, sampled_tokens: int, prices: JobPrices) -> float:
    return (prompt_tokens * prices.prompt + sampled_tokens * prices.completion) / 1e6
