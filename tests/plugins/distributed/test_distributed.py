"""What is refused before an engine works, and what becomes of an error on an executor: without any engine."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plugins.distributed import node_probe
from plugins.distributed.data_engine import executor_error
from plugins.distributed.executor import ReleaseCheck, release
from plugins.distributed.node_check import check_node
from plugins.distributed.pieces import for_executors
from schemas.events import RewardSource
from streams.cli.root import cli
from streams.errors import LogError, SettingsError
from streams.plugins import engines
from streams.settings.model import Archive, Kafka, Settings
from streams.tools.replay import run_replay as replay
from streams.tools.replay.run_replay import ReplayRequest
from streams.tools.replay.selection import Selection

STORE = "/archive"
NODE = {"host": "node-7", "python": "/usr/bin/python3", "unseen": []}


def same() -> dict[str, Any]:
    return {**NODE, **release()._asdict()}


def test_a_node_that_is_as_this_process_is_taken(tmp_path: Path) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "file").touch()
    check_node("ray", same(), release(), STORE)
    check_node("spark", node_probe.describe(str(tmp_path), ("rewards",)), release(), STORE)


@pytest.mark.parametrize(
    ("differs", "says"),
    [
        ({"error": "ModuleNotFoundError: No module named 'streams'"}, "cannot run Streamward: ModuleNotFoundError"),
        ({"version": "0.1.0"}, "has Streamward 0.1.0"),
        ({"code": "abc"}, "what it makes may have other bytes"),
        ({"schemas": release().schemas[:-1]}, f"lacks the schema {release().schemas[-1]} of schemas/lock.json"),
        ({"unseen": ["rewards"]}, "does not see rewards of the archive in /archive"),
    ],
)
@pytest.mark.parametrize("name", ["ray", "spark"])
def test_any_other_node_is_refused_with_its_name_and_what_to_do(name: str, differs: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check_node(name, same() | differs, release(), STORE)
    text = str(raised.value)
    assert text.startswith(f"--on {name}: node-7 (/usr/bin/python3)") and says in text and "Nothing was written" in text


def test_a_node_that_sees_no_archive_says_so(tmp_path: Path) -> None:
    found = node_probe.describe(str(tmp_path), ("rewards", "tasks"))
    assert found["unseen"] == ["rewards", "tasks"]


def test_work_is_not_done_under_another_release() -> None:
    other = release()._replace(code="abc")
    from schemas import ids as numbering

    with pytest.raises(SettingsError, match=r"expected 0\.\d+\.\d+ \(abc\); install the same on every node"):
        list(ReleaseCheck(lambda _: iter(()), other, numbering.current())(0))


def test_an_executors_error_is_found_in_what_the_engine_makes_of_it() -> None:
    wrapped = RuntimeError("the task failed")
    wrapped.__cause__ = LogError("rewards[0]: gone")
    assert executor_error("ray", wrapped) is wrapped.__cause__
    text = "An exception was thrown from the Python worker.\n  File x\nstreams.errors.LogError: rewards[0]: gone\n"
    made = executor_error("spark", RuntimeError(text))
    assert (type(made), str(made)) == (LogError, "rewards[0]: gone")
    missing = executor_error("spark", RuntimeError("  File x\nModuleNotFoundError: No module named 'streams'\n"))
    assert isinstance(missing, SettingsError) and "No module named 'streams'" in str(missing)
    other = executor_error("spark", ValueError("Job aborted\nno space left on device"))
    assert str(other) == "--on spark: ValueError: no space left on device; see the engine's own log"


def test_no_secret_and_no_address_is_sent(tmp_path: Path) -> None:
    kafka = Kafka.model_validate({"bootstrap": "broker:1", "client": {"ssl.key.password": "hush"}})
    settings = Settings(kafka=kafka, archive=Archive(store=str(tmp_path)))
    sent = pickle.dumps(for_executors(settings))
    assert b"hush" in pickle.dumps(settings) and b"hush" not in sent and b"broker:1" not in sent


def test_a_relative_archive_has_its_whole_path_on_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert for_executors(Settings(archive=Archive(store="kept"))).archive.store == str(tmp_path / "kept")


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_an_engine_that_is_not_installed_is_refused_before_the_log_is_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda package: None)
    asked = ReplayRequest(name="x", selection=Selection(policy="p"), folder=tmp_path / "x", train=False)
    with pytest.raises(SettingsError, match=rf"pip install 'streamward\[{name}\]'"):
        replay.run(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), asked, stop=threading.Event(), on=name)
    assert not (tmp_path / "x").exists()


def test_new_scores_and_an_engine_exclude_each_other(tmp_path: Path) -> None:
    scorers = (RewardSource(name="length"),)
    asked = ReplayRequest(
        name="x", selection=Selection(policy="p"), folder=tmp_path / "x", train=False, scorers=scorers
    )
    with pytest.raises(SettingsError, match=r"--on ray copies the recorded rewards.*leave one out"):
        replay.run(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), asked, stop=threading.Event(), on="ray")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["replay", "run", "x", "--on", "ray", "--source", "log"], "--on ray reads the archive, and --source log"),
        (["export", "there", "--on", "spark", "--source", "log"], "--on spark reads the archive, and --source log"),
        (["export", "there", "--on", "spark", "--format", "conversations"], "--on spark exports groups"),
        (["export", "there", "--on", "ray", "--format", "interactions"], "--on ray exports groups"),
    ],
)
def test_options_that_an_engine_cannot_follow_are_refused(
    args: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, args)
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "there").exists()
