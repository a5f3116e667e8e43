"""The types of jobs, as loaded plugins declare them.

    extends={"jobs": "module:TYPES"} ──► job_types() ──► an order over HTTP, of which type it is, and who reads it
    JobSpec ──► type_of ──► its view for people, what it is likely to cost, who runs it

A job of a type that no loaded plugin has is listed and folded like any other; no process here runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from plugins.jobs.fold.state import JobState, JobUsage
from schemas.events import JobSpec
from streams.plugins.installed import extensions
from streams.plugins.plugin import load_reference

if TYPE_CHECKING:
    from streams.access.roles import Action
    from streams.stages.agents.registered_agents import KnownAgent

NOT_LOADED = "NOT_LOADED"
"""The type of a job whose plugin is not loaded, in answers."""


@dataclass(frozen=True, kw_only=True)
class JobType:
    """What a job may do."""

    name: str
    """As orders and answers have it: `RL_TRAINING`."""
    about: str
    """What it does, for the refusal of an unknown type: `RL_TRAINING, by rewards`."""
    description: str
    """What an order of this type is, and when it is the default: a sentence for the description of the routes."""
    has: Callable[[JobSpec], bool]
    """Whether a job is of this type."""
    is_meant: Callable[[Any, KnownAgent | None], bool]
    """Whether an order without a type is of this one, by its fields and its agent."""
    view: Callable[[JobState], dict[str, Any]]
    """Returns what was ordered: `method`, and questions as counts."""
    estimate: Callable[[JobSpec], JobUsage]
    """Returns what a job is likely to use."""
    fields: str
    """Where its fields of an order over HTTP are: `module:name` of a Body (gateway/http/body.py)."""
    order: str
    """Where an order over HTTP is read: `module:name` of a function of TenantJobs and the body that returns a
    JobOrder."""
    check_tenant: Callable[[JobSpec, Callable[[str], None]], None] | None = None
    """Raises JobRequestError for what a tenant's job may not name; it is given what checks a policy that it names."""
    example_methods: tuple[str, ...] = ()
    """Choices of `jobs start --method` that learn from examples."""
    from_examples: str = ""
    """Where such an order is read: `module:name` of a function of settings, fields and a file or None that returns a
    JobOrder."""
    further: Mapping[str, Action] = field(default_factory=dict)
    """Fields of an order that need another right, and that right."""

    def load(self, reference: str) -> Any:
        """Return the object of one of its references. Raises SettingsError if it cannot be imported."""
        return load_reference(reference, f"type of job {self.name}: {reference} cannot be loaded")


@cache
def job_types() -> tuple[JobType, ...]:
    """Return every type that a job may have here. Raises SettingsError if one cannot be imported."""
    return extensions("jobs")


def type_of(spec: JobSpec) -> JobType | None:
    """Return the type of a job; None if it is of a plugin that is not loaded."""
    return next((each for each in job_types() if each.has(spec)), None)


def type_name(job: JobState) -> str:
    """Return the name of a job's type."""
    return NOT_LOADED if (kind := type_of(job.spec)) is None else kind.name


def estimate(spec: JobSpec) -> JobUsage:
    """Return what the job is likely to use, without the seconds of training; nothing for an unknown type."""
    return JobUsage() if (kind := type_of(spec)) is None else kind.estimate(spec)


def view_of(job: JobState) -> dict[str, Any]:
    """Return what was ordered, the questions or episodes as counts."""
    if (kind := type_of(job.spec)) is None:
        return {"method": "not loaded"}
    return kind.view(job)
