"""Jobs as one tenant sees them: its own, and no sign of other tenants'.

    request ──► its key's tenant ──► TenantJobs ──► JobLog        no tenant: every job

Another tenant's job is answered as one that does not exist: the same words, whether by a whole id, by the beginning of
one, as a place in a list, or as the policy that a job starts from. Policies are the server's own, which all share, and
those whose name begins with the tenant's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from starlette.requests import HTTPConnection

from gateway.http.principal import actor_of, tenant_of
from gateway.log.named_code import check_environment, check_scorers, why_not_of_tenant
from plugins.jobs.controller import job_episodes
from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobCommand, JobCommandKind, JobLog
from plugins.jobs.orders import request as requests
from plugins.jobs.orders.job_types import type_of
from plugins.jobs.orders.request import EnvironmentConfig, JobOrder, JobRequest, PlayableEnvironment
from schemas.events import JobEvent
from streams.access.tenants.tenant_names import is_of, may_know
from streams.adapters.versions import AdapterState, known_policies, read_state
from streams.errors import JobRequestError, NotFoundError, RefusedError
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import KnownAgent, known_agents
from streams.stages.tasks.line_steps import LineSteps, log_now

OpenJobs = FollowedOnDemand[JobLog]
"""The jobs of the log, followed again after a failure."""


class TenantJobs:
    """A JobLog, as one request sees it. Methods wait for the broker where JobLog does."""

    def __init__(self, settings: Settings, log: OpenJobs, request: HTTPConnection) -> None:
        self.settings, self._jobs, self._request = settings, log, request
        self.tenant, self._actor = tenant_of(request), actor_of(request)

    @property
    def jobs(self) -> Mapping[str, JobState]:
        """Every job by its id, the oldest first."""
        return {job_id: job for job_id, job in self._jobs.open().jobs.items() if self._sees(job)}

    def get(self, job_id: str) -> JobState:
        """Return a job by its id, or by the beginning of it. Raises NotFoundError, RefusedError if several begin so."""
        if self.tenant is None:
            return self._jobs.open().get(job_id)
        jobs = [job for name, job in self.jobs.items() if job_id and name.startswith(job_id)]
        if len(jobs) == 1:
            return jobs[0]
        if jobs:
            raise RefusedError(f"{len(jobs)} jobs begin with {job_id!r}, e.g. {jobs[0].job_id}; give more of the id")
        raise NotFoundError(f"there is no job {job_id!r}")

    def whole(self, job_id: str) -> JobState:
        """Return a job by its whole id: a program that cuts an id off is wrong. Raises NotFoundError."""
        job = self._jobs.open().jobs.get(job_id)
        if job is None or not self._sees(job):
            raise NotFoundError(f"there is no job {job_id[:80]!r}; GET /v1/fine_tuning/jobs lists them")
        return job

    def events(self, job: JobState) -> Sequence[JobEvent]:
        """Return the events of a job that took effect."""
        return self._jobs.open().events(job.job_id)

    def order(self, job_request: JobRequest) -> JobOrder:
        """Return the job by rewards that is asked for.

        Raises as `requests.order`, and CallError for code that its sender may not have run.
        """
        order = requests.order(
            job_request,
            self.settings,
            policies=self.policies(),
            agents=self.agents,
            tenant=self.tenant,
            try_environment=self._try_environment,
        )
        if "reward_sources" in job_request.config.model_fields_set:
            self.check_scorers(order)
        return order

    def check_scorers(self, order: JobOrder) -> None:
        """Raise CallError for a scorer that the sender of an order may not name; `start` checks those of tenants."""
        if self.tenant is None:
            check_scorers(self._request, self.settings.serve, order.spec.reward_sources, "config.reward_sources")

    def _try_environment(self, config: EnvironmentConfig) -> PlayableEnvironment:
        check = partial(check_environment, self._request)
        steps = LineSteps(log_now(self.settings), self.tenant)
        return job_episodes.try_environment(config, self.settings, steps, check)

    def start(self, order: JobOrder, *, key: str | None) -> JobState:
        """Create a job for the tenant, which pays for it. Raises NotFoundError, and as JobLog.start."""
        if self.tenant is not None:
            order = self._of_tenant(order)
        return self._jobs.open().start(order, actor=self._actor, key=key)

    def command(self, job_id: str, kind: JobCommandKind, *, reason: str, key: str | None) -> JobState:
        """Pause, resume or cancel a job. Raises as `get` and JobLog.command."""
        job = self.get(job_id)
        return self._jobs.open().command(job.job_id, JobCommand(kind=kind, actor=self._actor, reason=reason, key=key))

    # --- what may be trained ------------------------------------------------------------------------------------------

    def policies(self) -> Collection[str]:
        """Return every policy that there is. Raises LogError."""
        return {name for name in known_policies(self.settings) if self._may_train(name)}

    @cached_property
    def agents(self) -> Mapping[str, KnownAgent]:
        """Return every agent that is registered, and not another tenant's. Raises LogError."""
        agents = known_agents(self.settings)
        may_name = partial(may_know, self.tenant)
        return {name: agent for name, agent in agents.items() if may_name(name) and self._may_train(agent.policy)}

    def policy_of(self, name: str) -> str:
        """Return the policy of a registered agent, or the name of a policy as it is. Raises LogError."""
        return self.agents[name].policy if name in self.agents else name

    def adapters(self, policy: str) -> AdapterState:
        """Return what the log knows of a policy's adapters. Raises NotFoundError for another tenant's, LogError."""
        self._check_policy(policy)
        return read_state(self.settings, policy)

    def _of_tenant(self, order: JobOrder) -> JobOrder:
        if order.tenant not in (None, self.tenant):
            problem = f"tenant is {order.tenant!r}, and the key is of {self.tenant}: leave it out"
            raise JobRequestError(problem, "tenant")
        self._check_policy(order.policy)
        if (refusal := why_not_of_tenant(order.spec.reward_sources, self.settings.serve)) is not None:
            raise JobRequestError(refusal, "config.reward_sources")
        if (kind := type_of(order.spec)) is not None and kind.check_tenant is not None:
            kind.check_tenant(order.spec, self._check_policy)
        return replace(order, tenant=self.tenant)

    def _check_policy(self, name: str) -> None:
        if not self._may_train(name):
            raise NotFoundError(
                f"there is no policy {name[:80]!r}; a tenant trains {self.settings.policy.name}, and policies of its "
                f"own, whose names begin with {self.tenant}."
            )

    def _may_train(self, policy: str) -> bool:
        return policy == self.settings.policy.name or is_of(self.tenant, policy)

    def _sees(self, job: JobState) -> bool:
        return self.tenant is None or job.tenant == self.tenant


def jobs_of(settings: Settings, log: OpenJobs) -> Callable[[HTTPConnection], TenantJobs]:
    """Return what gives each request the jobs that its key may see."""
    return lambda request: TenantJobs(settings, log, request)
