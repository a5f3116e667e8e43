"""The order in which test files begin (tests/schedule.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import schedule

ROOT = Path(__file__).parents[2]
LOG = """
12.50s call     tests/log/test_a.py::test_one
3.00s setup    tests/log/test_b.py::test_two[x: y]
2.50s teardown tests/log/test_b.py::test_two[x: y]
0.50s call     tests/unit/test_c.py::TestC::test_three
4 passed in 18.00s
"""


def test_the_seconds_of_a_file_are_those_of_all_its_tests_and_short_files_are_left_out() -> None:
    assert schedule.measured(LOG) == {"tests/log/test_a.py": 12, "tests/log/test_b.py": 6}


def test_the_longest_file_begins_and_the_tests_of_a_file_keep_their_order() -> None:
    (longest, second, *_) = sorted(schedule.seconds(), key=lambda file: -schedule.seconds()[file])
    ids = ["tests/unit/test_c.py::b", f"{second}::z", f"{longest}::b", "tests/unit/test_c.py::a", f"{longest}::a"]
    items: list[Any] = [SimpleNamespace(nodeid=one) for one in ids]
    schedule.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [ids[2], ids[4], ids[1], ids[0], ids[3]]


def test_every_file_of_the_schedule_is_there() -> None:
    assert [file for file in schedule.seconds() if not (ROOT / file).is_file()] == []
