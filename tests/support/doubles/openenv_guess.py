"""A server of OpenEnv at the port that is its argument: guess the number that the seed has drawn."""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """A number."""

    number: int


class Hint(Observation):
    """What is said about it."""

    text: str


class GuessServer(Environment[Guess, Hint, State]):
    """One number from 1 to 8."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Hint:
        """Draw it."""
        self._number = random.Random(seed).randint(1, more.get("highest", 8))
        self._state = State(step_count=0)
        return Hint(text="a number from 1 to 8" if "highest" not in more else "a number")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        """Compare."""
        if action.number == 99:
            raise RuntimeError("no such number")
        if action.number == 98:
            return Hint(text="x" * 2_000_000)
        self._state.step_count += 1
        if action.number == self._number:
            return Hint(text="right", reward=1.0, done=True)
        return Hint(text="higher" if action.number < self._number else "lower", reward=0.0)

    @property
    def state(self) -> State:
        """How many guesses there were."""
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(GuessServer, Guess, Hint, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
