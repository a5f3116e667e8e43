"""The type of job that tunes a version by supervised training or preferences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugins.jobs.fold.state import JobState, JobUsage
from plugins.jobs.orders.job_types import JobType
from plugins.jobs.orders.rl_training import BYTES_PER_TOKEN
from schemas.events import JobSpec
from streams.errors import JobRequestError


def estimate(spec: JobSpec) -> JobUsage:
    """Return the tokens of the job's file; how many answers of the log it will find is not known."""
    tuning = spec.tuning
    assert tuning is not None  # noqa: S101 - it is of this type
    return JobUsage(0, round((tuning.file_bytes or 0) / BYTES_PER_TOKEN) * tuning.epochs)


def view(job: JobState) -> dict[str, Any]:
    """Return what was ordered."""
    tuning = job.spec.tuning
    assert tuning is not None  # noqa: S101 - it is of this type
    start = tuning.start_version
    return {
        "method": tuning.method,
        "epochs": tuning.epochs,
        "batch": tuning.batch,
        "beta": tuning.beta,
        "lora_rank": tuning.lora_rank,
        "lora_alpha": tuning.lora_alpha,
        "lora_targets": tuning.lora_targets,
        "start": start if tuning.start_policy is None else f"{tuning.start_policy}:{start}",
        "file_id": tuning.file_id,
        "file": tuning.file,
        "dataset": None if tuning.dataset is None else f"{tuning.dataset}@{tuning.dataset_digest}",
        "groups_of": tuning.groups_policy,
        "selection": dict(tuning.selection),
    }


def check_tenant(spec: JobSpec, check_policy: Callable[[str], None]) -> None:
    """Raise JobRequestError for answers of the log, NotFoundError for a start in another tenant's policy."""
    tuning = spec.tuning
    assert tuning is not None  # noqa: S101 - it is of this type
    if tuning.groups_policy is not None:
        way = "give a key of a tenant's job a training_file"
        raise JobRequestError(f"the answers of the log are not divided by tenant: {way}", "training_file")
    if tuning.start_policy is not None:
        check_policy(tuning.start_policy)


TYPES = (
    JobType(
        name="FINE_TUNING",
        about="FINE_TUNING, on chosen answers or preferences",
        description="FINE_TUNING: that of `/finetune/peft`, and the default for an agent that is registered as "
        "FINE_TUNED.",
        has=lambda spec: spec.tuning is not None,
        is_meant=lambda _body, agent: agent is not None and agent.type == "FINE_TUNED",
        view=view,
        estimate=estimate,
        fields="plugins.tuning.api.peft:TuningFields",
        order="plugins.tuning.api.peft:order",
        check_tenant=check_tenant,
        example_methods=("sft", "dpo"),
        from_examples="plugins.tuning.order_from_file:order",
    ),
)
