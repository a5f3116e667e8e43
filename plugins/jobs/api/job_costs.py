"""Usage and cost of jobs and training calls over HTTP, summed as `streamward jobs costs` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, PathQuery
from gateway.http.principal import tenant_of
from gateway.http.route import REST
from plugins.jobs.api import job_rights
from plugins.jobs.api.tenant_jobs import OpenJobs
from plugins.jobs.log import spending
from streams.errors import CallError, SettingsError

BY = "policy,month"


class CostsQuery(PathQuery):
    """How costs are summed."""

    by: str = Field(BY, max_length=100, description="comma separated: policy, tenant, job, month, session")


class CostRow(Answer):
    """Jobs and calls that have all these names in common; null: not summed by that, or none."""

    policy: str | None
    tenant: str | None
    job: str | None
    session: str | None = Field(description="of training calls")
    month: str | None
    closed: bool | None = Field(description="by tenant and month: whether jobs add nothing to it any more")
    prompt_tokens: int
    completion_tokens: int
    trainer_s: float
    cost_usd: float


class CostList(Answer):
    """Usage and cost."""

    object: Literal["list"]
    data: list[CostRow]


EXAMPLE = CostList(
    object="list",
    data=[
        CostRow(
            policy="sums",
            tenant=None,
            job=None,
            session=None,
            month="2026-01",
            closed=None,
            prompt_tokens=4821,
            completion_tokens=913,
            trainer_s=12.5,
            cost_usd=0.31,
        )
    ],
)


class JobCosts:
    """The route that sums what jobs used."""

    def __init__(self, log: OpenJobs) -> None:
        self._log = log

    @REST.get(
        "/costs", may=job_rights.READ, refuses=(), example=EXAMPLE, tools={"costs": ""}, toolsets=("log", "control")
    )
    def list_costs(self, request: Request, query: CostsQuery) -> CostList:
        """Sum the usage and cost of jobs and training calls; a key of a tenant sees its own."""
        try:
            names = spending.names(query.by)
        except SettingsError as exc:
            raise CallError("invalid", str(exc), "by") from exc
        tenant = tenant_of(request)
        summed = names if tenant is None else tuple(dict.fromkeys(("tenant", *names)))
        rows = [row for row in self._log.open().costs(summed) if tenant is None or row["tenant"] == tenant]
        return CostList(object="list", data=[_row(row) for row in rows])


def _row(row: Mapping[str, Any]) -> CostRow:
    fields = {name: row.get(name) for name in CostRow.model_fields}
    named = {name: fields[name] or None for name in ("policy", "tenant", "job", "session")}
    return CostRow.model_validate(fields | named)
