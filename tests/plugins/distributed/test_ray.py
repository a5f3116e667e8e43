"""What runs on Ray, as far as it needs no Ray: what is asked for, what is refused, and how ranks and agents end.

The rest is tests/plugins/distributed/test_ray_launcher.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr

from plugins.distributed import ray_agents, ray_cluster
from plugins.distributed.ray_agents import AgentLost, RayAgent
from plugins.distributed.ray_cluster import Room
from streams.cli.root import cli
from streams.errors import EXIT_RESTART, SettingsError
from streams.settings.model import Policy, Scoring, Settings
from trainer.ranks.launcher import RankRun
from trainer.step.model import LIBRARIES

ROOT = Path(__file__).parents[3]
JUDGE = Scoring(judge_url="http://judge/v1", judge_model="j", judge_key=SecretStr("sk-1"))
HERE = {"streamward": "0.2.0", "torch": "2.13.0", "streamward's code": "a" * 12}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("train", "--launcher", "ray"), ("policy", "--on", "ray"), ("scoring", "--on", "ray")]
)
def test_without_ray_a_command_says_how_to_get_it(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    done = run(*words)
    assert done.exit_code == 2
    assert f"Error: {' '.join(words)} needs ray, which is not installed here" in done.stderr
    assert "`pip install 'streamward[ray]'`, on every node" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("policy", "--replicas", "2"), "--replicas has no effect without --on"),
        (("scoring", "--replicas", "2"), "--replicas has no effect without --on"),
        (("scoring", "--on", "ray", "try"), "--on and --replicas have no effect on scoring try"),
        (("policy", "--on", "ray", "--replicas", "0"), "0 is not in the range x>=1"),
        (("train", "--launcher", "spark"), "'spark' is not 'ray'"),
    ],
)
def test_options_without_effect_are_refused(words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and says in done.stderr


def test_two_launchers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    done = run("--set", "trainer.processes=2", "train", "--launcher", "ray")
    assert done.exit_code == 2 and "WORLD_SIZE is set by another launcher; use one of them" in done.stderr


@pytest.mark.parametrize("words", [("train", "--launcher", "ray"), ("policy", "--on", "ray")])
def test_a_device_of_one_machine_is_refused(words: tuple[str, ...]) -> None:
    done = run("--set", "model.device=cuda:1", *words)
    assert done.exit_code == 2 and "on Ray each process gets its own; set model.device=cuda" in done.stderr


@pytest.mark.parametrize(
    ("there", "has_folder", "says"),
    [
        ({}, True, "Ray's node 10.0.0.7 has no streamward, and this one 0.2.0; all nodes need the same"),
        ({**HERE, "torch": "2.12.1"}, True, "Ray's node 10.0.0.7 has torch 2.12.1, and this one 2.13.0"),
        ({**HERE, "streamward's code": "b" * 12}, True, "Ray's node 10.0.0.7 has streamward's code bbbbbbbbbbbb, and"),
        (HERE, False, "Ray's node 10.0.0.7 has no folder /work, where this command runs"),
    ],
)
def test_a_node_that_is_not_as_this_one_is_refused_by_name(there: dict[str, str], has_folder: bool, says: str) -> None:
    with pytest.raises(SettingsError, match=says.replace(".", r"\.")):
        ray_cluster.refuse_other_node("10.0.0.7", has_folder, there, HERE, "/work")


def test_a_node_that_is_as_this_one_is_taken() -> None:
    ray_cluster.refuse_other_node("10.0.0.7", True, {**HERE, "more": "1"}, HERE, "/work")


def test_what_looks_at_a_node_finds_what_decides_bytes_and_nothing_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ray_cluster.look_here(ray_cluster.LOOK, ["streamward", *LIBRARIES, "no-such-package"])
    assert ray_cluster.versions(found).keys() == {"python", "streamward", "streamward's code", *LIBRARIES}
    monkeypatch.setenv("PYTHONPATH", "")
    code = [sys.executable, "-S", "-c", ray_cluster.LOOK, "streamward"]  # as on a node that has only Python
    done = subprocess.run(code, cwd="/", capture_output=True, text=True, check=True)
    assert ray_cluster.versions(done.stdout).keys() == {"python"}


# --- what is asked for, and sent --------------------------------------------------------------------------------------


def test_ray_is_asked_for_a_cpu_a_thread_and_a_gpu_where_the_device_is_one() -> None:
    assert ray_cluster.room(8, 2, "cuda").bundle() == {"CPU": 2, "GPU": 1}
    assert ray_cluster.room(2, 0, "cpu") == Room(2, 1, 0) and Room(2, 1, 0).bundle() == {"CPU": 1}


def test_a_process_has_the_settings_of_the_command_and_none_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "streamward.toml").write_text("[policy]\nthreads = 7\n")
    settings = Settings(policy=Policy(name="math"), scoring=JUDGE)
    sent = ray_cluster.work(settings, ["config", "show", "--output", "jsonl"], "warning")
    monkeypatch.setenv("STREAMWARD_POLICY__ROUND_TASKS", "9")
    with ray_cluster.child_of(sent, {}) as child:
        assert child.wait(300) == 0
    rows = {row["key"]: row["value"] for row in map(json.loads, capfd.readouterr().out.splitlines())}
    assert (rows["policy.name"], rows["policy.threads"], rows["policy.round_tasks"]) == ("math", 1, 16)
    assert sent.folder == str(tmp_path) and "sk-1" not in sent.command
    assert sent.variables["STREAMWARD_SCORING__JUDGE_KEY"] == "sk-1"


def test_a_rank_has_the_variables_of_a_launcher(capfd: pytest.CaptureFixture[str]) -> None:
    sent = ray_cluster.work(Settings(), ["train"], "warning")
    with ray_cluster.child_of(sent, {"WORLD_SIZE": "3", "RANK": "0"}) as child:
        assert child.wait(300) == 2
    assert "WORLD_SIZE is 3, so a launcher started 3 processes" in capfd.readouterr().err


def test_a_process_ends_with_the_one_that_started_it() -> None:
    program = "import time; from streams.processes.signals import end_with_parent; end_with_parent(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(300) == EXIT_RESTART
    finally:
        child.kill()
        child.wait()


# --- how they end -----------------------------------------------------------------------------------------------------


def ends(command: str, agent_of: Settings, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how an agent ends that runs `command`."""
    monkeypatch.setattr(ray_agents, "AGAIN_S", 0.01)
    return RayAgent(ray_cluster.work(agent_of, command.split(), "error")).run()


@pytest.mark.parametrize(("command", "code"), [("config show", 0), ("no-such-command", 2), ("config show no.such", 3)])
def test_an_agent_that_would_end_the_same_way_again_is_not_started_again(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends(command, Settings(), monkeypatch) == code


def test_an_agent_whose_log_is_unreachable_is_started_again(nowhere: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentLost, match="the agent ended with 5"):
        ends("admin topics list", nowhere, monkeypatch)


def test_an_agent_that_was_asked_to_end_is_not_started() -> None:
    agent = RayAgent(ray_cluster.work(Settings(), ["no-such-command"], "error"))
    agent.ask_to_end()
    assert agent.run() == 0


def test_ranks_are_started_again_until_one_of_them_decides_how_all_end() -> None:
    run = RankRun(2)
    assert run.record_end(1, -9) is None and run.record_end(0, EXIT_RESTART) is None and run.code() is None
    run.record_start(0)
    run.record_start(1)
    assert run.record_end(0, 0) == 0
    assert run.record_end(1, EXIT_RESTART) == 0, "it saw rank 0 go"


@pytest.mark.parametrize(("rank", "code"), [(0, 4), (0, 5), (1, 2)])
def test_a_rank_that_is_refused_decides_it(rank: int, code: int) -> None:
    run = RankRun(2)
    assert run.record_end(rank, code) == code
    assert run.record_end(1 - rank, EXIT_RESTART) == code == run.code()


def test_ranks_that_were_asked_to_end_before_they_had_begun_end_well() -> None:
    run = RankRun(2)
    run.stop()
    assert run.is_stopping() and run.silent_s() < 60 and run.record_end(0, -signal.SIGTERM) == 0
