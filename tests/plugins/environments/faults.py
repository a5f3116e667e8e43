"""Fault 17, for episodes: the built-in agent and the server that it calls are killed, and all is played again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from schemas.events import EpisodeStart, RewardSource
from streams.settings.load import to_env
from streams.stages.tasks.episodes import ENVIRONMENT_AGENT
from tests.chaos.agent_recount import log_of, recount
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import World, plain_environment
from tests.plugins.agents.faults import AGENTS, PARALLEL, SLOTS, WITHIN_S, AgentWorld

GUESSES = {"replies": [{"when": when, "reply": n} for when, n in {"1 to 8": "4", "higher": "6", "lower": "2"}.items()]}
"""How episodes of `guess` are played: some end with the second guess, some never hit."""


class EpisodeWorld(AgentWorld):
    """An AgentWorld whose tasks are episodes, played by the built-in agent; no client has calls of its own."""

    agent = ENVIRONMENT_AGENT
    script = GUESSES

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the built-in agent at work while the block runs."""
        self.start("serve")
        self.start("agents", "run", "--environments", "--parallel", str(PARALLEL))
        self.wait_for("turns", PARALLEL)
        yield
        self.wait_for("turns", PARALLEL)

    def findings(self) -> list[str]:
        """Return what a count of the log finds wrong, and what the episodes do when they are played again."""
        command = [sys.executable, "-m", "streams.cli", "agents", "environments", "replay", "--all"]
        env = {**plain_environment(self.repo), **to_env(self.direct)}
        again = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=WITHIN_S)
        self.notes.append(" ".join(again.stdout.split()))
        return [*recount(log_of(self.direct), []), *([again.stderr] if again.returncode else [])]


def an_episode(number: int) -> Mapping[str, Any]:
    """Return what is special about a task that is an episode."""
    start = EpisodeStart(name="guess", seed=number)
    return {
        "agent": ENVIRONMENT_AGENT,
        "group_size": SLOTS,
        "environment": start,
        "max_turns": 4,
        "reward_sources": (RewardSource(name="environment"),),
    }


@fault(
    17,
    "who plays episodes is killed",
    "SIGKILL to `streamward agents run --environments` and to the server, three times each, amid episodes",
    **{**AGENTS, "place": EpisodeWorld, "tasks": an_episode},
)
def kill_episodes(world: World, load: Load, draw: random.Random) -> None:
    victims = ["agents", "serve"] * 3
    draw.shuffle(victims)
    assert isinstance(world, EpisodeWorld)
    with world.at_work():
        for name in victims:
            world.wait_for("turns", draw.randint(2, 6))
            world.kill(name)
