"""Runs that wait for a person, and the verdicts of people, over HTTP.

    curation, folded ──► runs that need a person, without what the judge said ──► GET /curation/queue
    {verdict, reason, expected} ──► the run as its judge saw it ──► a CurationEvent above the judge's

It is what `streamward improve curate queue` and `decide` do. A tenant sees and decides its own runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body, PathQuery, Whole
from gateway.http.principal import actor_of, principal_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from plugins.improve.curation import curation_view
from plugins.improve.curation.curation_log import CurationLog, PersonDecision
from schemas.events import RATIONALE_CHARACTERS, RunVerdict
from streams.access.roles import PluginAction
from streams.errors import CallError, RefusedError
from streams.kafka.history import LogHistory
from streams.settings.model import Settings

MOST_RUNS = 100
JUDGE = PluginAction("runs.judge")


class VerdictBody(Body):
    """A person's verdict on a run."""

    verdict: RunVerdict = Field(description="`promote`: good enough to learn from; `needs_human`: another should look")
    reason: Annotated[str, Field(min_length=1, max_length=RATIONALE_CHARACTERS, pattern=r"\S")] = Field(
        description="why; it is recorded"
    )
    expected: str | None = Field(
        None, max_length=200, description="`verdict_id` that counted when the run was shown; default: whichever does"
    )

    def decision(self, request: Request) -> PersonDecision:
        """Return the decision of the caller."""
        return PersonDecision(
            verdict=self.verdict, actor=actor_of(request), reason=self.reason.strip(), expect=self.expected
        )


@contextmanager
def refusals() -> Iterator[None]:
    """Answer a decision that is refused, since another one came first, with a conflict."""
    try:
        yield
    except RefusedError as exc:
        raise CallError("conflict", str(exc), "expected") from exc


class QueueQuery(PathQuery):
    """Which runs."""

    policy: str | None = Field(None, min_length=1, max_length=200, description="only runs of this policy")
    limit: Whole = Field(20, ge=1, le=MOST_RUNS, description="runs at most")


class GateAnswer(Answer):
    """A figure of a run and its bound; null: the run has no such figure."""

    gate: str
    value: float | None
    bound: float
    passed: bool


class QueuedRun(Answer):
    """A run that waits for a person. What the judge said of it is not in it."""

    run: str
    task_id: str
    policy: str
    agent_id: str | None
    scenario: str
    tenant: str | None
    created_at: str = Field(description="of the verdict")
    verdict_id: str = Field(description="of the verdict that counts now, for `expected`")
    gates: list[GateAnswer]
    cut: list[str] = Field(description="what of the transcript the judge did not see")


class ReviewQueue(Answer):
    """The runs that wait for a person, the oldest first."""

    object: Literal["list"]
    data: list[QueuedRun]
    more: bool


class JudgeAnswer(Answer):
    """The judge of a run, and its own verdict, null if its answer could not be read."""

    model: str
    endpoint: str
    verdict: RunVerdict | None


class RecordedVerdict(QueuedRun):
    """A verdict on a run, as it is in the log."""

    object: Literal["run_verdict"]
    verdict: RunVerdict
    labeller: Literal["gates", "judge", "person"]
    actor: str
    rationale: str
    rubric: str
    supersedes: str | None
    recorded_at: str
    judge: JudgeAnswer | None


RUN = "7500e4d0-0915-526c-82a9-fca103e2864f"
GATE = GateAnswer(gate="max_turns", value=2.0, bound=8.0, passed=True)
QUEUED_RUN = QueuedRun(
    run=RUN,
    task_id=RUN,
    policy="sums",
    agent_id="calc",
    scenario="chat",
    tenant=None,
    created_at="2027-01-15T08:00:00.000Z",
    verdict_id="92ae242d-60fe-58de-acd2-3abd95bc44e2",
    gates=[GATE],
    cut=[],
)


class VerdictRoutes:
    """The review queue, and verdicts of people. Methods wait for the broker."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._log, self._verdicts = log, CurationLog(settings, "log")

    @REST.get(
        "/curation/queue",
        may="log.read",
        refuses=(),
        at_once=AT_ONCE,
        example=ReviewQueue(object="list", data=[QUEUED_RUN], more=False),
    )
    def list_review_queue(self, request: Request, query: QueueQuery) -> ReviewQueue:
        """List the runs that wait for a person."""
        rows = [
            QueuedRun.model_validate(curation_view.queued_run(placed))
            for placed in self._verdicts.review_queue(tenant_of(request))
            if query.policy in (None, placed.event.policy)
        ]
        return ReviewQueue(object="list", data=rows[: query.limit], more=len(rows) > query.limit)

    @REST.post(
        "/runs/{run_id}/verdict",
        may=JUDGE,
        at_once=AT_ONCE,
        ids="GET /curation/queue lists runs that wait for a person",
        sends={"verdict": "promote", "reason": "it is right"},
        example=RecordedVerdict(
            **QUEUED_RUN.model_dump() | {"gates": [GATE]},
            object="run_verdict",
            verdict="promote",
            labeller="person",
            actor="user ann",
            rationale="it is right",
            rubric="useful@1",
            supersedes=QUEUED_RUN.verdict_id,
            recorded_at="streamward.curation[3]@1041",
            judge=None,
        ),
        tools={"judge_run": ""},
    )
    def judge_run(self, request: Request, run_id: str, body: VerdictBody) -> RecordedVerdict:
        """Say whether a run is good enough to learn from."""
        view = self._log.view  # which needs DuckDB
        from plugins.improve.curation.run_lookup import find_newest_run
        from streams.tools.views.log_view import LogReader

        case = find_newest_run(LogReader(view, principal_of(request)), LogHistory(view.settings), run_id)
        with refusals():
            placed = self._verdicts.decide(case, body.decision(request))
        return RecordedVerdict.model_validate({"object": "run_verdict"} | curation_view.verdict(placed))
