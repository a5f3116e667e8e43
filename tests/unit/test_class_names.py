"""A class name occurs once, so that a name is enough to find it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_class_name_occurs_once() -> None:
    paths = [
        path
        for package in ("gateway", "schemas", "streams", "trainer", "streamward")
        for path in (ROOT / package).rglob("*.py")
    ]
    names = [name for path in paths for name in re.findall(r"^ *class _*(\w+)[(:\[]", path.read_text(), re.MULTILINE)]
    assert len(names) > 300
    assert [name for name, times in Counter(names).items() if times > 1] == []
