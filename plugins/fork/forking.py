"""Fork moments of the log: make their tasks, check that they can begin there, and send them.

MomentKey, ForkOrder ──► Task ──► its environment replayed to that turn: equal? ──► held out? ──► tasks
                                          └── refused, with the moment and the reason
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.episode_replay import difference
from plugins.environments.episodes.environment import EpisodeError
from plugins.environments.episodes.running_episode import LiveEpisode, begin_task
from plugins.environments.settings import Environments
from schemas.events import Task
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.history import LogHistory
from streams.rows.row_texts import row_of_task
from streams.rows.training_gate import AllHeldOut, ReasonFinder
from streams.settings.model import Settings
from streams.stages.tasks.submit import Submitted, submit
from streams.stages.tasks.task_problems import task_problems
from streams.tools.forks.forked_task import ForkOrder, ModelTokens, fork
from streams.tools.forks.moments import Moment, MomentKey, read_moments


class Forks(NamedTuple):
    """The tasks that moments were forked into."""

    tasks: tuple[Task, ...]
    refused: tuple[str, ...]
    """Why other moments were not."""
    held_out: int
    """How many tasks became `eval` since a gate holds out what they ask."""


def make_forks(settings: Settings, keys: Sequence[MomentKey], order: ForkOrder) -> Forks:
    """Return the tasks of moments; nothing is sent. Raises LogError."""
    tasks, refused, now_ms, held_out = list[Task](), list[str](), times.now_ms(), 0
    finders: dict[str, ReasonFinder | None] = {}
    with closing(EnvironmentPool(settings.of_plugin(Environments), settings)) as pool:
        for moment in read_moments(settings, keys):
            try:
                task = fork(moment, order, now_ms=now_ms)
                _check_environment(pool, moment, task)
            except EventError as exc:
                refused.append(str(exc))
                continue
            if task.purpose == "train" and _is_held_out(settings, finders, task):
                task, held_out = fork(moment, order, now_ms=now_ms, purpose="eval"), held_out + 1
            problem = next(task_problems(task, settings.topics, settings.advantages.min_group), None)
            if problem is None:
                tasks.append(task)
            else:
                refused.append(f"{moment.name}: {problem}")
    return Forks(tuple({task.task_id: task for task in tasks}.values()), tuple(refused), held_out)


def send(settings: Settings, forks: Forks) -> Submitted:
    """Send the tasks that are not in the log yet. Raises as `submit`."""
    return submit(settings, forks.tasks)


def _check_environment(pool: EnvironmentPool, moment: Moment, task: Task) -> None:
    """Raise EpisodeError unless the recorded actions lead an environment to the moment again."""
    start, turn = task.environment, moment.turn
    if start is None:
        return
    if turn is None or turn.observed is None:
        raise EpisodeError(f"{moment.name}: the log does not say what {start.name} showed before it; fork another")
    episode = LiveEpisode(pool.open(start), start.name, start.seed, task.max_turns or 1)
    begin_task(episode, task)
    if (problem := difference(f"before turn {turn.number}", episode.observed, turn.observed)) is not None:
        raise EpisodeError(
            f"{start.name} is not deterministic, or has changed: {moment.name}: {problem}", reason="not_repeatable"
        )


def _is_held_out(settings: Settings, finders: dict[str, ReasonFinder | None], task: Task) -> bool:
    if task.policy not in finders:
        finders[task.policy] = AllHeldOut.of_log(settings, LogHistory(settings)).finder(task.policy)
    finder = finders[task.policy]
    return finder is not None and finder(row_of_task(task, task.task_id)) is not None


def model_tokens(settings: Settings) -> ModelTokens:
    """Return how the model of the settings writes messages, without its weights. Raises SettingsError."""
    if settings.policy.engine == "scripted":
        from streams.engines.scripted.scripted_engine import END_OF_TURN
        from streams.engines.scripted.scripted_tokens import ScriptedRendering

        return ModelTokens(ScriptedRendering(), frozenset({END_OF_TURN}))
    from streams.engines.base_model import load_token_table
    from streams.engines.rendering.template_rendering import ChatRendering

    tokenizer, table = load_token_table(settings.model.base)
    return ModelTokens(ChatRendering(tokenizer, table, ""), frozenset(table.ends))
