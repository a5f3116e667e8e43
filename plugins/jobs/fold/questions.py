"""The questions of a job: the tasks of its iterations, and its held-out questions as a suite.

    job, iteration, draw ──► a question of the train share, or a seed ──► Task, always the same
    job ──► its held-out questions, or seeds ──► Suite

The first `batch_size` draws of an iteration go through the questions, in a new order in each epoch; later draws replace
tasks that no batch will take.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

from plugins.jobs.fold.state import EVALUATION_SLOTS, JobState
from schemas.conventions import CONTAMINATION_ALLOWED_BY, TOOL_IDS
from schemas.events import AdvantagedGroup, EpisodeStart, JobEnvironment, Message, Sampling, Task, derive_id
from streams.evaluation.suite import Suite
from streams.rows.row_texts import VARIANT_OF
from streams.stages.tasks.episodes import name_of_episode

JOB, ITERATION, DRAW = "job", "job_iteration", "job_draw"
"""Metadata of a job's tasks, which their groups have too."""


def suite_name(state: JobState) -> str:
    """Return what the job's held-out questions are called in `adapters`: a suite of this owner (suite.py)."""
    return f"{JOB}/{state.job_id}"


def suite(state: JobState) -> Suite:
    """Return the held-out questions."""
    tasks = tuple(_task(state, number) for number in state.held_out)
    return Suite(name=suite_name(state), questions=tasks, thresholds={})


def train_task(state: JobState, iteration: int, draw: int, created_at: int) -> Task:
    """Return the task of a draw; `iteration` counts from 1, `draw` from 0."""
    number = state.train[_question_number(state, iteration, draw)]
    task = _task(state, number)
    return replace(
        task,
        task_id=derive_id("job", state.job_id, iteration, draw, number),
        created_at=created_at,
        metadata={**task.metadata, ITERATION: str(iteration), DRAW: str(draw)} | _allowance(state),
        purpose="train",
        group_size=state.spec.group_size,
        sampling=state.spec.sampling,
    )


def place_of(group: AdvantagedGroup) -> tuple[str, int, int] | None:
    """Return job, iteration and draw of a train group; None if no job asked for it."""
    job, iteration, draw = (group.metadata.get(name, "") for name in (JOB, ITERATION, DRAW))
    if not job or not is_count(iteration) or not is_count(draw):
        return None
    return job, int(iteration), int(draw)


def is_count(text: str) -> bool:
    """Whether this is a number as a job's tasks have them: anybody may write metadata."""
    return text.isdecimal() and len(text) < 10


def _task(state: JobState, number: int) -> Task:
    """Return a question, or an episode, as it is asked in evaluations."""
    spec = state.spec
    greedy = Sampling(temperature=0.0, max_tokens=spec.sampling.max_tokens, stop=spec.sampling.stop)
    task = Task(
        task_id="",  # the caller gives it one
        created_at=state.created_at,
        metadata={JOB: state.job_id},
        policy=state.policy,
        purpose="eval",
        scenario="job",
        tenant=state.tenant,
        group_size=EVALUATION_SLOTS,
        sampling=greedy,
        agent=spec.agent,
        max_turns=spec.max_turns,
        reward_sources=spec.reward_sources,
    )
    if spec.environment is not None:
        return _episode(task, spec.environment, number)
    question = spec.questions[number]
    messages = question.messages or (Message(role="user", content=question.query),)
    variant = {} if question.variant_of is None else {VARIANT_OF: question.variant_of}
    return replace(
        task,
        metadata=task.metadata | variant,
        verifier=question.verifier,
        prompt_version=spec.prompt_version,
        messages=messages if spec.prompt_version is None else (*spec.prompt_version.render(), *messages),
    )


def _episode(task: Task, environment: JobEnvironment, number: int) -> Task:
    count = len(environment.seeds)
    seed = environment.seeds[number] if number < count else environment.held_out_seeds[number - count]
    return replace(
        task,
        metadata=task.metadata | ({} if environment.entry is None else {TOOL_IDS: environment.entry}),
        sampling=replace(task.sampling, temperature=environment.held_out_temperature),
        messages=(name_of_episode(environment.name, seed),),
        tools=environment.tools,
        environment=EpisodeStart(name=environment.name, settings=environment.settings, seed=seed),
    )


def _allowance(state: JobState) -> dict[str, str]:
    return {} if state.contamination_allowed_by is None else {CONTAMINATION_ALLOWED_BY: state.contamination_allowed_by}


def _question_number(state: JobState, iteration: int, draw: int) -> int:
    """Return which of the questions of the train share a draw takes."""
    count, batch = len(state.train), state.spec.batch_size
    if draw >= batch:
        return _hash(state.job_id, "again", iteration, draw) % count
    epoch, position = divmod((iteration - 1) * batch + draw, count)
    return _order(state.job_id, epoch, count)[position]


@lru_cache(maxsize=64)
def _order(job_id: str, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(range(count), key=lambda number: _hash(job_id, epoch, number)))


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()[:8], "big")
