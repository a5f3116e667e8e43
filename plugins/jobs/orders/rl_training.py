"""The type of job that trains a policy by rewards: its view, and what it is likely to cost."""

from __future__ import annotations

from typing import Any

from plugins.jobs.fold.state import EVALUATION_SLOTS, JobState, JobUsage, sides
from plugins.jobs.orders.job_types import JobType
from schemas.events import JobEnvironment, JobSpec

BYTES_PER_TOKEN = 4
"""Of a prompt, for the estimate: that of English text."""


def is_by_rewards(spec: JobSpec) -> bool:
    """Return whether a job trains by rewards."""
    return spec.tuning is None and spec.search is None


def estimate(spec: JobSpec) -> JobUsage:
    """Return what the job is likely to use: answers of half their most tokens, and no seconds of training.

    How long a step takes is known only once one was taken, so what the trainer costs is left to the budget's own check.
    An episode is taken to last for all its turns.
    """
    train, held_out = sides(spec)
    trained = spec.iterations * spec.batch_size * spec.group_size
    evaluations = 0 if not held_out else (2 + (spec.iterations - 1) // spec.evaluate_every) * EVALUATION_SLOTS
    answers = trained + evaluations * len(held_out)
    if spec.environment is not None:
        sampled = answers * (spec.max_turns or 1) * spec.sampling.max_tokens / 2
        return JobUsage(round(answers * _shown_tokens(spec.environment)), round(sampled))
    prompts = [len(question.query.encode()) / BYTES_PER_TOKEN for question in spec.questions]
    prompt_of_question = sum(prompts[number] for number in train) / max(1, len(train))
    prompt = trained * prompt_of_question + evaluations * sum(prompts[number] for number in held_out)
    return JobUsage(round(prompt), round(answers * spec.sampling.max_tokens / 2))


def _shown_tokens(environment: JobEnvironment) -> float:
    """Return about how many tokens an episode begins with; what it shows later is not known."""
    texts = [message.content for message in environment.messages]
    texts += [part for tool in environment.tools for part in (tool.name, tool.description, tool.parameters)]
    return sum(len(text.encode()) for text in texts) / BYTES_PER_TOKEN


def view(job: JobState) -> dict[str, Any]:
    """Return what was ordered, the questions or episodes as counts."""
    spec = job.spec
    return {
        "method": "grpo",
        **({} if spec.environment is None else {"environment": _environment(spec.environment)}),
        "questions": len(job.train) + len(job.held_out),
        "held_out": len(job.held_out),
        "batch_size": spec.batch_size,
        "n_trajectories_per_query": spec.group_size,
        "checkpoint_interval": spec.evaluate_every,
        "keep_best": spec.keep_best,
        "patience": spec.patience,
        "target_gain": spec.target_gain,
        "agent": spec.agent,
        "max_steps_per_trajectory": spec.max_turns,
        "max_tokens": spec.sampling.max_tokens,
        "temperature": spec.sampling.temperature,
        "reward_sources": [
            {"name": source.name, "weight": source.weight, "settings": source.settings}
            for source in spec.reward_sources
        ],
    }


def _environment(environment: JobEnvironment) -> dict[str, Any]:
    entry = {} if environment.entry is None else {"entry": environment.entry}
    return {"name": environment.name, "settings": environment.settings} | entry


TYPES = (
    JobType(
        name="RL_TRAINING",
        about="RL_TRAINING, by rewards",
        description="RL_TRAINING: the order of `training.start_grpo`, and the default.",
        has=is_by_rewards,
        is_meant=lambda _body, _agent: True,
        view=view,
        estimate=estimate,
        fields="plugins.jobs.api.rl_order:RewardFields",
        order="plugins.jobs.api.rl_order:order",
    ),
)
