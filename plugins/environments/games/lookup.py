"""Follow a chain of keys: look up word after word until a number comes, and answer with it.

    word: fox ──► get(fox) ──► word: owl ──► get(owl) ──► 417 ──► 417

0.1 is paid for each key of the chain, and the rest for the answer. Every step copies the last result, which a small
model can do.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

STEP_REWARD = 0.1
"""For each key of the chain, the first time that it is looked up in its turn."""
WORDS = tuple(
    word
    for line in (
        "ant bear bee bird boat book box cake car cat chair clock cloud cow crab cup desk dog door drum duck fish flag",
        "fox frog goat hat hen horse key king lamp leaf lion moon mouse owl pen pig ring rose seal ship shoe snow star",
    )
    for word in line.split()
)


class LookupOptions(GameOptions):
    """Settings of `lookup`."""

    keys: int = Field(2, ge=1, le=8, description="in the chain, before the number")
    others: int = Field(4, ge=0, le=16, description="keys that are not in the chain")


class Lookup(TextGame[LookupOptions]):
    """The environment."""

    name = "lookup"
    version = "1"
    options_type: ClassVar[type[GameOptions]] = LookupOptions
    command = Command("get", "key", "Returns what is stored under a key.")

    question_is_whole = False
    max_tokens = 12

    @property
    def max_turns(self) -> int:
        """The chain, the answer, and one more."""
        return self.options.keys + 2

    def _begin(self, rng: random.Random) -> str:
        words = rng.sample(WORDS, self.options.keys + self.options.others)
        self._chain = words[: self.options.keys]
        self._right = str(rng.randrange(100, 1000))
        self._table = dict(zip(self._chain, [*self._chain[1:], self._right], strict=True))
        self._table |= {word: str(rng.randrange(100, 1000)) for word in words[self.options.keys :]}
        self._reached = 0
        return _line(self._chain[0])

    def _about(self) -> str:
        return "Get the word. Get each word that comes back. Answer with only the number."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        words = ["sheep", "wolf", "rabbit", "tiger", "camel", "zebra", "panda", "whale"][: self.options.keys]
        gets = zip(words, [*words[1:], "305"], strict=True)
        turns = [Example(word, _line(value), command=True) for word, value in gets]
        return _line(words[0]), (*turns, Example("305", None, command=False))

    def _move(self, argument: str) -> MoveOutcome:
        if argument not in self._table:
            return unusable(f"there is no key {argument[:40]}")
        is_next = self._reached < len(self._chain) and argument == self._chain[self._reached]
        self._reached += is_next
        return MoveOutcome(_line(self._table[argument]), STEP_REWARD * is_next)

    def _answer(self, text: str) -> MoveOutcome:
        if not text.isdecimal():
            return unusable("write get(...), or a number alone")
        is_right = text == self._right
        rest = 1 - STEP_REWARD * len(self._chain)
        return MoveOutcome("right" if is_right else "wrong", rest * is_right, ended=True, success=is_right)


def _line(value: str) -> str:
    """Return the answer with a value. The policy has to learn that a bare number is said, and not looked up."""
    return value if value.isdecimal() else f"word: {value}"
