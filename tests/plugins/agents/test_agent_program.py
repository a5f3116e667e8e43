"""The record of an agent's program."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugins.agents.runs import agent_program
from schemas.events import AgentProgram
from streamward import AgentManager
from tests.unit.test_plugins import run_with

CODE = "def answer(prompt):\n    return prompt\n"
SHA256 = hashlib.sha256(CODE.encode()).hexdigest()


class Own(AgentManager):
    def _process_one(self, agent_id: str, prompt: dict[str, object]) -> object:
        return None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a program and a package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text(CODE)
    (tmp_path / "bots").mkdir()
    (tmp_path / "bots" / "coder.py").write_text(CODE)
    return tmp_path


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    return subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("recorded", "file"),
    [
        (lambda: agent_program.of_command("python -u my_agent.py --fast"), "my_agent.py"),
        (lambda: agent_program.of_entry_point("bots.coder:answer"), "bots/coder.py"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_program_is_recorded_with_the_digest_of_the_file_that_has_its_code(
    recorded: Callable[[], AgentProgram], file: str
) -> None:
    program = recorded()
    assert (program.file, program.sha256, program.commit, program.dirty) == (file, SHA256, None, None)


def test_the_commit_is_that_of_the_working_folder_and_tracked_changes_make_it_dirty(here: Path) -> None:
    git("init", "--quiet")
    assert agent_program.describe("-").commit is None, "there is none yet"
    git("add", ".")
    git("commit", "--quiet", "-m", "an agent")
    (here / ".streamward").mkdir()
    (here / ".streamward" / "task.json").write_text("{}")
    about: dict[str, Any] = {
        "file": "my_agent.py",
        "sha256": SHA256,
        "commit": git("rev-parse", "HEAD"),
        "dirty": False,
    }
    assert agent_program.of_command("python my_agent.py") == AgentProgram(program="python my_agent.py", **about)
    (here / "bots" / "coder.py").write_text(f"{CODE}\n")
    assert agent_program.of_command("python my_agent.py").dirty is True


@pytest.mark.usefixtures("here")
def test_what_names_no_file_here_is_recorded_by_its_name() -> None:
    assert agent_program.of_entry_point("no.such:thing") == AgentProgram(program="no.such:thing")
    tool = agent_program.of_command("git --version")
    assert (tool.program, tool.file) == ("git --version", "git") and tool.sha256 is not None
    assert agent_program.of_class(Own).file == "test_agent_program.py"


def test_an_episode_is_not_played_where_no_plugin_plays_environments(tmp_path: Path) -> None:
    played = run_with(tmp_path, "--set", "plugins.load=agents", "agents", "run", "--environments")
    assert played.returncode == 2 and "no plugin that plays environments is loaded" in played.stderr
