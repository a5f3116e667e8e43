"""Optional parts declare themselves, those of a stranger's package as ours do, and nothing else names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streams.errors import SettingsError
from streams.kafka.topics import SHAPES
from streams.plugins.installed import InstalledPlugin, in_order, load_plugins
from streams.plugins.plugin import Plugin
from tests.import_graph import ROOT, sources

FOLDERS = {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")}
THUMBS = '''
import click
from dataclasses import replace
from streams.plugins.plugin import Plugin, PluginCommand, PluginExport

@click.command()
def thumbs():
    """Count thumbs."""
    from streams.kafka.topics import SHAPES
    print("thumbs" in SHAPES, "thumbs_by" in SHAPES["groups"].metadata)

PLUGIN = Plugin(
    name="thumbs",
    requires=(),
    topics="thumbs_topics:TOPICS",
    commands={
        "thumbs": PluginCommand("thumbs:thumbs", "Count thumbs."),
        "adapters rate": PluginCommand("thumbs:thumbs", "Count thumbs."),
    },
    exports={"rated": PluginExport("thumbs:encode", "batches with thumbs")},
    metadata={"thumbs_by": "who rated the answers"},
)
'''
TOPICS = """
from dataclasses import replace
from streams.topics.service_topics import SERVICE

TOPICS = (replace(next(shape for shape in SERVICE if shape.label == "curation"), label="thumbs"),)
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder of packages in which somebody's plugin is installed."""
    described = tmp_path / "streamward_thumbs-1.5.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: streamward-thumbs\nVersion: 1.5\n")
    (described / "entry_points.txt").write_text("[streamward.plugins]\nthumbs = thumbs:PLUGIN\n")
    (tmp_path / "thumbs.py").write_text(THUMBS)
    (tmp_path / "thumbs_topics.py").write_text(TOPICS)
    return tmp_path


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT), str(folder)))
    command = [sys.executable, "-m", "streams.cli", *args]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, cwd=folder, capture_output=True, text=True)


def test_the_plugin_of_a_stranger_has_its_topics_its_metadata_and_its_commands(stranger: Path) -> None:
    assert run(stranger, "thumbs").stdout == run(stranger, "adapters", "rate").stdout == "True True\n"
    assert "  rate      Count thumbs.\n" in run(stranger, "adapters", "--help").stdout
    assert "|rated]" in (shown := run(stranger, "export", "--help").stdout) and "batches with thumbs" in shown
    assert "  thumbs        Count thumbs.\n" in run(stranger, "--help").stdout
    listed = [json.loads(line) for line in run(stranger, "plugins").stdout.splitlines()]
    (theirs,) = (row for row in listed if row["plugin"] == "thumbs")
    assert theirs == {
        "plugin": "thumbs",
        "version": "1.5",
        "from": "streamward-thumbs",
        "requires": [],
        "topics": ["thumbs"],
        "commands": ["thumbs", "adapters rate"],
        "exports": ["rated"],
        "metadata": {"thumbs_by": "who rated the answers"},
    }


def test_a_folder_of_plugins_that_somebody_works_in_is_not_ours(stranger: Path) -> None:
    theirs = stranger / "plugins"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    listed = {json.loads(line)["plugin"] for line in run(stranger, "plugins").stdout.splitlines()}
    assert listed == {*FOLDERS, "thumbs"}


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        ("thumbs.py", "import click", "import thumb_screws", "ModuleNotFoundError: No module named 'thumb_screws'"),
        ("thumbs.py", "Plugin(\n", "dict(\n", "is a dict, expected a Plugin"),
        ("thumbs.py", '"thumbs": Plugin', '"tasks": Plugin', "there is another command tasks"),
        ("thumbs.py", '"adapters rate": ', '"adapters gc": ', "there is another command adapters gc"),
        ("thumbs.py", '"adapters rate": ', '"toes rate": ', "its command toes rate is of no group"),
        ("thumbs.py", '"batches with thumbs"', '"with toes", options=("toes",)', "no option toes; there are ranks"),
        ("thumbs.py", "requires=()", 'requires=("toes",)', "requires toes, which is not installed"),
        ("thumbs_topics.py", 'label="thumbs"', 'label="tasks"', "topic tasks is another's"),
        ("thumbs_topics.py", 'label="thumbs"', 'label="thumbs", key="toe"', "its key or its line reads toe"),
    ],
)
def test_a_plugin_that_cannot_be_is_refused_when_it_is_loaded(
    stranger: Path, file: str, before: str, after: str, says: str
) -> None:
    path = stranger / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    done = run(stranger, "thumbs")
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(("format", "says"), [("sft", "there is another format of export sft"), ("no", "'rated'")])
def test_a_format_that_is_taken_and_one_that_nothing_installed_has_are_refused(
    stranger: Path, format: str, says: str
) -> None:
    if format == "sft":
        text = (stranger / "thumbs.py").read_text()
        (stranger / "thumbs.py").write_text(text.replace('"rated"', '"sft"'))
    done = run(stranger, "export", "out", "--format", format)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def of(*plugins: Plugin) -> list[InstalledPlugin]:
    return [InstalledPlugin(plugin, f"of-{plugin.name}", "1") for plugin in plugins]


def test_plugins_come_after_those_that_they_require() -> None:
    a, b, c = Plugin(name="a", requires=("b", "c")), Plugin(name="b", requires=("c",)), Plugin(name="c")
    assert [one.plugin.name for one in in_order(of(a, b, c))] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("plugins", "says"),
    [
        ([Plugin(name="a", requires=("b",)), Plugin(name="b", requires=("a",))], "in a circle"),
        ([Plugin(name="a"), Plugin(name="a")], "two plugins are called a"),
    ],
)
def test_plugins_that_cannot_be_together_are_refused(plugins: list[Plugin], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        in_order(of(*plugins))


@pytest.mark.parametrize("wrong", [{"name": "A b"}, {"name": "a", "topics": "topics"}])
def test_a_declaration_that_names_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Plugin(**wrong)


def test_each_folder_of_plugins_is_one_whose_references_are_there_and_help_says_what_its_commands_say() -> None:
    assert {one.plugin.name for one in load_plugins() if one.version is None} == FOLDERS
    for one in load_plugins():
        if one.plugin.topics is not None:
            assert {shape.label for shape in one.plugin.load(one.plugin.topics)} <= set(SHAPES)
        for command in one.plugin.commands.values():
            assert one.plugin.load(command.command).get_short_help_str(200) == command.help


def test_nothing_outside_plugins_imports_one() -> None:
    named = [
        source.path
        for source in sources()
        if not source.path.startswith("plugins/")
        if "from plugins" in source.text or "import plugins." in source.text
    ]
    assert named == []
