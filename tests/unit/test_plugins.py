"""Optional parts declare themselves, those of a stranger's package as ours do, and nothing else names them."""

from __future__ import annotations

import json
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.access import roles
from streams.errors import SettingsError
from streams.kafka.topics import SHAPES
from streams.observability.grafana import alerts
from streams.plugins import installed
from streams.plugins.choice import read_choice
from streams.plugins.engines import engines
from streams.plugins.installed import InstalledPlugin, extensions, in_order, load_plugins
from streams.plugins.plugin import Plugin, PluginCommand, PluginEngine
from streams.settings.load import load_with_origins
from streams.stages.tasks import episodes as players
from streams.tools import dataset_reader as readers
from tests.import_graph import ROOT, sources
from tests.support.stranger_plugin import environment_with, install_thumbs, run_with

FOLDERS = {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")}
OURS = min(FOLDERS)
"""One of them."""
MORE = """
from dataclasses import replace
from streams.plugins.plugin import PluginEngine, PluginExport

PLUGIN = replace(
    PLUGIN,
    requires=(),
    settings="thumbs.settings:Thumbs",
    commands={**PLUGIN.commands, "admin topics rate": PluginCommand("thumbs.rate:rate", "Rate rows.", is_worker=True)},
    exports={"rated": PluginExport("thumbs.rate:encode", "batches with thumbs")},
    engines={"hands": PluginEngine(help="all you have", package="thumbs", install="grow", agents="thumbs.rate:agents")},
    metadata={"thumbs_by": "who rated the answers"},
    actions={"thumbs.give": ("submitter",)},
    public=("thumbs.rate:rate",),
)
"""
"""What a plugin may declare, and that of thumbs has no use for."""
RATE = '''
import click

@click.command()
def rate():
    """Rate rows."""
    from streams.kafka.topics import SHAPES
    print("thumbs_by" in SHAPES["groups"].metadata)

def agents(call, words, replicas):
    print(*words, replicas, call.settings.policy.name)
    return 0
'''
SETTINGS = '''
from pydantic import Field

from streams.settings.model import Section


class Thumbs(Section):
    """Thumbs."""

    most: int = Field(9, ge=1, description="of one answer")
'''
USED_BY = {"__init__.py": ("rate",), "recount.py": ("audit",), "shown.py": ("admin", "plugins")}
"""The command that loads a file of the plugin; `query` loads topics."""
TWICE = "from dataclasses import replace\nTOPICS += (replace(TOPICS[0], label='toes'),)\n"


@pytest.fixture(scope="module")
def thumbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_thumbs(tmp_path_factory.mktemp("thumbs"))


@pytest.fixture
def stranger(thumbs: Path, tmp_path: Path) -> Path:
    """A folder of packages in which somebody's plugin is installed."""
    packages = shutil.copytree(thumbs, tmp_path / "packages")
    with (packages / "thumbs" / "__init__.py").open("a") as file:
        file.write(MORE)
    (packages / "thumbs" / "rate.py").write_text(RATE)
    (packages / "thumbs" / "settings.py").write_text(SETTINGS)
    return packages


def test_the_plugin_of_a_stranger_has_all_that_it_declares(stranger: Path) -> None:
    assert run_with(stranger, "rate").stderr.startswith("Usage: streamward rate [OPTIONS] TASK_ID ANSWER_ID\n")
    assert run_with(stranger, "admin", "topics", "rate").stdout == "True\n"
    assert "  rate      Rate rows.\n" in run_with(stranger, "admin", "topics", "--help").stdout
    assert re.search(r"--with \[.*\badmin topics rate\b", run_with(stranger, "serve", "--help").stdout)
    assert "--with [" not in run_with(stranger, "--set", f"plugins.load={OURS}", "serve", "--help").stdout
    shown = run_with(stranger, "export", "--help").stdout
    assert "|rated]" in shown and "rated: batches with thumbs" in " ".join(shown.split())
    listed = run_with(stranger, "--help").stdout
    assert "  rate        Rate an answer.\n" in listed
    assert json.loads(run_with(stranger, "admin", "schemas", "list").stdout.splitlines()[-1])["event"] == "Thumb"
    assert run_with(stranger, "admin", "schemas", "check").returncode == 0
    listed = [json.loads(line) for line in run_with(stranger, "admin", "plugins").stdout.splitlines()]
    (theirs,) = (row for row in listed if row["plugin"] == "thumbs")
    assert theirs == {
        "plugin": "thumbs",
        "version": "1.0",
        "from": "streamward-thumbs",
        "loaded": True,
        "requires": [],
        "topics": ["thumbs"],
        "commands": ["rate", "admin topics rate"],
        "exports": ["rated"],
        "engines": ["hands"],
        "actions": ["thumbs.give"],
        "settings": ["most"],
        "metrics": ["streamward_thumbs_total"],
        "alerts": ["ThumbsDown"],
        "views": ["answer_thumbs"],
        "lists": ["bad-answers"],
        "metadata": {"thumbs_by": "who rated the answers"},
    }


def test_the_section_of_a_stranger_is_set_as_any_other_and_refused_where_the_plugin_is_not_loaded(
    stranger: Path,
) -> None:
    def shown(*words: str) -> subprocess.CompletedProcess[str]:
        return run_with(stranger, *words, "config", "show", "--output", "jsonl")

    lines = [json.loads(line) for line in shown("--set", "thumbs.most=3").stdout.splitlines()]
    (line,) = (line for line in lines if line["key"] == "thumbs.most")
    assert (line["value"], line["from"], line["about"]) == (3, "--set thumbs.most", "of one answer")
    assert "thumbs.most, from --set thumbs.most: Input should be greater" in shown("--set", "thumbs.most=0").stderr
    left_out = shown("--set", f"plugins.load={OURS}", "--set", "thumbs.most=3")
    assert left_out.returncode == 2 and "plugin thumbs is not loaded, or has no settings" in left_out.stderr
    declaration = stranger / "thumbs" / "__init__.py"
    declaration.write_text(declaration.read_text().replace("settings:Thumbs", "shown:METRICS"))
    assert "thumbs.shown:METRICS cannot be its section [thumbs]" in shown().stderr


def test_the_metric_of_a_stranger_has_a_panel_and_a_part_of_the_page_and_no_name_of_another(stranger: Path) -> None:
    program = (
        "from streams.observability.grafana import metrics_page; "
        "from streams.observability.grafana.dashboards import PLUGINS; "
        "print([row.title for row in PLUGINS.rows], '## Plugin thumbs' in metrics_page.markdown())"
    )
    command = partial(subprocess.run, [sys.executable, "-c", program], cwd=stranger, capture_output=True, text=True)
    done = command(env=environment_with(stranger))
    assert "'thumbs'" in done.stdout and done.stdout.endswith("True\n"), done.stderr
    shown = stranger / "thumbs" / "shown.py"
    shown.write_text(shown.read_text().replace('"streamward_thumbs_total"', '"streamward_ready"'))
    assert "plugin thumbs: there is another metric streamward_ready" in command(env=environment_with(stranger)).stderr


def test_the_alert_of_a_stranger_is_a_rule_after_ours_and_a_row_of_the_page(stranger: Path) -> None:
    ours, *others = yaml.safe_load(run_with(stranger, "admin", "dashboards", "alerts").stdout)["groups"]
    [theirs] = [group for group in others if group["name"] == "streamward-thumbs"]
    assert (ours["name"], len(ours["rules"])) == ("streamward", len(alerts.ALERTS))
    (rule,), do = theirs["rules"], "read the list Bad answers; roll back, if a version is worse"
    assert (theirs["name"], rule) == (
        "streamward-thumbs",
        {
            "alert": "StreamwardThumbsDown",
            "expr": '(sum(increase(streamward_thumbs_total{thumb="down"}[1h]))) > 20',
            "for": "0m",
            "labels": {"severity": "warning"},
            "annotations": {"summary": "{{ $value | humanize }} thumbs down in an hour.", "description": do},
        },
    )
    command = [
        sys.executable,
        "-c",
        "from streams.observability.grafana import metrics_page; print(metrics_page.markdown())",
    ]
    page = subprocess.run(command, env=environment_with(stranger), cwd=stranger, capture_output=True, text=True).stdout
    assert "| `StreamwardThumbsDown` | warning | 0m | `(sum(incr" in page.partition("## Plugin thumbs")[2]
    assert f"| {do} |\n" in page


def test_the_engine_of_a_stranger_is_a_choice_where_it_has_work_to_do(stranger: Path) -> None:
    assert run_with(stranger, "policy", "--on", "hands", "--replicas", "10").stdout == "policy 10 default\n"
    assert re.search(
        r"--on \[.*hands\] .* hands:\s+all\s+you\s+have\.", run_with(stranger, "policy", "--help").stdout, re.S
    )
    done = run_with(stranger, "train", "--launcher", "hands")
    assert done.returncode == 2 and "Invalid value for '--launcher': 'hands' is not" in done.stderr


def test_a_public_name_of_a_stranger_is_in_the_package_and_says_of_which_plugin_it_is(stranger: Path) -> None:
    code = "import streamward; print(streamward.rate.name, 'rate' in dir(streamward))"
    env = environment_with(stranger)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "rate True\n"
    env["STREAMWARD_PLUGINS__LOAD"] = ""
    refused = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "AttributeError: streamward.rate is of plugin thumbs, which is not loaded" in refused.stderr


def test_a_data_set_is_refused_where_no_plugin_reads_it_and_two_that_would_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "4 + 7 =", "answer": "11"}\n')
    check = ("--set", "plugins.load=data", "improve", "data", "check", str(rows), "--against", "good")
    done = run_with(tmp_path, *check)
    assert done.returncode == 4 and "data set 'good': no plugin that builds data sets is loaded" in done.stderr
    twice = of(Plugin(name="a", datasets="a:read"), Plugin(name="b", datasets="b:read"))
    monkeypatch.setattr(installed, "load_plugins", lambda: twice)
    with pytest.raises(SettingsError, match="plugins a and b both read data sets"):
        readers.dataset_reader.__wrapped__()


def test_a_group_to_which_no_loaded_plugin_adds_a_command_is_not_there(tmp_path: Path) -> None:
    shown = {chosen: run_with(tmp_path, "--set", f"plugins.load={chosen}", "--help").stdout for chosen in ("", "data")}
    assert ["  improve " in text for text in shown.values()] == [False, True]
    done = run_with(tmp_path, "--set", "plugins.load=", "improve")
    assert done.returncode == 2 and "No such command 'improve'; there are adapters, admin" in done.stderr


def test_a_suite_is_refused_where_no_gate_looks_for_its_questions(tmp_path: Path) -> None:
    done = run_with(tmp_path, "--set", "plugins.load=", "adapters", "show", "1", "--suite", "later.yaml")
    assert done.returncode == 2 and "--suite later.yaml: no loaded plugin looks for its questions" in done.stderr


def test_an_environment_is_refused_where_no_plugin_plays_it_and_two_that_would_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = ("--set", "plugins.load=")
    looped = run_with(tmp_path, *core, "up", "--environment", "guess")
    assert looped.returncode == 2 and "environment guess: no plugin that plays environments is loaded" in looped.stderr
    made = run_with(tmp_path, *core, "tasks", "generate", "guess")
    assert made.returncode == 3 and "no generator is called 'guess'" in made.stderr
    line = {"prompt": "?", "agent": "environment", "max_turns": 4, "reward_sources": ["verified"]}
    (tmp_path / "a.jsonl").write_text(json.dumps({**line, "environment": {"name": "mine:Game", "seed": 1}}))
    sent = run_with(tmp_path, *core, "up", "--tasks", "a.jsonl")
    assert sent.returncode == 1
    assert "environment: plugin environments, which reads it, is not loaded (plugins.load)" in sent.stderr
    twice = of(Plugin(name="a", episodes="a:play"), Plugin(name="b", episodes="b:play"))
    monkeypatch.setattr(installed, "load_plugins", lambda: twice)
    with pytest.raises(SettingsError, match="plugins a and b both play environments"):
        players.episode_player.__wrapped__()


def test_what_plugins_add_to_another_is_asked_for_by_its_name_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Plugin(name="a", extends={"jobs": "string:digits"}), Plugin(name="b", extends={"jobs": "string:octdigits"})
    monkeypatch.setattr(installed, "load_plugins", lambda: of(a, b))
    assert extensions("jobs") == (*string.digits, *string.octdigits)
    assert extensions("other") == ()


def test_two_engines_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [Plugin(name=name, engines={"e": PluginEngine(help="", package="p", install="")}) for name in "ab"]
    monkeypatch.setattr(installed, "load_plugins", lambda: of(*both))
    with pytest.raises(SettingsError, match="plugin b: there is another engine e; rename it, or uninstall of-b"):
        engines("archive")


@pytest.fixture
def forgotten_actions() -> Iterator[None]:
    """Read the actions of plugins again, before and after the test."""
    for cached in (roles.allowed_to, roles.declared_actions):
        cached.cache_clear()
    yield
    for cached in (roles.allowed_to, roles.declared_actions):
        cached.cache_clear()


@pytest.mark.usefixtures("forgotten_actions")
def test_the_roles_that_an_action_of_a_plugin_names_have_it_and_admin_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "load_plugins", lambda: of(Plugin(name="a", actions={"thumbs.give": ("viewer",)})))
    assert [role for role in roles.ROLES if "thumbs.give" in roles.allowed_to(role)] == ["viewer", "admin"]


@pytest.mark.usefixtures("forgotten_actions")
@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ({"thumbs.give": ("all",)}, "thumbs.give is for all; expected some of viewer"),
        ({"files.read": ()}, "another act"),
    ],
)
def test_an_action_that_cannot_be_is_refused(
    actions: dict[str, tuple[str, ...]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "load_plugins", lambda: of(Plugin(name="a", actions=actions)))
    with pytest.raises(SettingsError, match=says):
        roles.every_action()


def test_a_folder_of_plugins_that_somebody_works_in_is_not_ours(stranger: Path) -> None:
    theirs = stranger / "plugins"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    listed = {json.loads(line)["plugin"] for line in run_with(stranger, "admin", "plugins").stdout.splitlines()}
    assert listed == {*FOLDERS, "thumbs"}


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        ("__init__.py", '"rate": ', '"audit": ', "there is another command audit"),
        ("__init__.py", "import Plugin", "import Thumb, Plugin", "ImportError: cannot import name 'Thumb'"),
        ("__init__.py", "replace(\n    PLUGIN,", "dict(", "is a dict, expected a Plugin"),
        ("__init__.py", '"admin topics rate": ', '"adapters gc": ', "there is another command adapters gc"),
        (
            "__init__.py",
            '"admin topics rate": ',
            '"admin toes rate": ',
            "its command admin toes rate is of no group",
        ),
        ("__init__.py", '"batches with thumbs"', '"with toes", options=("toes",)', "no option toes; there are ranks"),
        ("__init__.py", "requires=()", 'requires=("toes",)', "requires toes, which is not installed"),
        ("topics.py", 'label="thumbs"', 'label="tasks"', "topic tasks is another's"),
        ("topics.py", "skip\n", "skip\n" + TWICE, "topic toes has the event of another topic"),
        ("topics.py", 'key="task_id"', 'key="toe"', "its key or its line reads toe"),
        ("topics.py", "    up: bool", "    up: bool\n    why: str", "Thumb is not as its newest schema has it"),
        ("shown.py", '"answer_thumbs"', '"lineage"', "view lineage is another's"),
        ("shown.py", '("responses",)', '("toes",)', "view answer_thumbs is of no topic toes"),
        ("shown.py", "(streamward_thumbs_total", "(streamward_toes", "ThumbsDown reads no metric streamward_toes"),
        ("shown.py", '(streamward_thumbs_total{thumb="down"}', "(streamward_ready", "reads no metric of its plugin"),
        ("shown.py", '"warning"', '"bad"', "alert ThumbsDown needs a name such as LagGrows and a severity of warn"),
        ("shown.py", "do=", "on=", "alert ThumbsDown needs a time such as 15m, and in one line what to do"),
        ("shown.py", '"ThumbsDown"', '"LagGrows"', "plugin thumbs: there is another alert LagGrows"),
        ("shown.py", '"Bad answers", "answer_thumbs"', '"Bad answers", "toes"', "list bad-answers is of no view toes"),
        ("shown.py", '("policy",)', '("toes",)', "list bad-answers has no column toes"),
        ("shown.py", "tasks/{task_id}", "tasks/{toe}", "list bad-answers has no column toe"),
        ("shown.py", '"bad-answers"', '"../bad"', "list ../bad needs a name of small letters, digits and -"),
        ("recount.py", '("thumbs", "responses")', '("thumbs", "toes")', "ThumbRecount reads no topic toes"),
    ],
)
def test_a_plugin_that_cannot_be_is_refused_when_it_is_loaded(
    stranger: Path, file: str, before: str, after: str, says: str
) -> None:
    path = stranger / "thumbs" / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    done = run_with(stranger, *USED_BY.get(file, ("query", "toes")))
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"/thumbs"', '"/rewards"', "rate_answer (POST /rewards)"),
        ("def rate_answer", "def give_reward", "give_reward (POST /thumbs)"),
        ('"rate": ""', '"promote": ""', "rate_answer (POST /thumbs)"),
    ],
)
def test_a_route_that_another_has_is_refused(stranger: Path, before: str, after: str, says: str) -> None:
    rooms = stranger / "thumbs" / "rooms.py"
    rooms.write_text(rooms.read_text().replace(before, after))
    command, env = [sys.executable, "-c", "import gateway.rooms.routes"], environment_with(stranger)
    done = subprocess.run(command, env=env, cwd=stranger, capture_output=True, text=True)
    assert f"the route {says} of a plugin is another's" in done.stderr


@pytest.mark.parametrize(("format", "says"), [("sft", "there is another format of export sft"), ("no", "'rated'")])
def test_a_format_that_is_taken_and_one_that_nothing_installed_has_are_refused(
    stranger: Path, format: str, says: str
) -> None:
    if format == "sft":
        file = stranger / "thumbs" / "__init__.py"
        file.write_text(file.read_text().replace('"rated"', '"sft"'))
    done = run_with(stranger, "export", "out", "--format", format)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize("line", [None, " {b},{a}"])
@pytest.mark.parametrize("variable", [None, "{a} , {b}"])
@pytest.mark.parametrize("file", [None, "{b} ,{a}"])
def test_the_chosen_plugins_are_read_as_any_setting_is(
    file: str | None, variable: str | None, line: str | None, tmp_path: Path
) -> None:
    a, *others = sorted(one.plugin.name for one in load_plugins())
    filled = [None if text is None else text.format(a=a, b=",".join(others)) for text in (file, variable, line)]
    config = tmp_path / "streamward.toml"
    config.write_text("" if filled[0] is None else f'[plugins]\nload = "{filled[0]}"\n')
    env = {"STREAMWARD_CONFIG": str(config)}
    env |= {} if filled[1] is None else {"STREAMWARD_PLUGINS__LOAD": filled[1]}
    overrides = ["policy.name=p"] if filled[2] is None else [f"plugins.load={filled[2]}"]
    choice, (settings, origins) = read_choice(None, overrides, env), load_with_origins(env=env, overrides=overrides)
    assert choice.text == settings.plugins.load == next((text for text in filled[::-1] if text is not None), "*")
    assert choice.origin in origins.get("plugins.load", "default")


def test_a_process_loads_the_chosen_plugins_and_no_others(stranger: Path) -> None:
    with (stranger / "thumbs" / "__init__.py").open("a") as file:
        file.write("raise RuntimeError('loaded')\n")
    assert "RuntimeError: loaded" in run_with(stranger, "admin", "plugins").stderr
    (stranger / "ours.toml").write_text(f'[plugins]\nload = "{OURS}"\n')
    rows = [
        json.loads(line) for line in run_with(stranger, "--config", "ours.toml", "admin", "plugins").stdout.splitlines()
    ]
    assert [row["plugin"] for row in rows if row["loaded"]] == [OURS] and len(rows) == len(load_plugins()) + 1
    (stranger / "none.toml").write_text('[plugins]\nload = ""\n')
    shown = run_with(stranger, "--config", "none.toml", "--help").stdout
    assert "Connect:" in shown and "Of plugins:" not in shown
    assert "--on [" not in run_with(stranger, "--config", "none.toml", "policy", "--help").stdout


@pytest.mark.parametrize("words", [["--help"], ["admin", "plugins"], ["admin", "topics", "list"]])
def test_a_chosen_plugin_that_is_not_installed_is_refused_with_those_that_are(stranger: Path, words: list[str]) -> None:
    done = run_with(stranger, "--set", f"plugins.load={OURS},toes", *words)
    assert done.returncode == 2 and "--set plugins.load: plugin toes is not installed; installed: " in done.stderr
    assert "thumbs" in done.stderr and "Traceback" not in done.stderr


def test_settings_that_choose_others_than_the_process_has_loaded_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--set plugins\.load: plugins\.load=, and this process has .*once"):
        load_with_origins(env={}, overrides=["plugins.load="])


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


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": "A b"}, {"name": "a", "topics": "topics"}, {"name": "a", "actions": {"give": ()}}),
        {"name": "a", "groups": ("curate",)},
        *({"name": "a", "public": ("rate",)}, {"name": "a", "extends": {"jobs": "types"}}),
        {"name": "a", "commands": {"rate": PluginCommand("rate", "Rate.")}},
        {"name": "a", "engines": {"hands": PluginEngine(help="", package="", install="", agents="agents")}},
    ],
)
def test_a_declaration_that_names_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Plugin(**wrong)


def test_each_folder_of_plugins_is_one_whose_references_are_there_and_help_says_what_its_commands_say() -> None:
    assert {one.plugin.name for one in load_plugins() if one.version is None} == FOLDERS
    for one in load_plugins():
        if one.plugin.topics is not None:
            assert {shape.label for shape in one.plugin.load(one.plugin.topics)} <= set(SHAPES)
        for command in one.plugin.commands.values():
            loaded = one.plugin.load(command.command)
            says = loaded.get_short_help_str(200) if not command.method else None
            assert says == command.help or hasattr(loaded, command.method)
        assert all(one.plugin.load(reference) for reference in one.plugin.references())


def test_nothing_outside_plugins_imports_one() -> None:
    named = [
        source.path
        for source in sources()
        if not source.path.startswith("plugins/")
        if "from plugins" in source.text or "import plugins." in source.text
    ]
    assert named == []
