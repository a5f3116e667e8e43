"""A class name occurs once, so that a name is enough to find it."""

from __future__ import annotations

import re
from collections import Counter

from tests.import_graph import sources


def test_a_class_name_occurs_once() -> None:
    names = [name for file in sources() for name in re.findall(r"^ *class _*(\w+)[(:\[]", file.text, re.MULTILINE)]
    assert len(names) > 300
    assert [name for name, times in Counter(names).items() if times > 1] == []
