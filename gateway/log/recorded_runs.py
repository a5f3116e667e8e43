"""Runs over HTTP: each conversation, agent's run and answer to a task as one row, as view `runs` has it.

filter ──► run_list.py, over what the principal may see ──► RunFigures        id ──► its row, turns and scores
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, PathQuery
from gateway.http.principal import principal_of
from gateway.http.route import REST
from gateway.log.open_log import OpenLog
from schemas.events import Purpose, RowEnding, RunVerdict
from streams.output import moment

LISTED = "GET /runs lists runs"
"""Where the ids of runs are found."""
MOST_RUNS = 200
Name = Annotated[str, Field(max_length=200)]


class ListedRunsQuery(PathQuery):
    """Which runs, the newest first."""

    agent: Name = Field("", description="only runs of this agent")
    policy: Name = Field("", description="only runs of this policy")
    scenario: Name = Field("", description="only runs of this scenario; chat: runs without a task")
    version: int | None = Field(None, ge=0, lt=2**31, description="only runs of which it answered a turn")
    verdict: Literal["promote", "reject", "needs_human", "none"] | None = Field(
        None, description="only runs with this verdict"
    )
    purpose: Purpose | None = Field(None, description="only runs of such tasks")
    failed_tools: bool = Field(False, description="only runs in which a tool failed")
    text: str = Field(
        "", max_length=200, description="only runs with all of these words in questions, answers or results of tools"
    )
    offset: int = Field(0, ge=0, le=1_000_000, description="number of the newest to skip")
    limit: int = Field(50, ge=1, le=MOST_RUNS, description="runs at most")


class RunFigures(Answer):
    """One run; null: the log has no such figure, or not yet."""

    object: Literal["run"]
    answer_id: str
    task_id: str
    policy: str
    agent_id: str | None
    scenario: str
    tenant: str | None
    purpose: Purpose
    thread: str | None
    run_ids: list[str]
    versions: list[int]
    began_at: str
    ended_at: str | None
    ending: RowEnding | None
    reason: str | None
    turns: int
    failed_turns: int
    malformed: int
    tool_calls: int
    failed_tools: int
    retries: int
    rewrites: int
    recoveries: int
    escalations: int
    latency_ms: float
    prompt_tokens: int
    sampled_tokens: int
    cost_usd: float | None
    reward: float | None
    scores: dict[str, float]
    feedback: float | None
    success: bool | None
    verdict: RunVerdict | None


class RunFiguresList(Answer):
    """Runs, the newest first."""

    object: Literal["list"]
    data: list[RunFigures]
    has_more: bool
    as_of: str


class RecordedTurn(Answer):
    """One model call of a run: what is new before it, and the answer."""

    run: str
    number: int
    continuity: str
    reason: str
    adapter_version: int
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    error: str | None
    finish_reason: str
    latency_ms: float


class RecordedScore(Answer):
    """What a scorer or a person said of the run, or of one of its turns."""

    about: str
    source: str
    value: float | None
    error: str | None
    rationale: str | None


class RecordedRun(RunFigures):
    """One run, with its turns; `text`: the answer of a run without turns."""

    text: str | None
    turn_list: list[RecordedTurn]
    score_list: list[RecordedScore]


EXAMPLE = RunFigures(
    object="run",
    answer_id="9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
    task_id="sum-1",
    policy="sums",
    agent_id="calc",
    scenario="sums",
    tenant=None,
    purpose="serve",
    thread=None,
    run_ids=["9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61"],
    versions=[7],
    began_at="2026-01-01T00:00:00.000Z",
    ended_at="2026-01-01T00:00:02.500Z",
    ending="completed",
    reason="the program ended with 0",
    turns=3,
    failed_turns=0,
    malformed=0,
    tool_calls=2,
    failed_tools=1,
    retries=0,
    rewrites=0,
    recoveries=1,
    escalations=0,
    latency_ms=2400.0,
    prompt_tokens=310,
    sampled_tokens=48,
    cost_usd=0.0004,
    reward=1.0,
    scores={"exact": 1.0},
    feedback=None,
    success=None,
    verdict="promote",
)


class RecordedRuns:
    """The routes that read runs."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log

    @REST.get(
        "/runs",
        may="log.read",
        ids=LISTED,
        at_once=1,  # the view answers one after the other
        example=RunFiguresList(object="list", data=[EXAMPLE], has_more=False, as_of="2026-01-01T00:00:03.000Z"),
        tools={"list_runs": ""},
    )
    def list_runs(self, request: Request, query: ListedRunsQuery) -> RunFiguresList:
        """List runs: conversations, agents' runs and answers to tasks."""
        view = self._log.view
        from streams.tools.views import run_list  # which needs DuckDB
        from streams.tools.views.rights import LogRights

        chosen = run_list.RunFilter(
            agent=query.agent,
            policy=query.policy,
            scenario=query.scenario,
            version=query.version,
            verdict=query.verdict or "",
            purpose=query.purpose or "",
            failed_tools=query.failed_tools,
            text=query.text,
        )
        with view.snapshot(LogRights.of(principal_of(request))) as log:
            page = run_list.list_runs(log, chosen, query.offset, query.limit).runs
            return RunFiguresList(
                object="list",
                data=[RunFigures(**_fields(row)) for row in page.rows],
                has_more=not page.is_last,
                as_of=moment(int(log.as_of.timestamp() * 1000)),
            )

    @REST.get("/runs/{run_id}", may="log.read", ids=LISTED, at_once=1, tools={"show_run": ""})
    def get_run(self, request: Request, run_id: str) -> RecordedRun:
        """Look at a run, or the conversation that it is of, turn by turn."""
        view = self._log.view
        from streams.tools.views import run_list  # which needs DuckDB
        from streams.tools.views.rights import LogRights

        with view.snapshot(LogRights.of(principal_of(request))) as log:
            run = run_list.find_run(log, run_id)
        return RecordedRun(
            **_fields(run.run),
            text=None if run.response is None else run.response["text"],
            turn_list=[_turn(turn) for turn in run.turns],
            score_list=[_score(reward) for reward in run.rewards],
        )


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the view as the fields of a RunFigures."""
    fields = {name: row[name] for name in RunFigures.model_fields if name in row}
    ended_at = None if row["ended_ms"] is None else moment(row["ended_ms"])
    return fields | {"object": "run", "began_at": moment(row["began_ms"]), "ended_at": ended_at}


def _turn(turn: dict[str, Any]) -> RecordedTurn:
    names = ("number", "continuity", "reason", "adapter_version", "messages", "reply", "error", "finish_reason")
    return RecordedTurn(run=turn["trajectory_id"], **{name: turn[name] for name in names}, latency_ms=turn["took_ms"])


def _score(reward: dict[str, Any]) -> RecordedScore:
    names = ("source", "value", "error", "rationale")
    return RecordedScore(about=reward["response_id"], **{name: reward[name] for name in names})
