"""Runs of threads that an agent's program answers: as tasks, by the runner of tasks, whichever process is killed."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.agents.registry.registration import registrations
from plugins.agents.runs.agent_process import AgentProcess, ProgramRun, run_process, task_for_agent
from plugins.agents.runs.agent_runner import AgentPlan, AgentWork, run as run_agent
from schemas.conventions import CONVERSATION
from schemas.events import AgentProgram, Task, ThreadEvent, TrajectoryEvent, derive_id
from streams.kafka import admin
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from tests.plugins.threads.thread_server import SCRIPT, Client
from tests.support.agent_server import ServeProcess, audited, settings_of
from tests.support.processes import read, until

pytestmark = pytest.mark.kafka
PROGRAM = AgentProgram(program="tests", file=None, sha256=None, commit=None, dirty=None)


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    return settings_of(kafka_bootstrap, tmp_path, SCRIPT, acknowledge_s=60)


def ask_model(given: ProgramRun) -> str:
    """Ask the model as a program would, with all that its thread said."""
    body = {"model": "sums", "messages": task_for_agent(given.task)["messages"]}
    request = urllib.request.Request(  # noqa: S310 - always http://
        f"{given.base_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - always http://
        return str(json.load(answer)["choices"][0]["message"]["content"])


Work = Callable[[ProgramRun, threading.Event], TrajectoryEnd]


@contextmanager
def running(settings: Settings, url: str, folder: Path, work: Work, **changes: Any) -> Iterator[None]:
    """Run an agent `guide` while the block runs, which begins once it is registered."""
    stop = threading.Event()
    whole: dict[str, Any] = {"agent_id": "guide", "program": PROGRAM, "parallel": 2, "answers_threads": True}
    plan = AgentPlan(work=lambda _: AgentWork(work), server=url, folder=folder, **whole | changes)
    thread = threading.Thread(target=partial(run_agent, settings, plan, stop=stop))
    thread.start()
    try:
        until(lambda: "guide" in registrations(settings), "the agent to be registered")
        yield
    finally:
        stop.set()
        thread.join()


def request(client: Client, thread: str, text: str = "1 + 7 =") -> str:
    return str(client.send("POST", "/runs", {"thread_id": thread, "input": text, "agent_id": "guide"})["run_id"])


def wait(client: Client, run_id: str) -> tuple[str, list[str]]:
    """Return the status of a run once it has ended, and the messages of its thread."""
    answer = client.send("GET", f"/runs/{run_id}/wait")
    return answer["run"]["status"], [message["content"] for message in answer["messages"]]


def ends_of(settings: Settings) -> dict[str, ThreadEvent]:
    return {event.run_id or "": event for _, event in read(settings, ThreadEvent) if event.kind == "run_ended"}


def test_a_run_is_answered_by_what_its_program_prints_and_names_a_turn_that_says_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    def work(given: ProgramRun, _: threading.Event) -> TrajectoryEnd:
        said = ask_model(given)
        return TrajectoryEnd("completed", "", output=said if said == "8" else f"twice that is {said}\n")

    with audited(settings) as url, running(settings, url, tmp_path, work):
        client = Client(url, {})
        thread = client.thread()
        first = request(client, thread)
        assert wait(client, first) == ("success", ["1 + 7 =", "8"])
        second = request(client, thread, "and twice that?")
        assert wait(client, second) == ("success", ["1 + 7 =", "8", "and twice that?", "twice that is 16"])
    ends, tasks = ends_of(settings), {task.metadata["run_id"]: task for _, task in read(settings, Task)}
    began = [event for _, event in read(settings, TrajectoryEvent) if event.kind == "started"]
    of_thread = {CONVERSATION: derive_id(CONVERSATION, thread, "guide", "sums")}
    assert [of_thread.items() <= event.metadata.items() for event in began] == [True, True]
    assert ends[first].turn_id is not None and ends[second].turn_id is None
    assert [(tasks[run].purpose, tasks[run].agent, len(tasks[run].messages)) for run in (first, second)] == [
        ("serve", "guide", 1),
        ("serve", "guide", 3),
    ]


def test_a_program_that_dies_fails_its_run_by_name_and_no_other(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "guide.py"
    file.write_text(
        "import os\nif 'twice' in os.environ['STREAMWARD_PROMPT']:\n    exit('no sums today')\nprint('eight')\n"
    )
    process = AgentProcess.from_text(f"{sys.executable} {file}")
    with audited(settings) as url, running(settings, url, tmp_path / "runs", partial(run_process, process)):
        client = Client(url, {})
        dies, lives = request(client, client.thread(), "and twice that?"), request(client, client.thread())
        assert wait(client, lives) == ("success", ["1 + 7 =", "eight"])
        assert wait(client, dies)[0] == "error"
    error = ends_of(settings)[dies].error or ""
    assert error.startswith("the program of agent guide failed: ") and "no sums today" in error


def test_a_cancelled_run_ends_its_program_s_run_and_starts_none_that_had_not_begun(
    settings: Settings, tmp_path: Path
) -> None:
    begun, go_on = list[str](), threading.Event()

    def work(given: ProgramRun, _: threading.Event) -> TrajectoryEnd:
        begun.append(given.task.metadata["run_id"])
        go_on.wait()
        return TrajectoryEnd("completed", "", output="too late")

    def ended() -> list[TrajectoryEvent]:
        return [event for _, event in read(settings, TrajectoryEvent) if event.kind == "ended"]

    with audited(settings) as url:
        client = Client(url, {})
        try:
            with running(settings, url, tmp_path, work, parallel=1):
                first, second = (request(client, client.thread()) for _ in range(2))
                until(lambda: len(begun) == 1, "a program")
                until(lambda: len(read(settings, Task)) == 2, "both tasks")
                for run in (first, second):
                    client.send("POST", f"/runs/{run}/cancel", status=204)
                until(lambda: [event.ending for event in ended()] == ["cancelled"] * 2, "both ends")
                go_on.set()
                third = request(client, client.thread())
                assert wait(client, third)[0] == "success"
        finally:
            go_on.set()
        assert [client.send("GET", f"/runs/{run}")["status"] for run in (first, second)] == ["interrupted"] * 2
    assert begun[1:] == [third]


def test_the_program_of_a_cancelled_run_is_ended(settings: Settings, tmp_path: Path) -> None:
    file, noted = tmp_path / "guide.py", tmp_path / "pid"
    file.write_text(f"import os, time\nopen({str(noted)!r}, 'w').write(f'{{os.getpid()}} ')\ntime.sleep(3600)\n")
    process = AgentProcess.from_text(f"{sys.executable} {file}")
    with audited(settings) as url, running(settings, url, tmp_path / "runs", partial(run_process, process)):
        client = Client(url, {})
        run = request(client, client.thread())
        until(lambda: noted.exists() and noted.read_text().endswith(" "), "the program")
        client.send("POST", f"/runs/{run}/cancel", status=204)
        until(lambda: not psutil.pid_exists(int(noted.read_text())), "the end of the program")


def test_a_program_that_ends_with_its_tasks_is_not_asked_by_threads(settings: Settings, tmp_path: Path) -> None:
    def work(given: ProgramRun, _: threading.Event) -> TrajectoryEnd:
        raise AssertionError("a thread started it")

    with audited(settings) as url, running(settings, url, tmp_path, work, answers_threads=False):
        client = Client(url, {})
        assert wait(client, request(client, client.thread())) == ("success", ["1 + 7 =", "8"])
    assert read(settings, Task) == []


@pytest.mark.kills
def test_after_kill_9_of_the_server_a_program_is_not_started_again_and_its_answer_ends_the_run_once(
    settings: Settings, tmp_path: Path
) -> None:
    begun, go_on = list[str](), threading.Event()

    def work(given: ProgramRun, _: threading.Event) -> TrajectoryEnd:
        begun.append(given.trajectory_id)
        go_on.wait()
        return TrajectoryEnd("completed", "", output=ask_model(given))

    admin.apply_topics(settings)
    server = ServeProcess(settings, tmp_path)
    client = Client(server.url, {})
    try:
        with running(settings, server.url, tmp_path / "runs", work):
            run = request(client, client.thread())
            until(lambda: bool(begun), "a program")
            server.kill()
            server.start()
            go_on.set()
            assert wait(client, run) == ("success", ["1 + 7 =", "8"])
    finally:
        go_on.set()
    assert len(begun) == len(read(settings, Task)) == 1
    events = [event.kind for _, event in read(settings, ThreadEvent) if event.run_id == run]
    assert events == ["run_requested", "run_ended"]
    server.stop()
