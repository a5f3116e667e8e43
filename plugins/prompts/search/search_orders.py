"""Orders over HTTP of jobs that search for a better version of a prompt."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Body, without_nulls
from gateway.http.route import IDEMPOTENCY_KEY, LARGE_BODY, REST, idempotency_key
from plugins.jobs.api import job_rights
from plugins.jobs.api.answers import OrderedConfig, TrainingJob
from plugins.jobs.api.tenant_jobs import OpenJobs, TenantJobs, jobs_of
from plugins.jobs.api.training_job import TRAINING_JOB, training_job
from plugins.jobs.orders.request import JobOrder
from plugins.prompts.search import search_request
from plugins.prompts.search.search_job import MOVES_ALIAS
from plugins.prompts.versions import prompt_log
from streams.errors import CallError
from streams.settings.model import Settings


class SearchFields(Body):
    """What an order has for this type."""

    training_queries: list[dict[str, Any]] | None = Field(None, description="each with `query` and `expected_outcome`")
    prompt: str | None = Field(None, min_length=1, description="PROMPT_ENGINEERING: the prompt to find a version of")
    search: Literal["pairs", "live", "reflection"] | None = Field(
        None, description="PROMPT_ENGINEERING; default: pairs"
    )


class OptimizeBody(Body):
    """A search for a better version of a prompt: a job of type PROMPT_ENGINEERING."""

    agent_id: str = Field(min_length=1, description="a policy, or an agent that is registered")
    prompt: str = Field(min_length=1, description="its name")
    search: Literal["pairs", "live", "reflection"] = "pairs"
    training_queries: list[dict[str, Any]] = Field(
        [], description="each with `query` and `expected_outcome`; live: for the report alone"
    )
    config: dict[str, Any] | None = Field(None, description="of the order (prompts.md): `max_answers`, `alias`, …")
    tenant: str | None = Field(None, min_length=1, description="who pays")


SEARCH_JOB = TRAINING_JOB.model_copy(
    update={
        "type": "PROMPT_ENGINEERING",
        "config": OrderedConfig(agent_id="sums", n_iterations=1, method="prompts"),
    }
)


class PromptSearches:
    """The route that orders searches for better prompts. It waits for the broker."""

    def __init__(self, settings: Settings, log: OpenJobs) -> None:
        self._jobs_of = jobs_of(settings, log)

    @REST.post(
        "/prompts/optimize",
        may=job_rights.ORDER,
        further=MOVES_ALIAS,
        **LARGE_BODY,
        ids="GET /prompts/templates lists prompts, GET /adapters lists policies",
        status=201,
        refuses=(404,),
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "agent_id": "sums",
            "prompt": "sums",
            "training_queries": [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(10)],
            "config": {"max_answers": 400, "alias": "production"},
        },
        example=SEARCH_JOB,
    )
    def optimize_prompt(self, request: Request, body: OptimizeBody) -> TrainingJob:
        """Order a job that searches for a better version of a prompt."""
        key, jobs = idempotency_key(request), self._jobs_of(request)
        return training_job(jobs.start(order(jobs, body), key=key))


def order(jobs: TenantJobs, body: Any) -> JobOrder:
    """Return the job that is ordered, of an OptimizeBody or an order with SearchFields.

    Raises CallError, JobRequestError, NotFoundError, RefusedError over its budget.
    """
    if body.prompt is None:
        raise CallError("invalid", "prompt is missing: name the prompt to find a better version of", "prompt")
    config = without_nulls(body.config)
    if "endpoint" in config:  # a server would ask whatever address it is sent, or run a function
        problem = "config.endpoint is the deployment's over HTTP (scoring.judge_url): leave it out"
        raise CallError("invalid", problem, "config.endpoint")
    policy = jobs.policy_of(body.agent_id)
    if policy not in jobs.policies():
        raise CallError("not_found", f"agent_id: there is no policy and no agent {body.agent_id[:80]!r}", "agent_id")
    fields = {
        "policy": policy,
        "prompt": body.prompt,
        "method": body.search or "pairs",
        "questions": body.training_queries or [],
        "config": config,
        "tenant": jobs.tenant or body.tenant,
    }
    search = search_request.read_request(fields)
    name = body.agent_id if body.agent_id in jobs.agents else None
    search_order = search_request.order(search, jobs.settings, prompt_log.PROMPTS.read(jobs.settings), agent=name)
    jobs.check_scorers(search_order)
    return search_order
