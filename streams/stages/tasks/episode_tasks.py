"""Tasks that are episodes in one environment, listed or by reference: one for each seed.

    name, settings ──► played twice from seed 0 ──► train tasks, seeds 0, 1, … ; held-out ones from HELD_OUT_SEEDS

Tasks of a listed environment come from streams/stages/tasks/generators.py, which splits its questions. The question of
an environment by reference is known only when it is played, so its seeds are split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from schemas.events import EpisodeStart, Message, Purpose, RewardSource, Sampling, Task, derive_id
from streams.environments.episodes.environment import Environment, EpisodeError, Observation
from streams.environments.episodes.trial_episode import try_twice
from streams.environments.listed import LISTED, open_listed, settings_of
from streams.errors import SettingsError
from streams.kafka import times
from streams.stages.tasks.generators import ENVIRONMENT_AGENT, TaskSpec, generate
from streams.stages.tasks.task_problems import group_problem

HELD_OUT_TASKS = 35
HELD_OUT_SEEDS = 2**30
"""Seeds below are for training."""
MAX_TURNS = 8
MAX_TOKENS = 64
"""Default maximum tokens of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episodes to make: the environment, its settings as JSON, how many to train on, and how they are played."""

    name: str
    settings: str
    count: int
    policy: str
    group_size: int
    max_turns: int | None = None
    max_tokens: int | None = None
    reward_sources: Sequence[RewardSource] = ()
    """Reward sources; empty: the environment's rewards."""
    held_out: int = HELD_OUT_TASKS
    """Number of held-out episodes for each version."""


class Episodes(NamedTuple):
    """Tasks to train on, held-out tasks for each version, and the start of the first episode."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    shown: Observation


def train_and_held_out(
    spec: EpisodeSpec, opens: Callable[[EpisodeStart], Environment]
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Return the tasks of `spec` to train on, and the held-out ones. `opens` opens an environment by reference, which
    is played twice from its first seed. Raises SettingsError if it cannot be opened or the two episodes differ.
    """
    if problem := group_problem(spec.group_size):
        raise SettingsError(f"--environment {spec.name}: {problem}")
    try:
        train, held_out, _ = episodes(spec, opens)
    except EpisodeError as exc:
        raise SettingsError(
            f"--environment {spec.name}: {exc}; try it with `streamward agents environments try`"
        ) from exc
    return train, held_out


def episodes(spec: EpisodeSpec, opens: Callable[[EpisodeStart], Environment]) -> Episodes:
    """Return the tasks of `spec`. Raises EpisodeError if it cannot be opened, or two episodes of a seed differ."""
    settings = settings_of(spec.name, spec.settings)
    if spec.name in LISTED:
        open_listed(spec.name, spec.settings)
        train, held_out = tuple(_listed(spec, settings, "train")), tuple(_listed(spec, settings, "eval"))
        return Episodes(train, held_out, Observation(train[0].messages, train[0].tools))
    start = EpisodeStart(name=spec.name, settings=spec.settings, seed=0)
    shown = try_twice(opens, start, spec.max_turns or MAX_TURNS, None).observation
    train = tuple(_task(spec, shown, seed, "train") for seed in range(spec.count))
    held_out = tuple(_task(spec, shown, HELD_OUT_SEEDS + number, "eval") for number in range(spec.held_out))
    return Episodes(train, held_out, shown)


def _listed(spec: EpisodeSpec, settings: dict[str, object], purpose: Purpose) -> list[Task]:
    tasks = TaskSpec(
        family=spec.name,
        count=spec.held_out if purpose == "eval" else spec.count,
        purpose=purpose,
        policy=spec.policy,
        group_size=spec.group_size,
        options=settings,
        max_tokens=spec.max_tokens,
    )
    said: dict[str, Any] = {} if spec.max_turns is None else {"max_turns": spec.max_turns}
    if spec.reward_sources and purpose == "train":
        said["reward_sources"] = tuple(spec.reward_sources)
    return [replace(task, **said) for task in generate(tasks, now_ms=times.now_ms())]


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
        max_turns=spec.max_turns or MAX_TURNS,
    )


def name_of_episode(name: str, seed: int) -> Message:
    """Return the message of a task for which the environment shows the rest."""
    return Message(role="user", content=f"{name}, seed {seed}")
