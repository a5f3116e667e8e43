"""The command line without a broker: what it imports, how it prints, how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from schemas.events import Coordinates
from schemas.versions import FIRST_ID
from streams import output as show
from streams.cli.docs import _contexts
from streams.cli.root import SECTIONS, cli, plugin_commands
from streams.cli.runtime import AppContext, Guarded, VersionNumber, pass_call, stopped_node_hint, user_name
from streams.errors import EventError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.kafka.node.config import Node, remember
from streams.kafka.record import Record
from streams.kafka.retry import BrokerUnreachable
from streams.kafka.times import Begin, merged, parse_begin
from streams.settings.load import BOOTSTRAP
from streams.settings.model import Broker, Kafka, Model, Settings
from streams.tools import doctor

HEAVY = ("torch", "vllm", "transformers", "faust", "confluent_kafka", "fastavro", "pydantic", "rich", "trl", "peft")
SHOW_SASL = [
    part
    for override in ("security_protocol=SASL_SSL", "sasl_mechanism=PLAIN", "sasl_username=a", "sasl_password=hunter2")
    for part in ("--set", f"kafka.{override}")
]
NOBODY = ["--set", "kafka.bootstrap=127.0.0.1:1", "--set", "kafka.request_timeout_s=0.3"]
"""A bootstrap that does not answer."""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder without streamward.toml, an environment without our variables, and the log set-up put back."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("STREAMWARD_"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, args, env=env)


def process(*args: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", code] if code else ["-m", "streams.cli"]), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy_but_the_route_that_a_command_is_made_from() -> None:
    code = (
        "import sys\n"
        "from streams.cli.root import cli\n"
        "from streams.cli.docs import _contexts\n"
        "from streams.cli.route_commands import RoutedCommand\n"
        f"def heavy(): print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "cli.main(['admin', 'topics', 'list', '--help'], standalone_mode=False)\n"
        "contexts = list(_contexts(cli, None, 'streamward'))\n"
        "for ctx in contexts: isinstance(ctx.command, RoutedCommand) or ctx.get_help()\n"
        "heavy()\n"
        "for ctx in contexts: ctx.get_help()\n"
        "heavy()\n"
    )
    lines = process(code=code).stdout.splitlines()
    first, last = [line for line in lines if line.startswith("HEAVY")]
    assert first == "HEAVY []" and not {"torch", "vllm", "transformers", "faust", "trl", "peft"} & set(
        re.findall(r"\w+", last)
    )


def every_command() -> dict[str, click.Command]:
    """Return the commands by their paths, with those of plugins."""
    return {ctx.command_path.partition(" ")[2]: ctx.command for ctx in _contexts(cli, None, "streamward")}


def test_every_command_and_option_has_a_sentence() -> None:
    def look(command: click.Command, path: str) -> Iterator[str]:
        if not (command.help or "").strip():
            yield path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not (parameter.help or "").strip().endswith((".", "]")):
                yield f"{path} {parameter.opts[0]}"

    found = [sentence for path, command in every_command().items() for sentence in look(command, path)]
    assert found == []


def test_no_list_of_commands_cuts_a_sentence_on_a_terminal_of_80_columns() -> None:
    groups = [path.split() for path, command in every_command().items() if isinstance(command, click.Group)]
    assert [] in groups and ["admin", "broker"] in groups
    for path in groups:
        listed = run(*path, "--help").stdout.partition("--help ")[2]
        cut = [line for line in listed.splitlines() if line.endswith("...")]
        assert listed and cut == [], path


def test_help_lists_every_command_in_one_section_and_status_doctor_and_up_first() -> None:
    listed = [str(command.name) for commands in SECTIONS.values() for command in commands]
    assert sorted(listed) == sorted(cli.commands) and listed[:3] == ["status", "doctor", "up"]
    printed = run("--help").stdout
    names = re.findall(r"^  ([a-z]+)  ", printed.partition("Start here:")[2], re.MULTILINE)
    assert [name for name in names if name in listed] == listed and sorted(names) == sorted(
        [*listed, *plugin_commands()]
    )
    assert [title for title in SECTIONS if f"\n{title}:\n" not in printed] == []


def test_version_is_printed() -> None:
    assert run("--version").output.startswith("streamward, version ")


# --- exit codes -------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> click.Group:
    @click.group(cls=Guarded)
    def root() -> None:
        pass

    @root.command()
    @pass_call
    def fail(call: object) -> None:
        raise error

    return root


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StreamwardError("x"), 1),
        (EventError("x"), 1),
        (SettingsError("x"), 2),
        (NotFoundError("x"), 3),
        (RefusedError("x"), 4),
        (LogError("x"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_ends_with_its_exit_code(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(raising(error), ["fail"])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == ("" if code == 130 else "Error: x\n")


def test_unforeseen_error_is_one_line_that_names_the_file_with_its_traceback() -> None:
    result = CliRunner().invoke(raising(ZeroDivisionError("one\ntwo")), ["fail"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "ZeroDivisionError: one" in result.stderr
    file = Path(next(word for word in result.stderr.split() if word.endswith(".traceback;")).rstrip(";"))
    assert "Traceback (most recent call last)" in file.read_text()
    file.unlink()


def test_unforeseen_error_prints_its_traceback_at_level_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(doctor, "examine", broken)
    result = run("--log-level", "debug", "doctor")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.rstrip().endswith("this should not happen: ZeroDivisionError: boom")


def test_an_error_of_the_schemas_is_a_message_too() -> None:
    from schemas.versions import SchemaError

    result = CliRunner().invoke(raising(SchemaError("lock.json entry 2 has id 3")), ["fail"])
    assert (result.exit_code, result.stderr) == (1, "Error: lock.json entry 2 has id 3\n")


def test_an_event_that_cannot_be_encoded_is_a_message_too() -> None:
    from schemas.serde import EncodeError

    result = CliRunner().invoke(raising(EncodeError("Reward.value: expected a finite number, got nan")), ["fail"])
    assert (result.exit_code, result.stderr) == (1, "Error: Reward.value: expected a finite number, got nan\n")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user as containers have them: a number, with neither HOME nor an entry in passwd."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "KAFKA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_folder_is_asked_to_set_home() -> None:
    for args in (
        ("admin", "broker", "start"),
        ("--set", "broker.data_dir=~/kafka", "admin", "broker", "start"),
        ("demo", "--steps", "1"),
    ):
        result = run(*args)
        assert result.exit_code == 2
        assert "has no home folder (no HOME, no passwd entry); set HOME to a folder it can write to" in result.stderr


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_name_decides_under_its_number() -> None:
    assert user_name() == f"uid {os.getuid()}"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["admin", "topics", "nope"], 2, "No such command 'nope'"),
        (["--set", "kafka.bootstrp=x", "admin", "topics", "list"], 2, "did you mean kafka.bootstrap?"),
        (["--config", "missing.toml", "admin", "topics", "list"], 2, "missing.toml: no such settings file"),
        (["events", "tail", "reward"], 3, "did you mean rewards?"),
        (["events", "tail", "tasks", "--from", "yesterday"], 2, "--from yesterday: expected a time as ISO 8601"),
        (["config", "show", "kafak"], 3, "'kafak'"),
        ([*NOBODY, "admin", "topics", "list"], 5, "Kafka at 127.0.0.1:1 did not answer within 0.3 s"),
        ([*NOBODY, "policy"], 5, "Kafka at 127.0.0.1:1 did not answer within 0.3 s"),
        (["--set", "policy.name=p", "train", "--fleet"], 2, "train --fleet serves every policy, and policy.name=p"),
        (["--set", "policy.name=p", "policy", "--fleet"], 2, "leave out --fleet or policy.name"),
        (
            ["admin", "broker", "status"],
            3,
            "no node runs in .streamward/kafka; start it with `streamward admin broker start`",
        ),
    ],
)
def test_a_mistake_says_what_to_do_on_stderr_and_nothing_on_stdout(args: list[str], code: int, says: str) -> None:
    result = run(*args)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stdout == ""


def stopped_node(folder: Path, port: int) -> None:
    folder.mkdir(parents=True)
    remember(folder, Node(pid=0, port=port, controller_port=port, cluster_id="c", client={}))


@pytest.mark.parametrize("folder", [".streamward/kafka", "my log"])
def test_an_embedded_node_that_is_stopped_is_named_with_the_command_that_starts_it(folder: str) -> None:
    stopped_node(Path(folder), port=1)
    Path("my.toml").write_text(f'[broker]\ndata_dir = "{folder}"\n')
    result = run("--config", "my.toml", *NOBODY, "admin", "topics", "list")
    options = "--config my.toml --set kafka.bootstrap=127.0.0.1:1 --set kafka.request_timeout_s=0.3"
    start = f"streamward {options} admin broker start"
    said = f"Error: the node in {folder}, which is 127.0.0.1:1, is stopped; start it with `{start}`\n"
    assert (result.exit_code, result.stderr) == (5, said)


def test_the_node_that_the_folder_remembers_is_used_and_named_when_it_is_stopped() -> None:
    stopped_node(Path(".streamward/kafka"), port=1)
    result = run("admin", "topics", "list")
    said = (
        "the node in .streamward/kafka, which is 127.0.0.1:1, is stopped; start it with `streamward admin broker start`"
    )
    assert (result.exit_code, result.stderr) == (5, f"Error: {said}\n")


def test_a_stopped_node_is_no_obstacle_to_what_is_archived() -> None:
    stopped_node(Path(".streamward/kafka"), port=1)
    assert "--source" not in run("query", "tasks").stderr
    Path(".streamward/archive").mkdir()
    way_out = "`streamward admin broker start`, or read only the archive with --source archive\n"
    assert run("query", "tasks").stderr.endswith(way_out)
    assert "--source" not in run("admin", "topics", "list").stderr


NAMELESS = "127.0.0.1:9092 is the default, and this folder has no node"


@pytest.mark.parametrize(
    "typed",
    [
        ("admin", "topics", "apply"),
        ("tasks", "generate", "sums", "--submit"),
        ("ask", "hello"),
        ("reward", "r1", "0.5"),
    ],
)
def test_a_command_that_writes_where_nobody_said_warns(typed: tuple[str, ...]) -> None:
    patience = ("--set", "kafka.request_timeout_s=0.2", "--set", "kafka.security_protocol=SSL")  # nobody gets in
    way_out = "set kafka.bootstrap, or start a node here with `streamward admin broker start`"
    said = run(*patience, *typed).stderr
    assert said.startswith(f"warning: {NAMELESS}; {way_out}\n") and said.count(NAMELESS) == 1
    assert NAMELESS not in run(*NOBODY, *typed).stderr
    stopped_node(Path(".streamward/kafka"), port=1)
    assert NAMELESS not in run(*patience, *typed).stderr


def test_a_command_that_only_reads_does_not_warn() -> None:
    assert NAMELESS not in run("tasks", "generate", "sums", "--count", "1").stderr


def test_a_refused_connection_ends_a_command_long_before_the_time_that_a_broker_has_for_an_answer() -> None:
    result = run(
        "--set", "kafka.bootstrap=127.0.0.1:1", "--set", "kafka.request_timeout_s=300", "admin", "topics", "list"
    )
    assert result.exit_code == 5
    assert "Kafka at 127.0.0.1:1 did not answer within 1 s" in result.stderr and "Connection refused" in result.stderr


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["statu"], "No such command 'statu'; did you mean status?"),
        (["adapters", "lsit"], "No such command 'lsit'; did you mean list?"),
        (["admin", "offsets", "zzz"], "No such command 'zzz'; there are list, skip"),
        (["topics", "apply"], "No such command 'topics'; did you mean admin topics?"),
        (["up", "--set", "a.b=1"], "--set in up; it stands before the command, as in `streamward --set … up`"),
        (["adapters", "list", "--log-level", "info"], "before the command, as in `streamward --log-level … adapters l"),
        (["adapters", "list", "demo"], "unexpected extra argument (demo); did you mean --policy demo?"),
        (["reproduce", "v9"], "unexpected extra argument (v9); did you mean --version v9?"),
        (["reproduce", "v9", "10"], "unexpected extra arguments (v9 10); did you mean --version v9?"),
        (["adapters", "promote", "9"], "Missing option '--reason'. Why; it is recorded"),
        (["adapters", "show", "nine"], "'nine' is no version; give its number, such as 20 or v20"),
        (["adapters", "show", "-1"], "No such option"),
        (["up", "--epochs", "1.5"], "'1.5' is not a whole number, at least 1"),
        (["serve", "--port", "1"], "No such option: --port; did you mean the setting serve.port? As in --set serve.p"),
        (["admin", "broker", "start", "--prot", "1"], "No such option: --prot Did you mean --port?"),
        (
            ["--set", "broker.port=1", "status"],
            "no setting is called 'broker.port'; did you mean `streamward admin broker s",
        ),
        (["--set", "serve.prot=1", "status"], "no setting is called 'serve.prot'; did you mean serve.port?"),
    ],
)
def test_a_misspelt_command_names_those_near_it(typed: list[str], says: str) -> None:
    result = run(*typed)
    assert result.exit_code == 2 and says in result.stderr


@pytest.mark.parametrize("written", ["20", "v20", 20])
def test_a_version_is_named_by_its_number_or_as_tables_show_it(written: str | int) -> None:
    assert VersionNumber(min=0).convert(written, None, None) == 20


def test_a_variable_chooses_tables_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config", "show", "batches.groups").stdout.startswith("{")
    monkeypatch.setenv("STREAMWARD_OUTPUT", "table")
    assert run("config", "show", "batches.groups").stdout.startswith("key ")
    assert run("config", "show", "batches.groups", "--output", "jsonl").stdout.startswith("{")
    monkeypatch.setenv("STREAMWARD_OUTPUT", "xml")
    result = run("config", "show")
    assert (result.exit_code, result.stderr) == (2, "Error: STREAMWARD_OUTPUT=xml: expected table, json or jsonl\n")


def test_a_demos_node_that_is_stopped_is_found_below_the_current_folder() -> None:
    stopped_node(Path(".streamward/demo/kafka"), port=1)
    result = run(*NOBODY, "audit")
    assert result.exit_code == 5
    assert "start it with `streamward --set broker.data_dir=.streamward/demo/kafka admin broker start`" in result.stderr
    Path(".streamward/demo/streamward.toml").write_text("")
    result = run(*NOBODY, "audit")
    assert "start it with `streamward --config .streamward/demo/streamward.toml admin broker start`" in result.stderr


@pytest.mark.parametrize(("origins", "mentioned"), [({}, True), ({"kafka.bootstrap": "my.toml"}, False)])
def test_a_demo_with_another_port_is_mentioned_when_no_broker_was_named(
    origins: dict[str, str], mentioned: bool
) -> None:
    stopped_node(Path(".streamward/demo/kafka"), port=1)
    Path(".streamward/demo/streamward.toml").write_text("")
    call = AppContext()
    vars(call)["settings_and_origins"] = Settings(), origins
    found = stopped_node_hint(BrokerUnreachable("no answer"), call)
    start = "start its node with `streamward --config .streamward/demo/streamward.toml admin broker start`"
    assert (found is not None and found.startswith("no answer. A demo ran here") and start in found) is mentioned


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "streams.cli", "config", "show"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()  # before anything is written: Python alone takes longer to start
        assert (child.wait(300), child.stderr.read()) == (0, "")


def test_an_answer_is_all_that_a_query_prints() -> None:
    # DuckDB's client prints what it calls leaks if the garbage of a process is not collected at its end
    answered = process("--set", "archive.store=nowhere", "query", "--source", "archive", "SELECT 1 AS one")
    assert (answered.stdout, answered.stderr) == ('{"one": 1}\n', "")


def test_what_was_imported_without_garbage_collection_is_collected_at_the_end_where_duckdb_is_loaded() -> None:
    code = "from streams.cli.runtime import importing\nwith importing(): import duckdb"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


# --- signals ----------------------------------------------------------------------------------------------------------

WAITING = """\
import sys, time
from streams.cli.runtime import until_stopped
with until_stopped() as stop:
    print("ready", flush=True)
    stop.wait()
    time.sleep(float(sys.argv[1]))  # what is in hand
print("drained", flush=True)
"""


@contextmanager
def waiting(seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WAITING, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("signs", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGTERM, signal.SIGTERM]])
def test_a_signal_lets_the_process_drain_and_end_with_0(signs: list[signal.Signals]) -> None:
    with waiting(0.5) as child:
        for sign in signs:
            child.send_signal(sign)
            time.sleep(0.05)  # equal signals that wait together are one
        out, err = child.communicate(timeout=300)
    assert (out, child.returncode) == ("drained\n", 0)
    assert err.count("stopping") == 1


def test_a_second_ctrl_c_kills() -> None:
    with waiting(30) as child:
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        assert "Ctrl-C again kills" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=300)
    assert child.returncode == -signal.SIGINT


SIGNALLED_IN_WAIT = """\
import os, signal
from streams.cli.runtime import until_stopped
with until_stopped() as stop:
    with stop._cond:  # where stop.wait() is for some instructions
        os.kill(os.getpid(), signal.SIGTERM)
    stop.wait()
"""


def test_a_signal_in_the_middle_of_a_wait_stops_the_process_too() -> None:
    child = subprocess.run([sys.executable, "-c", SIGNALLED_IN_WAIT], capture_output=True, text=True, timeout=300)
    assert (child.returncode, child.stderr.count("stopping")) == (0, 1)


SIGNALLED_IN_ANOTHER_THREAD = """\
import os, signal, threading, time
from streams.cli.runtime import until_stopped
with until_stopped() as stop:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so nothing interrupts this thread
    stop.wait()
"""


def test_a_signal_that_interrupts_no_wait_stops_the_process_too() -> None:
    child = subprocess.run(
        [sys.executable, "-c", SIGNALLED_IN_ANOTHER_THREAD], capture_output=True, text=True, timeout=300
    )
    assert (child.returncode, child.stderr.count("stopping")) == (0, 1)


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_shown(*args: str, env: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    result = run(*args, "config", "show", env=env)
    assert result.exit_code == 0, result.stderr
    return {row["key"]: row for row in map(json.loads, result.stdout.splitlines())}


def test_a_secret_in_the_arguments_is_warned_about_and_moved_to_the_environment() -> None:
    command = [*SHOW_SASL, "config", "show", "kafka", "--output", "jsonl"]
    result = process(*command)
    assert "warning: every user of this machine can read --set kafka.sasl_password" in result.stderr
    assert "set STREAMWARD_KAFKA__SASL_PASSWORD, or STREAMWARD_KAFKA__SASL_PASSWORD_FILE" in result.stderr
    assert "hunter2" not in result.stdout + result.stderr
    (row,) = [row for row in map(json.loads, result.stdout.splitlines()) if row["key"] == "kafka.sasl_password"]
    assert (row["from"], row["value"]) == ("STREAMWARD_KAFKA__SASL_PASSWORD", "**********")


def test_a_secret_in_the_arguments_is_in_the_environment_for_that_command_alone() -> None:
    assert run(*SHOW_SASL, "config", "show", "kafka.sasl_username").exit_code == 0
    assert "STREAMWARD_KAFKA__SASL_PASSWORD" not in os.environ


def test_config_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('[batches]\ngroups = 3\n[policy]\nname = "file"\n')
    shown = settings_shown(
        "--config", "my.toml", "--set", "topics.prefix=x.", env={"STREAMWARD_POLICY__NAME": "variable"}
    )
    assert (shown["batches.groups"]["value"], shown["batches.groups"]["from"]) == (3, "my.toml")
    assert (shown["policy.name"]["value"], shown["policy.name"]["from"]) == ("variable", "STREAMWARD_POLICY__NAME")
    assert (shown["topics.prefix"]["value"], shown["topics.prefix"]["from"]) == ("x.", "--set topics.prefix")
    assert (shown["topics.partitions"]["value"], shown["topics.partitions"]["from"]) == (8, "default")


def test_config_show_prints_no_secret_wherever_it_came_from() -> None:
    secret = "hunter2"
    given = {
        "scoring.judge_url": "http://judge/v1",
        "scoring.judge_model": "m",
        "scoring.judge_key": secret,
        "kafka.security_protocol": "SASL_SSL",
        "kafka.sasl_mechanism": "PLAIN",
        "kafka.sasl_username": "me",
        "kafka.sasl_password": secret,
        "kafka.client": json.dumps({"ssl.key.password": secret, "ssl.key.pem": secret, "client.rack": "r1"}),
    }
    args = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    for output in ("table", "jsonl"):
        result = run(*args, "config", "show", "--output", output)
        assert result.exit_code == 0, result.stderr
        assert secret not in result.output
        assert "r1" in result.output


def test_config_show_of_one_section_prints_only_it() -> None:
    lines = run("config", "show", "batches").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == [
        "batches.groups",
        "batches.zero_variance",
        "batches.max_policy_lag",
    ]


# --- output -----------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_jsonl_unless_a_table_is_asked_for() -> None:
    assert json.loads(run("admin", "schemas", "list").stdout.splitlines()[0])["event"] == "Task"
    assert run("admin", "schemas", "list", "--output", "table").stdout.splitlines()[0].split() == [
        "id",
        "event",
        "version",
        "sha256",
    ]


def test_schemas_check_is_silent_on_stdout_when_all_is_well() -> None:
    result = run("admin", "schemas", "check")
    assert (result.exit_code, result.stdout) == (0, "")


def test_schemas_serve_answers_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-m", "streams.cli", "admin", "schemas", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            url = json.loads(child.stdout.readline())["url"]
            with urllib.request.urlopen(f"{url}/schemas/ids/{FIRST_ID}", timeout=300) as answer:  # noqa: S310 - our own server
                assert json.loads(json.load(answer)["schema"])["name"] == "Task"
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=300)
            assert child.returncode == 0
        finally:
            child.kill()  # or leaving the block would wait for it


def test_a_text_from_the_log_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"text": "\x1b[2Jgone\r\n[bold]é"}
    show.rows([row], [show.Column("text", "text")], "table")
    assert capsys.readouterr().out.splitlines()[1] == r"\x1b[2Jgone\r\n[bold]é"


@pytest.mark.parametrize("columns, shown", [(200, ["key", "value", "about"]), (40, ["key", "value"])])
def test_a_column_of_sentences_is_left_out_where_there_is_no_room_for_one(
    columns: int, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    wanted = [show.Column("key", "key"), show.Column("value", "value"), show.Column("about", "about", optional=True)]
    show.rows([{"key": "broker.heap_mb", "value": 384, "about": "JVM heap, megabytes"}], wanted, "table")
    header = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue().splitlines()[0])
    assert header.split() == shown


def test_json_lines_have_texts_for_numbers_that_json_lacks() -> None:
    assert json.loads(show.json_line({"a": [1.5, float("nan")], "b": {"c": float("-inf")}})) == {
        "a": [1.5, "nan"],
        "b": {"c": "-inf"},
    }


def test_a_line_that_is_too_long_for_its_column_is_cut_and_the_last_column_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = show.Lines(
        [show.Column("name", "name", 4), show.Column("n", "n", 3, right=True), show.Column("rest", "rest")]
    )
    lines.add({"name": "abcdefgh", "n": 7, "rest": "x" * 300})
    assert capsys.readouterr().out == f"name    n  rest\nabcd    7  {'x' * 300}\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5120 GiB")])
def test_sizes_have_the_largest_fitting_unit(count: int, text: str) -> None:
    assert show.size(count) == text


# --- tail -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("start", Begin("start")),
        ("end", Begin("end")),
        ("-20", Begin("last", 20)),
        ("1970-01-01T00:00:02", Begin("time", 2000)),
        ("1970-01-01T01:00:02.500+01:00", Begin("time", 2500)),
    ],
)
def test_from_takes_start_end_a_count_or_a_time(text: str, begin: Begin) -> None:
    assert parse_begin(text) == begin


def test_from_takes_the_times_that_the_table_shows() -> None:
    assert parse_begin(show.moment(1_700_000_000_123)) == Begin("time", 1_700_000_000_123)


def test_merging_by_time_never_turns_the_offsets_of_a_partition_around() -> None:
    def record(partition: int, offset: int, at: int) -> Record:
        return Record(Coordinates("t", partition, offset), at, None, None)

    # partition 0 has a record with an older time behind a newer one: a producer with a slow clock
    records = [record(0, 0, 50), record(0, 1, 10), record(1, 0, 20), record(1, 1, 60)]
    order = [(r.at.partition, r.at.offset) for r in merged(records)]
    assert order == [(1, 0), (0, 0), (0, 1), (1, 1)]


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_ends_with_the_code_of_the_worst_and_still_looks_at_the_rest() -> None:
    result = run(*NOBODY, "doctor")
    found = {row["check"]: row["state"] for row in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 5
    assert found["broker"] == "failed"
    assert found["topics"] == "skipped"
    assert found["schemas"] == "ok"
    assert set(found) == {"broker", "topics", "schemas", "model", "disk"}


def test_doctor_with_bad_settings_says_which_and_ends_with_2() -> None:
    result = run("--set", "trainer.loss=cispo", "doctor")
    assert result.exit_code == 2
    assert "trainer.epsilon_high=5.0" in json.loads(result.stdout.splitlines()[0])["what"]


def examined(tmp_path: Path, **sections: object) -> list[doctor.DoctorFinding]:
    nobody = Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.2)
    settings = Settings(kafka=nobody, broker=Broker(data_dir=tmp_path / "kafka")).model_copy(update=sections)
    return doctor.examine(lambda: (settings, {BOOTSTRAP: "a test"}))


def test_doctor_names_a_model_folder_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    gone, whole = tmp_path / "gone", tmp_path / "model"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    for base, says in ((gone, "there is no such folder"), (whole, "has no *.safetensors")):
        finding = next(f for f in examined(tmp_path, model=Model(base=str(base))) if f.check == "model")
        assert (finding.state, finding.exit_code) == ("failed", 2)
        assert says in finding.what


def test_doctor_finds_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_FAILED_BYTES", 2**60)  # more than any disk has
    finding = next(f for f in examined(tmp_path) if f.check == "disk")
    assert (finding.state, finding.exit_code) == ("failed", 1)
    assert "free at" in finding.what


# --- scoring try ------------------------------------------------------------------------------------------------------


@pytest.fixture
def capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scorer that reads the verifier, and tasks for it; the current one."""
    monkeypatch.setenv("STREAMWARD_SCORING__MODULES", "capscore,.")
    (tmp_path / "capscore.py").write_text(
        "from streamward import entry_point\n\n\n"
        "@entry_point('capital/1')\n"
        "def capital(task, response, settings):\n"
        "    share = settings.get('share', 1.0)\n"
        "    return share * (task.verifier['answer'] in response.text), {'length': len(response.text)}\n"
    )
    source = '"reward_sources": [{"name": "capscore:capital", "settings": {"share": 0.5}}]'
    (tmp_path / "capitals.jsonl").write_text(
        f'{{"prompt": "Capital of France?", "verifier": {{"answer": "Paris"}}, {source}}}\n'
        f'{{"prompt": "Capital of Spain?", "verifier": {{"city": "Madrid"}}, {source}}}\n'
    )
    (tmp_path / "capitals.csv").write_text("question,answer\nCapital of France?,Paris\n")
    return tmp_path


def test_a_scorer_is_tried_without_a_broker_and_reads_the_verifier_as_a_mapping(capitals: Path) -> None:
    tried = ["scoring", "try", "capscore:capital", "--task", "capitals.jsonl:1", "--text", "Paris!"]
    found = json.loads(process(*tried).stdout)
    assert (found["value"], found["components"], found["version"]) == (0.5, {"length": 6.0}, "capital/1")
    tried[2] = "capscore:capital={}"
    assert json.loads(process(*tried).stdout)["value"] == 1.0


def test_a_scorer_is_tried_on_a_line_of_a_table_whose_columns_are_mapped(capitals: Path) -> None:
    tried = ["scoring", "try", "capscore:capital", "--task", "capitals.csv:2", "--text", "Paris!"]
    assert "prompt" in run(*tried).stderr
    result = run(*tried, "--map", "prompt=question", "--output", "jsonl")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["value"] == 1.0


@pytest.mark.parametrize(
    ("tasks", "scorer", "says"),
    [
        ("capitals.csv", "capscore:capitol", "capscore.py, has no function 'capitol'; did you mean capital?"),
        ("capitals.csv", "capscores:capital", "scorer capscores:capital cannot be loaded: No module named 'capscores'"),
        ("capitals.csv", "broken:capital", "broken:capital raised ZeroDivisionError: division by zero"),
        ("named.jsonl", "exact", "capscore.py, has no function 'town'"),
        ("named.jsonl", "judge", "set scoring.judge_url"),
    ],
)
def test_up_starts_nothing_if_a_scorer_cannot_be_loaded(
    capitals: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, scorer: str, says: str
) -> None:
    monkeypatch.setenv("STREAMWARD_SCORING__MODULES", "capscore,capscores,broken,.")
    Path("broken.py").write_text("1 / 0\n")
    Path("named.jsonl").write_text('{"question": "2?", "answer": "2", "reward_sources": ["capscore:town"]}\n')
    result = run("up", "--tasks", tasks, "--map", "prompt=question", "--scorer", scorer)
    counts, error = result.stderr.split("\n", 1)
    assert result.exit_code == 2 and counts.startswith(f"{tasks}: "), result.stderr
    assert error.startswith("Error: nothing was started: "), result.stderr
    assert says in result.stderr and not Path(".streamward").exists()


def test_a_scorer_without_an_opinion_is_tried_and_says_so(capitals: Path) -> None:
    text = (capitals / "capscore.py").read_text()
    (capitals / "capscore.py").write_text(
        text.replace("    share =", "    if not response.text:\n        return None\n    share =")
    )
    done = process("scoring", "try", "capscore:capital", "--task", "capitals.jsonl:1", "--text", "")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["value"], found["abstained"], found["version"]) == (None, True, "capital/1")


def test_a_scorer_that_raises_is_tried_and_says_where(capitals: Path) -> None:
    done = process("scoring", "try", "capscore:capital", "--task", "capitals.jsonl:2", "--text", "Madrid")
    assert done.returncode == 1 and done.stdout == ""
    error = f"capscore:capital raised KeyError: 'answer' ({capitals / 'capscore.py'}, line 7)"
    assert done.stderr.strip() == f"Error: capscore:capital gave no score: exception: {error}"


@pytest.mark.parametrize(
    ("name", "task", "code", "says"),
    [
        ("capscore.capital", "capitals.jsonl:1", 2, "is called 'capscore.capital'; did you mean capscore:capital? "),
        ("exakt", "capitals.jsonl:1", 2, "exakt: no scorer is called 'exakt'; did you mean exact?"),
        ("exact", "capitals.jsonl:3", 3, "capitals.jsonl has no task in line 3"),
        ("exact", "cities.jsonl", 3, "cities.jsonl: No such file or directory; give a file of JSON lines"),
        ("judge", "capitals.jsonl:1", 2, "set scoring.judge_url"),
        ("train:x", "capitals.jsonl:1", 2, "add train to scoring.modules"),
        ("exact", "capitals.csv:1", 3, "capitals.csv: line 1 is the header; the first task is in line 2"),
    ],
)
def test_what_cannot_be_tried_is_refused(capitals: Path, name: str, task: str, code: int, says: str) -> None:
    result = run("scoring", "try", name, "--task", task, "--text", "Paris")
    assert result.exit_code == code and says in result.stderr
