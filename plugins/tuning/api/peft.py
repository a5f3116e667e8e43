"""Orders over HTTP of jobs that tune one version, in Streamward's own words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Body, without_nulls
from gateway.http.route import IDEMPOTENCY_KEY, REST, idempotency_key
from plugins.jobs.api import job_rights
from plugins.jobs.api.answers import OrderedConfig, TrainingJob
from plugins.jobs.api.tenant_jobs import OpenJobs, TenantJobs, jobs_of
from plugins.jobs.api.training_job import TRAINING_JOB, training_job
from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api import tuning_orders
from plugins.tuning.api.fine_tuning_answers import FINE_TUNING_JOB
from streams.settings.model import Settings


class TuningFields(Body):
    """What an order has for this type."""

    method: Literal["sft", "dpo"] | None = Field(None, description="FINE_TUNING; default: sft")
    training_file: str | None = Field(
        None, description="FINE_TUNING: id of an uploaded file; default: answers of the log"
    )


class PeftBody(Body):
    """A LoRA adapter by supervised training or preferences: a job that makes one version."""

    agent_id: str = Field(min_length=1, description="a policy, which may be new, or an agent that is registered")
    method: Literal["sft", "dpo"] = "sft"
    training_file: str | None = Field(None, description="id of an uploaded file; default: answers of the log")
    config: dict[str, Any] | None = Field(None, description="of the order (jobs.md): `epochs`, `batch`, `start`, …")
    tenant: str | None = Field(None, min_length=1, description="who pays")


TUNING_JOB = TRAINING_JOB.model_copy(
    update={"type": "FINE_TUNING", "config": OrderedConfig(agent_id="coach", n_iterations=1, method="sft")}
)


class PeftJobs:
    """The route that orders adapters. It waits for the broker, or the store."""

    def __init__(self, settings: Settings, log: OpenJobs) -> None:
        self._jobs_of = jobs_of(settings, log)

    @REST.post(
        "/finetune/peft",
        may=job_rights.ORDER,
        ids="GET /v1/files lists files, GET /adapters lists policies",
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "agent_id": "coach",
            "method": "sft",
            "training_file": FINE_TUNING_JOB.training_file,
            "config": {"epochs": 2},
        },
        example=TUNING_JOB,
    )
    def create_tuning_job(self, request: Request, body: PeftBody) -> TrainingJob:
        """Order a job that tunes one version, by chosen answers or preferences."""
        key, jobs = idempotency_key(request), self._jobs_of(request)
        return training_job(jobs.start(order(jobs, body), key=key))


def order(jobs: TenantJobs, body: Any) -> JobOrder:
    """Return the job that is ordered, of a PeftBody or an order with TuningFields. Raises as `tuning_orders.tuning`."""
    config = without_nulls(body.config)
    policy = jobs.policy_of(body.agent_id)
    fields = {"policy": policy, "method": body.method or "sft", "config": config, "tenant": body.tenant}
    tuning_order = tuning_orders.tuning(
        fields,
        body.training_file,
        jobs.settings,
        jobs.adapters,
        names={"policy": "agent_id"},
        tenant=jobs.tenant,
    )
    return tuning_order.of_agent(body.agent_id) if body.agent_id in jobs.agents else tuning_order
