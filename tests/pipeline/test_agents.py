"""Tasks that name an agent, all the way: runs, turns, responses, rewards, groups; and a manager that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from schemas.events import AdvantagedGroup, AgentEvent, Batch, Response, Reward, Task, TrajectoryEvent
from streams.cli.root import cli
from streams.settings.load import to_env
from streams.settings.model import Batches, Settings
from streams.stages.scoring import agent as scoring
from tests.support.agent_server import serving, settings_of, turns
from tests.support.processes import command, environment, read, running, said, until

pytestmark = pytest.mark.kafka

AGENT = """
import json, os, sys, time, urllib.request

def ask(messages):
    body = json.dumps({"model": "sums", "messages": messages}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

def first_of(count):
    for number in range(count):
        try:
            os.close(os.open(os.path.join(sys.argv[1], f"run-{number}"), os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            pass

number = first_of(1000)
messages = [{"role": "user", "content": os.environ["STREAMWARD_PROMPT"]}]
messages.append(ask(messages))
if "wait" in sys.argv and number:
    time.sleep(60)
messages.append({"role": "user", "content": "8" if number % 2 else "9"})
print(ask(messages)["content"])
sys.exit("I gave up" if number == 3 else 0)
"""
"""It says what it was told to; every other run is right, and one fails."""


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    made = settings_of(kafka_bootstrap, tmp_path, {})
    return made.model_copy(update={"batches": Batches(groups=1)})


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """The command line of an agent, without arguments."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "numbers").mkdir()
    return [f"{sys.executable} {tmp_path / 'agent.py'} {tmp_path / 'numbers'}"]


def run(settings: Settings, *arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, env=to_env(settings))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def scorers(settings: Settings) -> Iterator[None]:
    """Scoring, while the test runs."""
    stop = threading.Event()
    thread = threading.Thread(target=scoring.run, args=(settings,), kwargs={"stop": stop})
    thread.start()
    yield
    stop.set()
    thread.join()


def test_tasks_of_an_agent_become_groups_that_the_trainer_gets(
    settings: Settings, agent: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lines = [{"prompt": f"{n} + {8 - n} =", "answer": 8, "group_size": 4} for n in range(2)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with serving(settings):
        request.getfixturevalue("scorers")
        with running(settings, tmp_path, "streams"):
            asked = (
                "agents",
                "run",
                "adder",
                "--output",
                "jsonl",
                "--tasks",
                str(tmp_path / "tasks.jsonl"),
                "--parallel",
                "8",
            )
            folder = ("--folder", str(tmp_path / "runs"))
            ended = run(settings, *asked, "--command", agent[0], *folder)
            assert json.loads(ended) == {"completed": 7, "failed": 1}
            until(lambda: len(read(settings, Batch)) == 2, "two batches", folder=tmp_path)
            run(settings, "audit")
    groups = [group for _, group in read(settings, AdvantagedGroup)]
    assert sorted(len(group.responses) for group in groups) == [3, 4]
    rewards = Counter(reward.value for _, reward in read(settings, Reward))
    assert rewards == {1.0: 3, 0.0: 4}
    for group in groups:
        for member in group.responses:
            assert 0 < member.loss_mask.trained < len(member.completion_token_ids)
    [registered] = [event for _, event in read(settings, AgentEvent)]
    assert (registered.agent_id, registered.type, registered.model_id) == ("adder", "PROMPT_BASED", "sums")
    assert len(turns(settings, "adder")) == 16
    again = run(settings, *asked, "--command", agent[0], *folder)
    assert json.loads(again) == {"runs": 0}


def test_after_kill_9_of_the_manager_each_run_ends_once_and_none_that_ended_runs_again(
    settings: Settings, agent: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "4 + 4 =", "answer": 8, "group_size": 4}\n')
    with serving(settings):
        asked = (
            "agents",
            "run",
            "adder",
            "--output",
            "jsonl",
            "--tasks",
            str(tmp_path / "tasks.jsonl"),
            "--folder",
            str(tmp_path / "runs"),
        )
        with (tmp_path / "agents.log").open("w") as log:
            waiting = [*asked, "--parallel", "2", "--command", f"{agent[0]} wait"]
            manager = subprocess.Popen(command(*waiting), env=environment(settings), stderr=log, stdout=log)
        # the first run ends, two begin and wait, the last does not begin
        until(lambda: len(turns(settings, "adder")) == 4, "two runs to wait", folder=tmp_path)
        manager.kill()
        manager.wait()
        (tmp_path / "numbers" / "run-3").touch()
        assert [response.error for _, response in read(settings, Response)] == [None]
        ended = run(settings, *asked, "--command", agent[0])
        assert json.loads(ended) == {"completed": 2, "failed": 2}, said(tmp_path)
    errors = Counter(response.error for _, response in read(settings, Response))
    gone = "failed: manager_gone: whoever started its process did not see it end"
    assert errors == {None: 2, gone: 2}
    kinds = Counter((event.trajectory_id, event.kind) for _, event in read(settings, TrajectoryEvent))
    assert len(kinds) == 8 and set(kinds.values()) == {1}
    assert [task.agent for _, task in read(settings, Task)] == ["adder"]
