"""The built-in agent: plays an episode between the policy and an environment, turn by turn.

    task ──► environment, seed ──► what it shows ──► POST …/v1/chat/completions ──► Action ──► what it shows next ──► …
                                        └── digest, tool, ok, reward ──► X-Streamward-Observed, …/end

Messages only grow by answers and observations, so each call continues the turn before it, token by token. An
environment that raises, hangs or is missing ends its own run, with the reason, and no other.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import SecretStr

from plugins.agents.runs.agent_process import ProgramRun
from plugins.agents.runs.agent_runner import AgentWork
from plugins.agents.runs.connection_pool import KeptAlive
from plugins.environments.dying_environment import DyingEnvironment
from plugins.environments.episode_calls import CallFailed, ModelCalls, action_of
from plugins.environments.episodes.environment import Environment, EpisodeError, Observation, StepResult
from plugins.environments.episodes.running_episode import LiveEpisode, begin_task
from schemas.events import EpisodeStart, Task
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.trajectories.chat_format import message_of, tool_of


class EpisodeAgent:
    """Runs episodes: `work` is that of an AgentPlan. Any number of threads may use it."""

    def __init__(
        self,
        server: str,
        opens: Callable[[EpisodeStart], Environment],
        *,
        time_limit_s: float,
        key: SecretStr | None = None,
        dead_share: float = 0.0,
    ) -> None:
        """`opens` returns an environment of one episode, or raises EpisodeError. Raises SettingsError for `server`."""
        self._http, self._opens, self._time_limit_s = KeptAlive(server, key), opens, time_limit_s
        self._dead_share = dead_share

    def close(self) -> None:
        """Close its connections; no run is in progress any more."""
        self._http.close()

    def work(self, task: Task) -> AgentWork:
        """Begin an episode: its environment's first observation is part of the run's start."""
        start = task.environment
        if start is None:
            return _fails("no_environment: its task names none; `streamward tasks generate` writes tasks that do")
        episode = None
        try:
            environment = self._opens(start)
            if task.purpose == "train" and random.random() < self._dead_share:  # noqa: S311 - a trial
                environment = DyingEnvironment(environment)
            episode = LiveEpisode(environment, start.name, start.seed, task.max_turns or 1)
            first = begin_task(episode, task)
        except EpisodeError as exc:
            if episode is not None:
                episode.close()
            return _fails(f"{exc.reason}: {exc}")
        return AgentWork(partial(self._run, episode, first), episode.observed)

    def _run(self, episode: LiveEpisode, first: Observation, run: ProgramRun, stop: threading.Event) -> TrajectoryEnd:
        """Play the episode to its end."""
        calls = ModelCalls(self._http, run, self._time_limit_s, stop)
        messages: list[dict[str, Any]] = [message_of(message) for message in first.messages]
        tools = [tool_of(tool) for tool in first.tools]
        try:
            while True:
                answer = calls.answer(messages, tools, episode.observed)
                result = episode.act(action_of(answer))
                if result.is_over:
                    return TrajectoryEnd("completed", _reason(episode, result), None, episode.observed, episode.success)
                messages += [answer, *(message_of(message) for message in result.observation.messages)]
        except EpisodeError as exc:
            return TrajectoryEnd("failed", f"{exc.reason}: {exc}", None, episode.observed)
        except CallFailed as exc:
            return TrajectoryEnd(exc.ending, str(exc), None, episode.observed)
        finally:
            episode.close()


def _fails(reason: str) -> AgentWork:
    return AgentWork(lambda *_: TrajectoryEnd("failed", reason))


def _reason(episode: LiveEpisode, result: StepResult) -> str:
    """Return why the episode ended; the cap is a reason, since a run that was cut off did not give up."""
    if result.terminated:
        return f"its environment ended it after {episode.turns} turns"
    return f"truncated: it was cut off after {episode.turns} turns"
