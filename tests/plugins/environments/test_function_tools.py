"""A function as a tool: what it may take and return, and what is refused before anybody calls it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from plugins.environments.adapters.single_tool_env import ModuleFunction
from plugins.environments.episodes.environment import Action, EpisodeError
from schemas.events import ToolCall


class Place(BaseModel):
    """A model that a tool returns."""

    name: str
    degrees: float


@dataclass
class Pair:
    """A dataclass that a tool returns."""

    left: int
    right: Place


class UnreadableError(Exception):
    """An exception whose own text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def doubled(number: int) -> int:
    return 2 * number


def place() -> Place:
    return Place(name="Ulm", degrees=3.5)


def pair() -> Pair:
    return Pair(1, place())


def places() -> list[Place]:
    return [place()]


def a_set() -> set[str]:
    return {"a", "b"}


def some_bytes() -> bytes:
    return b"ok"


def not_a_number() -> float:
    return float("nan")


def half_a_pair() -> str:
    return "\ud800"


def raises_half_a_pair() -> None:
    raise ValueError("no \ud800")


def raises_without_a_text() -> None:
    raise UnreadableError


def parts() -> Iterator[int]:
    yield 1


async def async_parts() -> AsyncIterator[int]:
    yield 1


def positional(number: int, /) -> int:
    return number


def result_of(name: str, **arguments: Any) -> tuple[str, bool]:
    tool = ModuleFunction(f"{__name__}:{name}", description="a tool")
    tool.reset(0)
    result = tool.step(Action("", (ToolCall(id="1", name=name, arguments=json.dumps(arguments)),)))
    return result.observation.messages[0].content, result.ok


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("doubled", {"number": 21}, 42),
        ("place", {}, {"name": "Ulm", "degrees": 3.5}),
        ("pair", {}, {"left": 1, "right": {"name": "Ulm", "degrees": 3.5}}),
        ("places", {}, [{"name": "Ulm", "degrees": 3.5}]),
    ],
)
def test_async_functions_are_awaited_and_models_and_dataclasses_are_objects(
    name: str, arguments: dict[str, Any], value: Any
) -> None:
    text, ok = result_of(name, **arguments)
    assert ok and json.loads(text) == value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a_set", "returned a value that JSON does not have: a value of type set"),
        ("some_bytes", "returned a value that JSON does not have: a value of type bytes"),
        ("not_a_number", "returned a value that JSON does not have"),
        ("half_a_pair", "returned a value that JSON does not have"),
        ("raises_half_a_pair", "raised ValueError: no \\ud800"),
        ("raises_without_a_text", "raised UnreadableError: its text cannot be read: RuntimeError"),
    ],
)
def test_what_cannot_be_an_answer_is_an_answer_that_says_so(name: str, why: str) -> None:
    text, ok = result_of(name)
    assert not ok and text.startswith(f"error: {name} ") and why in text and "json/encoder" not in text
    text.encode()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("parts", "yields its answer in parts"),
        ("async_parts", "yields its answer in parts"),
        ("positional", "parameter number cannot be given by its name; remove the /"),
    ],
)
def test_a_function_that_no_call_could_use_is_refused_when_it_is_added(name: str, why: str) -> None:
    with pytest.raises(EpisodeError, match=why):
        ModuleFunction(f"{__name__}:{name}", description="a tool")
