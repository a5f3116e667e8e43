"""A class name occurs once, so that a name is enough to find it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_class_name_occurs_once() -> None:
    paths = [
        path
        for package in ("gateway", "schemas", "streams", "trainer", "streamward")
        for path in (ROOT / package).rglob("*.py")
    ]
    classes = [
        node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, times in Counter(node.name.lstrip("_") for node in classes).items() if times > 1] == []
