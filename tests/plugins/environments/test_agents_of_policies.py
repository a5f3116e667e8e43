"""One agent for several policies: every task is run, whoever reads it first, and one that waits for nobody is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from plugins.agents.runs.agent_runner import MANAGER_GONE
from schemas.events import EpisodeStart, Response, RewardSource, Task
from streams.kafka import admin, times
from streams.kafka.producer import Producer
from streams.settings.model import Policy, Settings
from streams.stages.tasks.episodes import ENVIRONMENT_AGENT as AGENT
from streams.tools.unbegun_tasks import unbegun_tasks
from tests.support import processes
from tests.support.agent_server import check_audit, serving, settings_of
from tests.support.commands import invoke
from tests.support.factories import task
from tests.support.processes import command, environment, read, said, spawn, until
from tests.support.stranger_plugin import run_with

pytestmark = pytest.mark.kafka
ENDED_EARLY = {f"failed: {MANAGER_GONE}", "cancelled: it was asked to stop"}
"""What a run says whose manager was killed, and one whose task went to a process that joined meanwhile."""
GUESSES = {"replies": [{"when": "", "reply": "1"}]}
POLICIES = ("pa", "pb")
MANAGER = ("agents", "run", "--environments", "--parallel", "4")


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    made = settings_of(kafka_bootstrap, tmp_path, GUESSES)
    made = made.model_copy(update={"policy": Policy(engine="scripted", script=json.dumps(GUESSES))})
    admin.apply_topics(made)
    return made


def of_policy(settings: Settings, name: str) -> Settings:
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": name})})


def episode(policy: str, number: int, **changes: object) -> Task:
    start = EpisodeStart(name="guess", seed=number)
    whole: dict[str, object] = {
        "task_id": f"{policy}-{number}", "policy": policy, "agent": AGENT, "environment": start, "group_size": 1,
        "max_turns": 2, "purpose": "eval", "reward_sources": (RewardSource(name="environment"),),
    }  # fmt: skip
    return task(**(whole | changes))  # type: ignore[arg-type]


def write(settings: Settings, numbers: range) -> None:
    processes.write(settings, *(episode(policy, number) for number in numbers for policy in POLICIES))


def answered(settings: Settings) -> set[str]:
    """Return the tasks whose run has ended."""
    found = [response for _, response in read(settings, Response)]
    assert {response.error for response in found} <= {None, *ENDED_EARLY}
    return {response.task_id for response in found}


@contextmanager
def manager(settings: Settings, folder: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the built-in agent while the block runs."""
    with (folder / f"{name}.log").open("ab") as out:
        process = spawn(command(*MANAGER, *options), env=environment(settings), cwd=folder, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("is_fleet", [False, True], ids=["a process each", "two of a fleet"])
def test_two_policies_with_the_same_agent_have_every_task_run_though_a_process_is_killed(
    settings: Settings, tmp_path: Path, is_fleet: bool
) -> None:
    """The processes of one agent were one group: each marked as done what the other should have run."""

    def started(name: str) -> subprocess.Popen[bytes]:
        here, options = (settings, ("--fleet",)) if is_fleet else (of_policy(settings, name), ())
        return stack.enter_context(manager(here, tmp_path, name, *options))

    with serving(settings, fleet=True), ExitStack() as stack:
        write(settings, range(5))
        running = {name: started(name) for name in POLICIES}
        until(lambda: len(answered(settings)) >= 4, "answers to tasks from before", folder=tmp_path)
        write(settings, range(5, 12))
        until(lambda: len(answered(settings)) >= 14, "answers to tasks from meanwhile", folder=tmp_path)
        os.kill(running["pb"].pid, signal.SIGKILL)
        running["pb"].wait()
        write(settings, range(12, 20))
        running["pb"] = started("pb")
        wanted = {f"{policy}-{number}" for policy in POLICIES for number in range(20)}
        until(lambda: answered(settings) >= wanted, "an answer to each of the 40 tasks", folder=tmp_path)
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        assert {process.wait(300) for process in running.values()} == {0}, said(tmp_path)
    assert answered(settings) == wanted
    check_audit(settings)


def test_doctor_names_tasks_that_nobody_serves_and_those_past_their_deadline_that_nobody_began(
    settings: Settings, tmp_path: Path
) -> None:
    past_ms = times.now_ms() - 10_000_000
    with Producer(settings) as producer:
        for number in range(12):
            producer.send(episode("pb", number))
        producer.send(episode("pc", 0, deadline_at=past_ms))
        producer.send(task(task_id="plain", policy="pd", purpose="eval"))

    def doctor() -> list[dict[str, str]]:
        told = invoke(settings, "doctor", "--output", "jsonl")
        return [row for row in map(json.loads, told.stdout.splitlines()) if row["check"] in ("tasks", "agents")]

    found = {(row["state"], row["what"], row["do"]) for row in doctor()}
    assert {
        (
            "warning",
            "12 tasks of policy pb wait for agent environment: no process serves them",
            "Start `streamward --set policy.name=pb agents run --environments`",
        ),
        (
            "warning",
            "1 task of policy pd waits: no process serves them",
            "Start `streamward --set policy.name=pd policy`",
        ),
        (
            "warning",
            "past their deadline, and begun by no process, of policy pc for agent environment: pc-0",
            "Start `streamward --set policy.name=pc agents run --environments` and `streamward streams`, and submit "
            "again, under new ids, what is still wanted",
        ),
    } <= found
    core = run_with(tmp_path, "--set", "plugins.load=", "doctor", "--output", "jsonl", settings=settings).stdout
    assert "12 tasks of policy pb wait for agent environment, in guess: no plugin that plays environments" in core
    with serving(settings, fleet=True), manager(of_policy(settings, "pb"), tmp_path, "pb"):
        until(lambda: len(answered(settings)) == 12, "answers to those of pb", folder=tmp_path)
        assert any("no tasks of policy pb wait for agent environment, and " in row["what"] for row in doctor())
    assert {entry.task_id for entry in unbegun_tasks(settings)} == {"pc-0", "plain"}
    told = invoke(settings, "audit", "--settled", "--output", "json")
    assert "no process answered task pc-0 of policy pc and agent environment; `streamward doctor`" in told.stdout
