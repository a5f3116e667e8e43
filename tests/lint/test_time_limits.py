"""Every client waits for an answer for a limited time, and no test for a time that a busy machine needs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

from tests.import_graph import ROOT, source, sources

WAIT_FOREVER = ("urlopen", "create_connection", "HTTPConnection", "HTTPSConnection")
"""Without `timeout`. httpx has a default of 5 s."""
OF_CONFLUENT = {"streams/kafka/registry/client.py", "tests/support/log/confluent_events.py"}
"""The two places that create Confluent's client, with its `timeout`: it has no default."""
OF_INTEREST = ("SchemaRegistryClient", "timeout=None", *WAIT_FOREVER)
"""Words without which a file has nothing to look at: to parse all files takes seconds."""


@cache
def all_calls() -> dict[str, list[tuple[str, ast.Call]]]:
    """Return every call in a file of interest, with its file, by the name of what is called."""
    found: dict[str, list[tuple[str, ast.Call]]] = defaultdict(list)
    tests = [source(path.relative_to(ROOT).as_posix()) for path in (ROOT / "tests").rglob("*.py")]
    for file in (*sources(), *tests):
        for node in file.nodes if any(word in file.text for word in OF_INTEREST) else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found[name].append((file.path, node))
    return found


def calls(name: str) -> list[tuple[str, ast.Call]]:
    """Return every call of a function or class with this name, with its file."""
    return all_calls()[name]


def test_no_connection_is_opened_without_a_time_limit() -> None:
    found = [(file, call) for name in WAIT_FOREVER for file, call in calls(name)]
    assert len(found) > 5
    without = [
        f"{file}:{call.lineno}" for file, call in found if "timeout" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def test_confluents_client_is_created_only_where_it_gets_a_time_limit() -> None:
    assert {file for file, _ in calls("SchemaRegistryClient")} == OF_CONFLUENT


def test_no_client_of_httpx_has_its_time_limit_switched_off() -> None:
    names = ("Client", "AsyncClient", "get", "post", "request", "stream")
    off = [
        f"{file}:{call.lineno}"
        for name in names
        for file, call in calls(name)
        for keyword in call.keywords
        if keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant) and keyword.value.value is None
    ]
    assert off == []


SHORT_LIMIT = re.compile(r"(?:\.(?:wait|join)\(|\btimeout=|monotonic\(\) \+ )(?:[2-9]\d|[12]\d\d)(?:\.0)?\b(?!\.\d)")
"""20 to 299 seconds: what is shorter is a time that the test is about."""
APART = ("benchmarks", "strangers", "chaos", "fuzz", "tokens", "lint")


def test_a_test_that_waits_gives_up_only_when_something_hangs() -> None:
    """A process that imports torch takes 5 s of CPU, and minutes beside others."""
    short = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not {*path.relative_to(ROOT / "tests").parts} & {*APART}
        for found in SHORT_LIMIT.finditer(source(path.relative_to(ROOT).as_posix()).text)
    ]
    assert short == [], "at least 300"
