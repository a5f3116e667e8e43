"""Find the way along a corridor: fetch the key, then go to the door.

    room 3, no key ──► left ──► room 2, no key ──► …          0.2 for the key, 0.8 for the door, less 0.05 a detour

A room has the same observation, byte for byte, whatever path led to it: runs of a group share states, which GiGPO
(arXiv:2505.10978) compares.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

KEY_REWARD = 0.2
DETOUR_COST = 0.05
"""For each step beyond the shortest way; the door is worth at least half of what it could be."""


class CorridorOptions(GameOptions):
    """Settings of `corridor`."""

    rooms: int = Field(6, ge=3, le=20)
    moves: int = Field(12, ge=4, le=100, description="most moves, errors among them")


class Corridor(TextGame[CorridorOptions]):
    """The environment."""

    name = "corridor"
    version = "1"
    options_type: ClassVar[type[GameOptions]] = CorridorOptions
    command = Command("go", "direction", "Goes one room to the left or to the right.", bare=True)

    question_is_whole = True
    max_tokens = 6

    @property
    def max_turns(self) -> int:
        """Each move."""
        return self.options.moves

    def _begin(self, rng: random.Random) -> str:
        self._room, self._key, self._door = rng.sample(range(1, self.options.rooms + 1), 3)
        self._has_key, self._moves = False, 0
        self._shortest = abs(self._room - self._key) + abs(self._key - self._door)
        return f"key in room {self._key}, door in room {self._door}\n{self._state()}"

    def _about(self) -> str:
        return "Go to the key, then to the door. Answer with only left or right."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        return "key in room 1, door in room 3\nroom 2, no key", (
            Example("left", "room 1, key", command=True),
            Example("right", "room 2, key", command=True),
            Example("right", "door", command=True),
        )

    def _move(self, argument: str) -> MoveOutcome:
        self._moves += 1
        step = {"left": -1, "right": 1}.get(argument.lower())
        if step is None:
            return self._unless_over(unusable("write left or right"))
        self._room = min(max(self._room + step, 1), self.options.rooms)
        if self._has_key and self._room == self._door:
            detour = DETOUR_COST * (self._moves - self._shortest)
            return MoveOutcome("door", (1 - KEY_REWARD) * max(0.5, 1 - detour), ended=True, success=True)
        finds = not self._has_key and self._room == self._key
        self._has_key = self._has_key or finds
        return self._unless_over(MoveOutcome(self._state(), KEY_REWARD * finds))

    def _unless_over(self, outcome: MoveOutcome) -> MoveOutcome:
        return outcome if self._moves < self.options.moves else outcome._replace(ended=True, success=False)

    def _state(self) -> str:
        return f"room {self._room}, {'key' if self._has_key else 'no key'}"
