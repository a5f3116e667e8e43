"""The tree of errors is drawn as it is."""

from __future__ import annotations

import re

from streams import errors
from tests.import_graph import sources

BESIDE = re.compile(r"engines/vllm/|^plugins/")
"""Errors that one engine or plugin keeps to itself."""


def drawn() -> dict[str, str]:
    """Return the parent of each error, as the drawing has it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for indent, name in re.findall(r"^    ([│ ]*[├└]── )?(\w+)  ", errors.__doc__ or "", re.MULTILINE):
        level = len(indent) // 4
        above[level:] = [name]
        if level:
            found[name] = above[level - 1]
    return found


def defined() -> dict[str, tuple[str, str]]:
    """Return the parent and the file of each class that derives from StreamwardError."""
    parents = {
        name: (base, file.path)
        for file in sources()
        for name, bases in re.findall(r"^ *class (\w+)\(([\w, ]+)\):", file.text, re.MULTILINE)
        for base in bases.split(", ")
    }

    def derives(name: str) -> bool:
        return name == "StreamwardError" or (name in parents and derives(parents[name][0]))

    return {name: found for name, found in parents.items() if derives(name)}


def test_the_drawing_has_every_error_below_its_parent() -> None:
    public = {
        name: parent
        for name, (parent, path) in defined().items()
        if name != "StreamwardError" and not name.startswith("_") and not BESIDE.search(path)
    }
    assert drawn() == public
