"""The data sets of the log over HTTP: what was built, and what was sent elsewhere.

    datasets ──► DatasetLog ──► those of the key's tenant; without a tenant, all ──► builds, each with its submissions

A list has names, digests and counts, and no text of a run.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, PathQuery
from gateway.http.principal import tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE
from plugins.improve.datasets import dataset_log
from plugins.improve.datasets.dataset_log import DatasetLog
from schemas.events import DatasetEvent
from streams.output import moment
from streams.settings.model import Settings


class DatasetsQuery(PathQuery):
    """Which data sets."""

    dataset: str | None = Field(None, min_length=1, max_length=200, description="default: all of them")


class DatasetFileAnswer(Answer):
    """A file of a data set."""

    path: str
    bytes: int
    sha256: str


class SubmissionAnswer(Answer):
    """A job of an outside provider that a data set was sent to."""

    status: Literal["submitted", "succeeded", "failed", "cancelled"]
    endpoint: str
    job: str
    model: str
    result: str | None = Field(description="the model that came of it")
    trained_tokens: int | None
    cost_usd: float | None


class DatasetAnswer(Answer):
    """One build of a data set."""

    object: Literal["dataset"]
    dataset: str
    digest: str
    policy: str
    tenant: str | None
    newest_verdict: str
    rule: dict[str, str]
    counts: dict[str, int]
    scenarios: dict[str, int]
    labellers: dict[str, int]
    versions: list[int]
    inputs: dict[str, int] = Field(description="rows by column and bin of their questions")
    drift_from: str | None = Field(description="digest of the build before it, if there are rows that are newer")
    drift: dict[str, float] = Field(description="COLUMN: distance of the newer rows from it; COLUMN.bound: by chance")
    code_version: str
    actor: str
    reason: str
    files: list[DatasetFileAnswer]
    submissions: list[SubmissionAnswer]


class DatasetListAnswer(Answer):
    """The builds of all data sets, the oldest first."""

    object: Literal["list"]
    data: list[DatasetAnswer]


EXAMPLE = DatasetListAnswer(
    object="list",
    data=[
        DatasetAnswer(
            object="dataset",
            dataset="coach",
            digest="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
            policy="default",
            tenant=None,
            newest_verdict="2026-11-26T10:46:40.123Z",
            rule={"eval_share": "0.1", "near_duplicate": "0.8"},
            counts={"train": 90, "eval": 10, "pairs": 31, "left out: rejected": 52},
            scenarios={"sums": 60, "capitals": 40},
            labellers={"gates": 70, "person": 30},
            versions=[0, 1],
            inputs={"script:latin": 100},
            drift_from="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            drift={"script": 0.02, "script.bound": 0.31},
            code_version="0.1.0 0123456789ab",
            actor="ann",
            reason="ordered",
            files=[DatasetFileAnswer(path="train.jsonl", bytes=81234, sha256="ab" * 32)],
            submissions=[],
        )
    ],
)


class BuiltDatasets:
    """The data sets of the log. Methods wait for the broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @REST.get(
        "/datasets",
        may="adapters.read",
        refuses=(),
        at_once=AT_ONCE,
        example=EXAMPLE,
        tools={"list_datasets": ""},
        toolsets=("log", "control"),
    )
    def list_datasets(self, request: Request, query: DatasetsQuery) -> DatasetListAnswer:
        """List the builds of data sets, and where they were sent."""
        log, tenant = dataset_log.read(self._settings), tenant_of(request)
        events = (event for _, event in log.placed if event.kind == "built" and tenant in (None, event.tenant))
        chosen = (event for event in events if query.dataset in (None, event.dataset))
        return DatasetListAnswer(object="list", data=[_answer(event, log) for event in chosen])


def _answer(event: DatasetEvent, log: DatasetLog) -> DatasetAnswer:
    return DatasetAnswer(
        object="dataset",
        dataset=event.dataset,
        digest=event.digest,
        policy=event.policy,
        tenant=event.tenant,
        newest_verdict=moment(event.created_at),
        rule=dict(event.selection),
        counts=dict(event.counts),
        scenarios=dict(event.scenarios),
        labellers=dict(event.labellers),
        versions=list(event.versions),
        inputs=dict(event.inputs),
        drift_from=event.drift_from,
        drift=dict(event.drift),
        code_version=event.code_version,
        actor=event.actor,
        reason=event.reason,
        files=[DatasetFileAnswer(path=file.path, bytes=file.bytes, sha256=file.sha256) for file in event.files],
        submissions=_submissions(event, log),
    )


def _submissions(build: DatasetEvent, log: DatasetLog) -> list[SubmissionAnswer]:
    """Return the jobs that a build was sent to, each as its newest event says."""
    by_job: dict[str, SubmissionAnswer] = {}
    for event in log.of(build.dataset):
        if event.outside is not None and event.kind != "built" and event.digest == build.digest:
            outside = event.outside
            by_job[outside.job] = SubmissionAnswer(
                status=event.kind,
                endpoint=outside.endpoint,
                job=outside.job,
                model=outside.model,
                result=outside.result,
                trained_tokens=outside.trained_tokens,
                cost_usd=outside.cost_usd,
            )
    return list(by_job.values())
