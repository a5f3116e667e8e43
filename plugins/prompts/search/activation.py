"""Point an alias to another version, unless a policy is in training with the present one.

    jobs that have not ended ──► with this prompt, by this alias? ──► refused by name
                                                              no ──► PromptLog.activate

A policy that is trained with one prompt and used with another is measured with neither. Its tasks keep the version of
the job's order in any case; this check keeps users' answers consistent with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from plugins.prompts.versions.prompt_log import Activation, PromptLog
from plugins.prompts.versions.prompt_state import AliasTarget
from streams.errors import RefusedError
from streams.settings.model import Settings

if TYPE_CHECKING:
    from plugins.jobs.fold.state import JobState


def activate(settings: Settings, prompts: PromptLog, order: Activation) -> AliasTarget:
    """Let an alias mean a version. Raises RefusedError while a policy is in training with another, and as the log."""
    target = prompts.get(order.prompt).aliases.get(order.alias)
    if target is not None and target.version != order.version:
        from plugins.jobs.log.job_log import JobLog  # which takes longer to import than the prompts

        with JobLog(settings, with_months=False) as jobs:
            check_not_in_training(jobs.jobs.values(), order)
    return prompts.activate(order)


def check_not_in_training(jobs: Iterable[JobState], order: Activation) -> None:
    """Raise RefusedError if a job that has not ended trains with the prompt that the alias means, or searches by it."""
    for job in jobs:
        if job.has_ended or job.job_id == order.job_id:
            continue
        trained, search = job.spec.prompt_version, job.spec.search
        if trained is not None and (trained.name, trained.alias) == (order.prompt, order.alias):
            raise RefusedError(
                f"policy {job.policy} is in training with {trained} until job {job.job_id} ends ({job.status}): "
                f"{order.alias} cannot mean version {order.version} before; wait for it, or cancel it"
            )
        if search is not None and (search.prompt, search.alias) == (order.prompt, order.alias):
            raise RefusedError(
                f"job {job.job_id} decides what {order.alias} of {order.prompt} means ({job.status}); wait for it, or "
                "cancel it"
            )
