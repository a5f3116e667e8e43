"""Open and play a job's environment before anything is written, and again before the job begins.

    EnvironmentConfig ──► an entry of the registry, or as it is ──► three episodes of one seed ──► JobEnvironment
    a record that no gateway has checked ─────────────────────────► the same verdict, in the same words

The seeds are those of `streamward up --environment`, so a job and that command hold out the same episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from schemas.events import EpisodeStart, JobEnvironment, JobSpec
from streams.environments.registry.named_tools import Entries, named_environment, reference
from streams.environments.registry.tool_state import ToolState
from streams.errors import EventError, JobRequestError, SettingsError
from streams.jobs.request import EnvironmentConfig, PlayableEnvironment
from streams.settings.model import Settings
from streams.stages.tasks.episodes import Episodes, EpisodeSpec, episode_player

LEAST_GROUP = 2
"""Of the tasks that seeds are taken from; their groups are the job's."""


def start_of(config: EnvironmentConfig, entries: Entries) -> tuple[EpisodeStart, ToolState | None]:
    """Return what an order's environment is, and the entry of the registry that names it. Raises JobRequestError."""
    settings, entry = json.dumps(config.settings, sort_keys=True), None
    if not episode_player().is_built_in(config.name) and ":" not in config.name:
        try:
            entry = named_environment(config.name, entries)
        except ValueError as exc:
            raise JobRequestError(str(exc), "environment.name") from exc
    if entry is None or entry.environment is None:
        return EpisodeStart(name=config.name, settings=settings, seed=0), None
    if config.settings:
        problem = f"environment: {config.name} is registered with its settings; leave settings out"
        raise JobRequestError(problem, "environment.settings")
    return entry.environment, entry


def try_environment(
    config: EnvironmentConfig,
    settings: Settings,
    entries: Entries,
    check: Callable[[EpisodeStart], None] = lambda start: None,
) -> PlayableEnvironment:
    """Return the environment of an order; `check` raises where its sender may not have it run.

    Raises JobRequestError where it is unknown, not allowed, or does not give the same episode for the same seed.
    """
    start, entry = start_of(config, entries)
    check(start)
    of_entry = None if entry is None or entry.added is None else entry.added.max_turns
    spec = EpisodeSpec(
        name=start.name,
        settings=start.settings,
        count=config.episodes,
        policy="",
        group_size=LEAST_GROUP,
        max_turns=config.max_turns or of_entry,
        held_out=config.held_out,
    )
    try:
        played = episode_player().tasks(settings, spec)
    except (EventError, SettingsError) as exc:
        raise JobRequestError(f"environment: {exc}", "environment") from exc
    return _tried(start, None if entry is None else reference(entry.tool_id, entry), played)


def _tried(start: EpisodeStart, entry: str | None, played: Episodes) -> PlayableEnvironment:
    train, held_out = (
        tuple(dict.fromkeys(task.environment.seed for task in tasks if task.environment is not None))
        for tasks in (played.train, played.held_out)
    )
    first = played.train[0]
    environment = JobEnvironment(
        name=start.name,
        settings=start.settings,
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
