"""The type of job that searches for a better version of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugins.jobs.fold.state import JobState, JobUsage
from plugins.jobs.orders.job_types import JobType
from plugins.jobs.orders.rl_training import BYTES_PER_TOKEN
from schemas.events import JobSpec
from streams.access.roles import Action

MOVES_ALIAS: Mapping[str, Action] = {"config.alias": "adapters.promote"}
"""What an order takes whose job lets an alias mean the version that it found."""


def estimate(spec: JobSpec) -> JobUsage:
    """Return what a search is likely to use: as many answers as it may take, each of half its most tokens."""
    search = spec.search
    assert search is not None  # noqa: S101 - it is of this type
    longest = max((len(question.query.encode()) for question in spec.questions), default=0)
    answers = search.max_answers
    return JobUsage(round(answers * longest / BYTES_PER_TOKEN), round(answers * spec.sampling.max_tokens / 2))


def view(job: JobState) -> dict[str, Any]:
    """Return what was ordered."""
    return {"method": "prompts", "questions": len(job.spec.questions), "held_out": len(job.held_out)}


TYPES = (
    JobType(
        name="PROMPT_ENGINEERING",
        about="PROMPT_ENGINEERING, a search for a better prompt",
        description="PROMPT_ENGINEERING: that of `/prompts/optimize`, and the default if a prompt is named, unless its "
        "agent is registered as another than PROMPT_BASED.",
        has=lambda spec: spec.search is not None,
        is_meant=lambda body, agent: body.prompt is not None and (agent is None or agent.type == "PROMPT_BASED"),
        view=view,
        estimate=estimate,
        fields="plugins.prompts.search.search_orders:SearchFields",
        order="plugins.prompts.search.search_orders:order",
        further=MOVES_ALIAS,
    ),
)
