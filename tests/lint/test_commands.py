"""Every command that a text names is one: of the documents, the chart, docker compose, and the program's own messages.

    `streamward admin topics apply`, `$ streamward …` ──► the words after the options ──► the tree of commands

Not covered: commands without the program's name, such as `topics apply`, and command lines in lists: the chart's and
docker compose's are parsed in tests/deploy.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from streams.cli.root import cli
from streams.plugins.installed import load_plugins
from tests.import_graph import ROOT, source

TEXTS = ("*.md", "docs/**/*.md", "schemas/*.md", "helm/**/*", "deploy/*", "docker-compose.yml", "gateway/**/*.html")
EXAMPLE = "rate"
"""Command of a plugin that is not installed here: docs/examples/plugin-thumbs."""
PLUGINS = {plugin.name: plugin for plugin, _, version in load_plugins() if version is None}
CORE = ("streams", "gateway", "trainer", "schemas")
PROGRAMS = (*CORE, "plugins", "docs/examples")
NAMED = re.compile(
    r"(?:`|\$ |\$\(|&& |\| |-- |^ *)streamward"
    r"(?:\s+(?:\\\n\s*)?--(?:config|set|log-level|log-format)[ =](?:'[^']*'|[^\s'])+)*((?:\s+[a-z][a-z-]*)+)",
    re.MULTILINE,
)


def _wrong(text: str) -> list[str]:
    """Return the words after `streamward` that lead to no command."""
    return [words for words in map(" ".join, map(str.split, NAMED.findall(text))) if not _is_command(words.split())]


def _is_command(words: list[str]) -> bool:
    command: click.Command | None = cli
    for word in words if words[0] != EXAMPLE else ():
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command is not None


@cache
def _strings(path: Path) -> list[str]:
    """Return the strings of a program that have its name; a value within one is X."""
    nodes = source(path.relative_to(ROOT).as_posix()).nodes
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    constants = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in parts]
    texts = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values) for node in joined
    ]
    return [text for text in (*texts, *constants) if isinstance(text, str) and "streamward" in text]


def test_every_command_that_a_text_names_is_one() -> None:
    files = [file for pattern in TEXTS for file in ROOT.glob(pattern) if file.is_file() and file.suffix != ".json"]
    wrong = {file.relative_to(ROOT).as_posix(): _wrong(file.read_text(encoding="utf-8")) for file in files}
    assert {name: words for name, words in wrong.items() if words} == {}


@pytest.mark.parametrize("folder", PROGRAMS)
def test_every_command_that_a_message_names_is_one(folder: str) -> None:
    wrong = {
        file.relative_to(ROOT).as_posix(): [words for text in _strings(file) for words in _wrong(text)]
        for file in (ROOT / folder).rglob("*.py")
    }
    assert {name: words for name, words in wrong.items() if words} == {}


@pytest.mark.parametrize("folder", [*CORE, *(f"plugins/{name}" for name in PLUGINS)])
def test_no_message_names_a_command_that_another_plugin_brings(folder: str) -> None:
    known = _required(folder.removeprefix("plugins/"))
    brought = [command for name, plugin in PLUGINS.items() if name not in known for command in plugin.commands]
    named = {
        file.relative_to(ROOT).as_posix(): words
        for file in (ROOT / folder).rglob("*.py")
        for text in _strings(file)
        for words in map(" ".join, map(str.split, NAMED.findall(text)))
        if any(f"{words} ".startswith(f"{command} ") for command in brought)
    }
    assert named == {}


def _required(name: str) -> set[str]:
    """Return a plugin and those that it requires; none for a folder of the core."""
    return {name}.union(*map(_required, PLUGINS[name].requires)) if name in PLUGINS else set()


def test_a_command_that_has_moved_is_found_behind_options_and_line_breaks() -> None:
    text = (
        "$ streamward --set a.b='c d' \\\n  --config x topics apply\n`streamward admin\ntopics apply` `streamward up`"
    )
    assert _wrong(text) == ["topics apply"]
