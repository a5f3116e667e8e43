"""Work out a product with a calculator: call it, then repeat its result.

    47 * 83  ──► calc(47 * 83) ──► result: 3901 ──► 3901     0.2 for the first call that works, 0.8 for being right

No small model can do it without the tool, so it has to learn the call, and nothing else: the answer is a copy.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

CALL_REWARD = 0.2
"""For the first call that is worked out: once, so that more calls pay nothing."""
MOST_DIGITS = 40
"""Of any number on the way to a result."""
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class CalculatorOptions(GameOptions):
    """Settings of `calculator`."""

    digits: int = Field(2, ge=1, le=6, description="of each factor")


class Calculator(TextGame[CalculatorOptions]):
    """The environment."""

    name = "calculator"
    version = "1"
    options_type: ClassVar[type[GameOptions]] = CalculatorOptions
    command = Command("calc", "expression", "Works out whole numbers with + - * // % and brackets.")

    question_is_whole = True
    max_tokens = 16

    @property
    def max_turns(self) -> int:
        """A call, the answer, and one more."""
        return 3

    def _begin(self, rng: random.Random) -> str:
        low, high = 10 ** (self.options.digits - 1) + 1, 10**self.options.digits
        left, right = rng.randrange(low, high), rng.randrange(low, high)
        self._right, self._called_once = left * right, False
        return f"{left} * {right}"

    def _about(self) -> str:
        return "Use the calculator, then answer with only the number."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        return "12 * 34", (Example("12 * 34", "result: 408", command=True), Example("408", None, command=False))

    def _move(self, argument: str) -> MoveOutcome:
        try:
            result = work_out(argument)
        except ValueError as exc:
            return unusable(str(exc))
        reward, self._called_once = (0.0 if self._called_once else CALL_REWARD), True
        return MoveOutcome(f"result: {result}", reward)

    def _answer(self, text: str) -> MoveOutcome:
        if not text.removeprefix("-").isdecimal():
            return unusable("write calc(...), or a number alone")
        is_right = text == str(self._right)
        return MoveOutcome("right" if is_right else "wrong", (1 - CALL_REWARD) * is_right, ended=True, success=is_right)


def work_out(expression: str) -> int:
    """Return the value of an expression over whole numbers. Raises ValueError, in a few words, for any other.

    >>> work_out("47 * (80 + 3)")
    3901
    >>> work_out("9 ** 9")
    Traceback (most recent call last):
    ValueError: expected whole numbers with + - * // % and brackets
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError as exc:
        raise ValueError("division by zero") from exc
    except (SyntaxError, RecursionError, MemoryError) as exc:
        raise ValueError("expected whole numbers with + - * // % and brackets") from exc


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError("expected whole numbers with + - * // % and brackets")
    if abs(value) >= 10**MOST_DIGITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return value
