"""Tic-tac-toe against a deterministic opponent.

    1 2 3 / 4 5 6 / 7 8 9 ──► 5 ──► O 2 3 / 4 X 6 / 7 8 9 ──► …          win 1, draw 0.5, loss 0

The policy is X and begins. The opponent takes a win, else blocks one, else takes the square that the seed prefers, so
search finds the best result from any board. Choosing a taken square only costs the turn; after three such choices the
game is lost.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

MOST_ERRORS = 3
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToeOptions(GameOptions):
    """Settings of `tictactoe`."""

    blocks: bool = Field(True, description="the opponent takes and blocks lines; without: only what the seed prefers")


class TicTacToe(TextGame[TicTacToeOptions]):
    """The environment."""

    name = "tictactoe"
    version = "1"
    options_type: ClassVar[type[GameOptions]] = TicTacToeOptions
    command = Command("mark", "square", "Puts an X on a free square, 1 to 9.", bare=True)

    question_is_whole = False
    max_tokens = 6

    @property
    def max_turns(self) -> int:
        """The squares of X, and what may be written in error."""
        return 5 + MOST_ERRORS

    def _begin(self, rng: random.Random) -> str:
        self._board = [" "] * 9
        self._preferred = rng.sample(range(9), 9)
        self._errors = 0
        if rng.random() < 0.5:  # so that first moves differ
            self._board[self._preferred[0]] = "O"
        return self._picture()

    def _about(self) -> str:
        return "You are X. Get three in a row. Answer with only the number of a free square."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        return "X X 3\nO O 6\n7 8 9", (Example("3", "you win", command=True),)

    def _move(self, argument: str) -> MoveOutcome:
        square = int(argument) - 1 if argument.isascii() and argument.isdecimal() and len(argument) == 1 else -1
        if square < 0 or self._board[square] != " ":
            self._errors += 1
            free = " ".join(str(place + 1) for place in self._free())
            outcome = unusable(f"free are {free}")
            return outcome if self._errors < MOST_ERRORS else outcome._replace(ended=True, success=False)
        self._board[square] = "X"
        if has_won(self._board, "X"):
            return MoveOutcome("you win", 1.0, ended=True, success=True)
        if self._free():
            self._board[self._reply()] = "O"
        if has_won(self._board, "O"):
            return MoveOutcome("you lose", ended=True, success=False)
        if not self._free():
            return MoveOutcome("draw", 0.5, ended=True, success=False)
        return MoveOutcome(self._picture())

    def _reply(self) -> int:
        for mark in ("O", "X") if self.options.blocks else ():
            for place in self._free():
                if has_won([*self._board[:place], mark, *self._board[place + 1 :]], mark):
                    return place
        return next(place for place in self._preferred if self._board[place] == " ")

    def _free(self) -> list[int]:
        return [place for place, square in enumerate(self._board) if square == " "]

    def _picture(self) -> str:
        squares = [str(place + 1) if mark == " " else mark for place, mark in enumerate(self._board)]
        return "\n".join(" ".join(squares[row : row + 3]) for row in (0, 3, 6))


def has_won(board: list[str], mark: str) -> bool:
    """Return whether `mark` has three in a row."""
    return any(all(board[place] == mark for place in line) for line in _LINES)
