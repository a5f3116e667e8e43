"""Tasks that are episodes in one environment, listed or by reference: one for each seed.

    a listed one: seeds drawn until the question is on the side of the split that is asked for ──► TaskFamily
    by reference: played twice from seed 0 ──► train tasks, seeds 0, 1, … ; held-out ones from HELD_OUT_SEEDS

Where all episodes have the same question (guess a number), the seeds are split instead. The question of an environment
by reference is known only when it is played, so its seeds are split, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from plugins.environments.episodes.environment import Environment, EpisodeError, Observation
from plugins.environments.episodes.trial_episode import try_twice
from plugins.environments.listed import LISTED, open_listed, settings_of
from schemas.events import EpisodeStart, Purpose, RewardSource, Sampling, Task, derive_id
from streams.errors import EventError, SettingsError
from streams.kafka import times
from streams.stages.tasks.episodes import ENVIRONMENT_AGENT, Episodes, EpisodeSpec, name_of_episode
from streams.stages.tasks.generators import (
    DRAWS_PER_TASK,
    Question,
    TaskFamily,
    TaskSpec,
    generate,
    is_held_out,
    rng_of,
)

HELD_OUT_SEEDS = 2**30
"""Seeds below are for training."""
MAX_TURNS = 8
MAX_TOKENS = 64
"""Default maximum tokens of an action."""
TOOL_CALL_TOKENS = 32
"""Extra tokens of a call in a model's own tool format, compared with plain text."""


def questions(spec: TaskSpec) -> Iterator[Question]:
    """Yield the episodes of a listed environment, for ever. Raises SettingsError for bad options."""
    settings = json.dumps(dict(spec.options), sort_keys=True)
    try:
        game = open_listed(spec.family, settings)
    except EpisodeError as exc:
        raise SettingsError(f"generator {spec.family}: {exc}") from exc
    max_tokens = game.max_tokens if not game.options.tools else game.max_tokens + TOOL_CALL_TOKENS
    for index in itertools.count():
        rng = rng_of(spec, index)
        for _ in range(DRAWS_PER_TASK):
            seed = rng.randrange(2**31)
            observation = game.reset(seed)
            text = observation.messages[-1].content
            if is_held_out(text if game.question_is_whole else f"{spec.family} {seed}") == spec.held_out:
                break
        else:
            raise EventError(f"generator {spec.family}: {DRAWS_PER_TASK} episodes, and none on the right side")
        yield Question(
            text=text,
            verifier={},
            train_source=RewardSource(name="environment"),
            eval_source=RewardSource(name="verified"),
            max_tokens=max_tokens,
            train_temperature=game.train_temperature,
            eval_temperature=float(game.is_held_out_sampled),
            fields={
                "agent": ENVIRONMENT_AGENT,
                "environment": EpisodeStart(name=spec.family, settings=settings, seed=seed),
                "max_turns": game.max_turns,
                "tools": observation.tools,
                "messages": observation.messages,
            },
        )


GENERATORS = {name: TaskFamily(game.options_type, questions) for name, game in LISTED.items()}


def episodes(spec: EpisodeSpec, opens: Callable[[EpisodeStart], Environment]) -> Episodes:
    """Return the tasks of `spec`. `opens` opens an environment by reference.

    Raises EpisodeError if it cannot be opened, or two episodes of a seed differ.
    """
    settings = settings_of(spec.name, spec.settings)
    if spec.name in LISTED:
        open_listed(spec.name, spec.settings)
        train, held_out = tuple(_listed_tasks(spec, settings, "train")), tuple(_listed_tasks(spec, settings, "eval"))
        return Episodes(train, held_out, train[0].messages, train[0].tools)
    start = EpisodeStart(name=spec.name, settings=spec.settings, seed=0)
    shown = try_twice(opens, start, spec.max_turns or MAX_TURNS, None)
    spec = replace(spec, max_turns=spec.max_turns or shown.own_max_turns or MAX_TURNS)
    first = shown.observation
    train = tuple(_task(spec, first, seed, "train") for seed in range(spec.count))
    held_out = tuple(_task(spec, first, HELD_OUT_SEEDS + number, "eval") for number in range(spec.held_out))
    return Episodes(train, held_out, first.messages, first.tools)


def _listed_tasks(spec: EpisodeSpec, settings: dict[str, object], purpose: Purpose) -> list[Task]:
    """Return the episodes to train on, or held-out ones of different questions: fewer if there are not as many."""
    tasks = TaskSpec(
        family=spec.name,
        count=spec.held_out * DRAWS_PER_TASK if purpose == "eval" else spec.count,
        purpose=purpose,
        policy=spec.policy,
        group_size=spec.group_size,
        options=settings,
        max_tokens=spec.max_tokens,
    )
    said: dict[str, Any] = {} if spec.max_turns is None else {"max_turns": spec.max_turns}
    if spec.reward_sources and purpose == "train":
        said["reward_sources"] = tuple(spec.reward_sources)
    made = (replace(task, **said) for task in generate(tasks, now_ms=times.now_ms()))
    if purpose == "train":
        return list(made)
    is_whole = open_listed(spec.name, spec.settings).question_is_whole
    first: dict[object, Task] = {}
    while len(first) < spec.held_out and (task := next(made, None)) is not None:
        first.setdefault(task.messages if is_whole else task.environment, task)
    return list(first.values())


def _task(spec: EpisodeSpec, observation: Observation, seed: int, purpose: Purpose) -> Task:
    """Return one episode."""
    held_out = purpose == "eval"
    rewarded = tuple(spec.reward_sources) or (RewardSource(name="environment"),)
    return Task(
        task_id=derive_id("episode", spec.name, spec.settings, seed, spec.policy, purpose),
        created_at=times.now_ms(),
        policy=spec.policy,
        purpose=purpose,
        scenario=spec.name,
        group_size=1 if held_out else spec.group_size,
        sampling=Sampling(temperature=0.0 if held_out else 1.0, max_tokens=spec.max_tokens or MAX_TOKENS),
        reward_sources=(RewardSource(name="verified"),) if held_out else rewarded,
        messages=(name_of_episode(spec.name, seed),),
        tools=observation.tools,
        agent=ENVIRONMENT_AGENT,
        environment=EpisodeStart(name=spec.name, settings=spec.settings, seed=seed),
        max_turns=spec.max_turns,
    )
