"""What is made in one place alone: consoles, names of consumer groups and of loggers; and a call that nothing makes."""

from __future__ import annotations

import ast

from streams.observability.logging import OWN_LOGGERS
from tests.import_graph import PACKAGES, sources

READERS = {
    "GroupConsumer",
    "TrackedConsumer",
    "KeyMembership",
    "FleetConsumer",
    "TaskReader",
    "IdleMember",
    "SoleMember",
}
"""Classes that join a group; its name, or a GroupScope, is their second argument."""
STAGES = ("policy-@", "agents-", "trainer-@")
"""How the names of groups of the core begin."""


def test_only_one_function_makes_a_console_and_nothing_reads_markup() -> None:
    found = []
    for source in sources():
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                names = {name.name for name in node.names} & {"print", "inspect", "Spinner", "Status"}
                found += [f"{source.path}:{node.lineno} {name}" for name in names]
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            plain = any(keyword.arg == "markup" and keyword.value.value is False for keyword in node.keywords)
            reads_markup = name in ("Console", "TextColumn") and not plain
            titles = [keyword.value for keyword in node.keywords if keyword.arg in ("title", "subtitle")]
            titled = name == "Panel" and any(not isinstance(title, ast.Call) for title in titles)
            other = name == "Console" and source.path != "streams/output.py"
            if reads_markup or titled or other or name in ("from_markup", "render_markup"):
                found.append(f"{source.path}:{node.lineno} {name}")
    assert not found, "make it with streams.output.console, and give texts as Text"


def test_what_each_package_of_ours_logs_is_printed() -> None:
    """A logger has the name of its module, and libraries print warnings alone."""
    assert set(OWN_LOGGERS) == set(PACKAGES)


def test_readers_take_the_names_of_their_groups_from_one_place_alone() -> None:
    """A name that is made elsewhere may lack what decides; a class that joins passes on what it was given.

    The groups of a plugin are its own.
    """
    wrong = []
    for source in sources():
        modules = {node.module for node in source.nodes if isinstance(node, ast.ImportFrom)}
        names_groups = "streams.kafka.group_names" in modules
        passes_on = source.path.endswith(("/tracked.py", "/task_reader.py")) or source.path.startswith("plugins/")
        for node in source.nodes:
            is_reader = isinstance(node, ast.Call) and getattr(node.func, "id", None) in READERS
            if is_reader and not passes_on and not names_groups:
                wrong.append(f"{source.path}:{node.lineno}")
            if isinstance(node, ast.JoinedStr) and _is_group(node):
                wrong.append(f"{source.path}:{node.lineno}: {ast.unparse(node)}")
    assert [place for place in wrong if "group_names.py" not in place] == []


def test_nothing_asks_the_administration_for_commits() -> None:
    """It ends the process where a node is not the coordinator of the group: streams/kafka/offsets.py asks otherwise."""
    calls = ((source.path, node) for source in sources() for node in source.nodes if isinstance(node, ast.Attribute))
    assert [path for path, node in calls if node.attr == "list_consumer_group_offsets"] == []


def _is_group(text: ast.JoinedStr) -> bool:
    """Return whether an f-string makes the name of a group: it begins with a stage and a dash."""
    first = text.values[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith(STAGES)
