"""Open and play a job's environment before anything is written, and again before the job begins.

    EnvironmentConfig ──► as a line names it, an entry too ──► three episodes of one seed ──► JobEnvironment
    a record that no gateway has checked ─────────────────────────► the same verdict, in the same words

The seeds are those of `streamward up --environment`, so a job and that command hold out the same episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from plugins.jobs.orders.request import EnvironmentConfig, PlayableEnvironment
from schemas.events import EpisodeStart, JobEnvironment, JobSpec, Task
from streams.errors import EventError, JobRequestError, SettingsError
from streams.settings.model import Settings
from streams.stages.tasks.episodes import Episodes, EpisodeSpec, episode_player
from streams.stages.tasks.line_steps import CompletedTask, LineSteps
from streams.stages.tasks.task_line import EnvironmentLine

LEAST_GROUP = 2
"""Of the tasks that seeds are taken from; their groups are the job's."""


def named_in(config: EnvironmentConfig, steps: LineSteps) -> CompletedTask:
    """Return a task in an order's environment, with the entry that names it. Raises JobRequestError, LogError."""
    line = EnvironmentLine(name=config.name, settings=json.dumps(config.settings, sort_keys=True), seed=0)
    try:
        return steps.complete("environment", Task(task_id="", created_at=0, policy=""), line)
    except ValueError as exc:
        parameter = "environment.settings" if config.settings else "environment.name"
        raise JobRequestError(str(exc), parameter) from exc


def try_environment(
    config: EnvironmentConfig,
    settings: Settings,
    steps: LineSteps,
    check: Callable[[EpisodeStart], None] = lambda start: None,
) -> PlayableEnvironment:
    """Return the environment of an order; `check` raises where its sender may not have it run.

    Raises JobRequestError where it is unknown, not allowed, or does not give the same episode for the same seed.
    """
    named, references = named_in(config, steps)
    start = named.environment or EpisodeStart(name=config.name, seed=0)
    check(start)
    spec = EpisodeSpec(
        name=start.name,
        settings=start.settings,
        count=config.episodes,
        policy="",
        group_size=LEAST_GROUP,
        max_turns=config.max_turns or named.max_turns,
        held_out=config.held_out,
    )
    try:
        played = episode_player().tasks(settings, spec)
    except (EventError, SettingsError) as exc:
        raise JobRequestError(f"environment: {exc}", "environment") from exc
    return _tried(start, next(iter(references), None), played)


def _tried(start: EpisodeStart, entry: str | None, played: Episodes) -> PlayableEnvironment:
    train, held_out = (
        tuple(dict.fromkeys(task.environment.seed for task in tasks if task.environment is not None))
        for tasks in (played.train, played.held_out)
    )
    first = played.train[0]
    environment = JobEnvironment(
        name=start.name,
        settings=(first.environment or start).settings,
        entry=entry,
        seeds=train,
        held_out_seeds=held_out,
        held_out_temperature=next((task.sampling.temperature for task in played.held_out), 0.0),
        messages=played.messages,
        tools=played.tools,
    )
    return PlayableEnvironment(environment, first.max_turns or 1, first.sampling.max_tokens, first.sampling.temperature)


def problem_of(spec: JobSpec, settings: Settings) -> str | None:
    """Return why a job's environment cannot be played here; None if it can, or the job has none."""
    environment = spec.environment
    if environment is None:
        return None
    start = EpisodeStart(name=environment.name, settings=environment.settings, seed=environment.seeds[0])
    problem = episode_player().problem(settings, start, spec.max_turns or 1)
    return None if problem is None else f"environment: {problem}"
