"""Replay the episodes in the log: the same seed and replies must give the same results.

    tasks, trajectories, turns ──► an environment of the task's seed ◄── each recorded reply
                                              └── what it shows, its reward ──► equal to the log? ──► ReplayedRun

If an environment gives different results for the same seed and actions, it has changed, or draws from elsewhere than
its seed: then its rewards cannot be explained.

Not covered: new answers of a policy. Nothing is sampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from plugins.environments.episodes.environment import Action, Environment, EpisodeError
from plugins.environments.episodes.running_episode import LiveEpisode, begin_task
from schemas.events import EpisodeStart, Observed, Task, TrajectoryEvent, Turn
from schemas.serde import Poison
from streams.kafka.admin import read_topic
from streams.settings.model import Settings
from streams.stages.agents.trajectories.fold import fold

T = TypeVar("T", Task, TrajectoryEvent, Turn)
Opens = Callable[[EpisodeStart], Environment]


class ReplayedRun(NamedTuple):
    """What became of one run."""

    trajectory_id: str
    task_id: str
    environment: str
    turns: int
    """How many of its actions were carried out again."""
    differs: str | None
    """What is not as recorded, and where; None: all is equal."""
    skipped: str | None = None
    """Why it cannot be replayed here."""


@dataclass(slots=True)
class RecordedEpisode:
    """What the log has of a run in an environment."""

    task: Task
    started: TrajectoryEvent
    ended: TrajectoryEvent | None = None
    turns: list[Turn] = field(default_factory=list)

    def actions(self) -> Iterator[tuple[Turn, Action]]:
        """Yield the calls with answers that were executed, in order."""
        for step in fold(self.turns, self.ended).steps:
            turn = step.turn
            if step.chain is not None and turn.observed is not None:
                yield turn, Action(turn.reply.content, turn.reply.tool_calls)


def read_episodes(settings: Settings, wanted: str | None) -> list[RecordedEpisode]:
    """Return the episodes of a task or a trajectory, by the beginning of its id; None: all. Raises as `read_topic`."""
    tasks, found, turns = dict[str, Task](), dict[str, RecordedEpisode](), defaultdict[str, list[Turn]](list)
    for task in _events(settings, "tasks", Task):
        if task.environment is not None:
            tasks.setdefault(task.task_id, task)
    for event in _events(settings, "trajectories", TrajectoryEvent):
        if wanted is not None and not (event.trajectory_id.startswith(wanted) or event.task_id.startswith(wanted)):
            continue
        task_of, known = tasks.get(event.task_id), found.get(event.trajectory_id)
        if known is not None and event.kind == "ended":
            known.ended = known.ended or event
        elif known is None and task_of is not None and event.observed is not None and event.kind == "started":
            found[event.trajectory_id] = RecordedEpisode(task_of, event)
    for turn in _events(settings, "turns", Turn):
        if turn.trajectory_id in found:
            turns[turn.trajectory_id].append(turn)
    for name, episode in found.items():
        episode.turns = turns[name]
    return list(found.values())


def replay_episodes(episodes: Iterable[RecordedEpisode], opens: Opens) -> Iterator[ReplayedRun]:
    """Yield the result of replaying each. `opens` returns an environment, or raises EpisodeError."""
    for recorded_one in episodes:
        start, began = recorded_one.task.environment, recorded_one.started
        if start is None:
            continue
        name = began.trajectory_id, began.task_id, start.name
        try:
            environment = opens(start)
        except EpisodeError as exc:
            yield ReplayedRun(*name, 0, None, f"{exc.reason}: {exc}")
            continue
        yield ReplayedRun(*name, *_play_again(recorded_one, environment, start))


def _play_again(of_log: RecordedEpisode, environment: Environment, start: EpisodeStart) -> tuple[int, str | None]:
    """Return how many actions were carried out again, and the first thing that is not as recorded."""
    episode = LiveEpisode(environment, start.name, start.seed, of_log.task.max_turns or 1)
    ended = of_log.ended
    try:
        begin_task(episode, of_log.task)
        if (differs := difference("at first", episode.observed, of_log.started.observed)) is not None:
            return 0, differs
        for number, (turn, action) in enumerate(of_log.actions()):
            if number and (differs := difference(f"before turn {turn.number}", episode.observed, turn.observed)):
                return number, differs
            episode.act(action)
    except EpisodeError as exc:
        failed_then = ended is not None and ended.ending == "failed"
        return episode.turns, None if failed_then else f"after {episode.turns} turns: {exc}"
    if ended is None or ended.ending != "completed":
        return episode.turns, None  # what it showed last is not in the log
    if (differs := difference("at last", episode.observed, ended.observed)) is not None:
        return episode.turns, differs
    if episode.success != ended.success:
        return episode.turns, f"at last: success is {episode.success}, and was {ended.success}"
    return episode.turns, None


def difference(where: str, now: Observed, then: Observed | None) -> str | None:
    """Return which of their parts differ, e.g. `before turn 2: reward is 0.0, and was 0.5`."""
    if now == then:
        return None
    if then is None:
        return f"{where}: the log does not say what was shown"
    parts = ((name, getattr(now, name), getattr(then, name)) for name in Observed.__slots__)
    differ = [f"{name} is {new}, and was {old}" for name, new, old in parts if new != old]
    return f"{where}: {'; '.join(differ)}"


def _events(settings: Settings, label: str, kind: type[T]) -> Iterator[T]:
    for record in read_topic(settings, label):
        event = record.decode(kind)
        if not isinstance(event, Poison):
            yield event
