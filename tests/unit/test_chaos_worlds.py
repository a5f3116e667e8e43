"""Each fault can begin: its world makes its settings, and its processes are commands that exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streams.cli.root import cli
from tests.chaos import faults
from tests.chaos.matrix import FAULTS
from tests.chaos.world import World

FILES = [*Path(faults.__file__).parent.glob("*.py"), *faults.TESTS.glob("plugins/*/faults.py")]


def process_words(file: Path) -> Iterator[list[str]]:
    """Yield the words of each process that a world of this file starts, as far as they are literals."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start":
            words = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if words and isinstance(node.func.value, ast.Name):
                yield words


PROCESSES = [pytest.param(words, id=" ".join(words)) for file in FILES for words in process_words(file)]
PROCESSES += [
    pytest.param([name], id=name) for name in sorted({name for row in FAULTS.values() for name in row.starts})
]


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_world_of_a_fault_makes_its_settings(name: str, tmp_path: Path) -> None:
    world = FAULTS[name].place(tmp_path, FAULTS[name].settings)
    world.use("127.0.0.1:9")
    assert world.settings.kafka.bootstrap == "127.0.0.1:9"
    assert world.reads["scoring"] and all(world.reads.values())


@pytest.mark.parametrize("words", PROCESSES)
def test_a_process_of_a_fault_is_a_command(words: list[str]) -> None:
    command: click.Command | None = cli
    for word in (words[0].partition("-")[0], *words[1:]):
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    assert command and not (isinstance(command, click.Group) and not command.invoke_without_command), (
        f"streamward {' '.join(words)}"
    )


def test_a_process_is_not_started_under_the_name_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_spawn", lambda *_: None)
    world = World(tmp_path, {})
    world.use("127.0.0.1:9")
    world.start("streams")
    with pytest.raises(ValueError, match="a process called streams is kept up already"):
        world.start("streams")
