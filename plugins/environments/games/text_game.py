"""The base of the built-in environments: how actions are written, and how they are answered.

    Action ──► moves ──► the environment's own rules ──► MoveOutcome ──► StepResult

An action is plain text, `calc(47 * 83)` or a bare answer; or, with the setting `tools`, a call in the model's own tool
format. Several calls in one action run in order, each with its own answer. No action raises: an unusable one gets an
answer that begins with `error:`.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from plugins.environments.episodes.environment import MOST_CALLS, Action, Observation, StepResult
from schemas import json_text
from schemas.events import Message, Tool, ToolCall

LONGEST = 200
"""Most characters of a move."""
_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.ASCII)


class GameOptions(BaseModel):
    """Settings of every built-in environment: strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tools: bool = Field(False, description="actions are calls in the model's own tool format, instead of plain text")


O = TypeVar("O", bound=GameOptions)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Command:
    """The move of a game: `name(parameter)`, or, if `bare`, the argument alone."""

    name: str
    parameter: str
    description: str
    bare: bool = False

    @property
    def tool(self) -> Tool:
        """The same as chat templates expect it."""
        schema = {
            "type": "object",
            "properties": {self.parameter: {"type": "string"}},
            "required": [self.parameter],
        }
        return Tool(name=self.name, description=self.description, parameters=json.dumps(schema))


class MoveOutcome(NamedTuple):
    """The outcome of one move."""

    text: str
    reward: float = 0.0
    ended: bool = False
    ok: bool = True
    success: bool | None = None


class Example(NamedTuple):
    """One turn of the worked example: the policy's text, and the answer."""

    text: str
    answer: str | None
    """None: no answer. As plain text the last answer is left out: templates want users to take turns."""
    command: bool
    """Whether it is the argument of the command, or a bare answer."""


class TextGame(ABC, Generic[O]):
    """An environment of one command."""

    name: ClassVar[str]
    version: str
    options_type: ClassVar[type[GameOptions]]
    command: ClassVar[Command]
    question_is_whole: ClassVar[bool]
    """Whether equal questions are equal episodes; otherwise the seed hides something."""
    max_tokens: ClassVar[int]
    """Of the longest sensible action as plain text."""
    is_held_out_sampled: ClassVar[bool] = False
    """Whether held-out episodes are played at temperature 1 instead of 0."""
    train_temperature: ClassVar[float] = 1.0
    """Of generated tasks to train on; tasks to serve have 1."""

    def __init__(self, options: O) -> None:
        self.options = options

    def reset(self, seed: int) -> Observation:
        """Begin the episode of `seed`: the instructions, one worked example, and the question."""
        question = self._begin(random.Random(f"{self.name}/{self.version}/{seed}"))  # noqa: S311 - for variety
        system = Message(role="system", content=self._about())
        user = Message(role="user", content=question)
        tools = (self.command.tool,) if self.options.tools else ()
        return Observation((system, *self._worked_example(), user), tools)

    def step(self, action: Action) -> StepResult:
        """Carry out the moves of an action, in order, up to the end of the episode."""
        if not self.options.tools or not action.calls:
            outcome, tool = self._rule_on_text(action.text)
            return _result([(Message(role="user", content=outcome.text), outcome)], tool)
        answers: list[tuple[Message, MoveOutcome]] = []
        for number, call in enumerate(action.calls):
            if answers and answers[-1][1].ended:
                break
            outcome = (
                self._rule_on_call(call) if number < MOST_CALLS else unusable(f"at most {MOST_CALLS} calls at once")
            )
            answers.append((Message(role="tool", content=outcome.text, name=call.name, tool_call_id=call.id), outcome))
            if number >= MOST_CALLS:
                break
        return _result(answers, action.calls[0].name)

    @property
    @abstractmethod
    def max_turns(self) -> int:
        """How many turns are enough for an episode."""

    @abstractmethod
    def _begin(self, rng: random.Random) -> str:
        """Draw the episode, and return the question."""

    @abstractmethod
    def _about(self) -> str:
        """Return the instructions."""

    @abstractmethod
    def _example(self) -> tuple[str, tuple[Example, ...]]:
        """Return the question of the worked example, and its turns."""

    @abstractmethod
    def _move(self, argument: str) -> MoveOutcome:
        """Carry out the command."""

    def _answer(self, text: str) -> MoveOutcome:
        """Carry out a text that is no command; only where the command is not `bare`."""
        raise NotImplementedError

    def _rule_on_text(self, text: str) -> tuple[MoveOutcome, str | None]:
        """Return the outcome of a text, and the tool that it calls."""
        text = text.strip()
        if len(text) > LONGEST:
            return unusable(f"at most {LONGEST} characters"), None
        if self.options.tools:
            return (unusable(f"call {self.command.name}"), None) if self.command.bare else (self._answer(text), None)
        if self.command.bare:
            return self._move(text), self.command.name
        match = _CALL.fullmatch(text)
        if match is None:
            return self._answer(text), None
        name, argument = match.groups()
        return (self._move(argument.strip()) if name == self.command.name else self._no_tool(name)), name

    def _rule_on_call(self, call: ToolCall) -> MoveOutcome:
        if call.name != self.command.name:
            return self._no_tool(call.name)
        try:
            arguments = json_text.parse(call.arguments)
        except ValueError:
            arguments = None
        is_one = isinstance(arguments, dict) and len(arguments) == 1
        argument = arguments.get(self.command.parameter) if is_one else None
        if not isinstance(argument, str | int | float) or isinstance(argument, bool) or len(call.arguments) > LONGEST:
            return unusable(f"{call.name} takes {self.command.parameter}, a text of at most {LONGEST} characters")
        return self._move(str(argument).strip())

    def _no_tool(self, name: str) -> MoveOutcome:
        return unusable(f"there is no tool {name[:40]}, only {self.command.name}")

    def _worked_example(self) -> tuple[Message, ...]:
        question, turns = self._example()
        messages = [Message(role="user", content=question)]
        for number, turn in enumerate(turns):
            is_call = turn.command and self.options.tools
            if is_call:
                arguments = json.dumps({self.command.parameter: turn.text})
                call = ToolCall(id=f"example{number}", name=self.command.name, arguments=arguments)
                messages.append(Message(role="assistant", content="", tool_calls=(call,)))
            else:
                is_bare = self.command.bare or not turn.command
                text = turn.text if is_bare else f"{self.command.name}({turn.text})"
                messages.append(Message(role="assistant", content=text))
            if turn.answer is not None and is_call:
                call_id = f"example{number}"
                messages.append(Message(role="tool", content=turn.answer, name=self.command.name, tool_call_id=call_id))
            elif turn.answer is not None and number < len(turns) - 1:
                messages.append(Message(role="user", content=turn.answer))
        return tuple(messages)


def unusable(error: str) -> MoveOutcome:
    """Return the outcome of a move that cannot be carried out."""
    return MoveOutcome(f"error: {error}", ok=False)


def _result(answers: list[tuple[Message, MoveOutcome]], tool: str | None) -> StepResult:
    outcomes = [outcome for _, outcome in answers]
    return StepResult(
        Observation(tuple(message for message, _ in answers)),
        reward=sum(outcome.reward for outcome in outcomes),
        terminated=outcomes[-1].ended,
        tool=tool,
        ok=all(outcome.ok for outcome in outcomes),
        success=outcomes[-1].success,
    )
