"""An order over HTTP of a job that trains by rewards."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gateway.http.body import Body
from plugins.jobs.api.tenant_jobs import TenantJobs
from plugins.jobs.orders import request as requests
from plugins.jobs.orders.request import EnvironmentConfig, JobOrder
from streams.errors import CallError, NotFoundError, RefusedError


class RewardFields(Body):
    """What an order has for this type."""

    training_queries: list[dict[str, Any]] | None = Field(None, description="each with `query` and `expected_outcome`")
    environment: EnvironmentConfig | None = Field(
        None, description="RL_TRAINING: episodes to train on, instead of questions"
    )


def order(jobs: TenantJobs, body: Any) -> JobOrder:
    """Return the job that is ordered. Raises CallError, JobRequestError."""
    names = {"agent_id", "training_queries", "config", "tenant"}
    fields = body.model_dump(include=names, exclude_none=True)
    if body.environment is not None:
        fields["environment"] = body.environment.model_dump(exclude_unset=True)
    try:
        return jobs.order(requests.read_request(fields))
    except NotFoundError as exc:
        raise CallError("not_found", str(exc), "agent_id") from exc
    except RefusedError as exc:  # its estimate is over its budget
        raise CallError("invalid", str(exc), "config.max_budget_usd") from exc
