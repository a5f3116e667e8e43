"""A job in a kept environment, from the name of its entry to its end, while controller and trainer are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from plugins.environments import episode_replay
from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.settings import Environments
from schemas.conventions import TOOL_IDS
from schemas.events import AdapterEvent, JobEvent, Response, Reward, Task
from streams.engines.base_model import Base
from streams.settings.model import Settings
from streams.tools.audit.reading import Audit
from tests.support.agent_server import rest, serving, training_settings
from tests.support.models.chat_tiny import base
from tests.support.processes import command, environment, read, running, said, spawn, until

__all__ = ["base"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before"), pytest.mark.kills]
ITERATIONS, GROUPS, ANSWERS, EPISODES, HELD_OUT, TURNS = 3, 2, 2, 3, 2, 2
KILLED = ("train", "jobs run")
PRICES = {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0}
ORDER = {
    "type": "RL_TRAINING",
    "agent_id": "sums",
    "environment": {"name": "arena", "episodes": EPISODES, "held_out": HELD_OUT},
    "config": {
        "n_iterations": ITERATIONS,
        "n_trajectories_per_query": ANSWERS,
        "checkpoint_interval": 2,
        "max_tokens": 4,
        "prices": PRICES,
        "max_budget_usd": 5.0,
    },
}


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path, base: Base) -> Settings:
    return training_settings(kafka_bootstrap, tmp_path, base.model.config._name_or_path, groups=GROUPS)


@contextmanager
def victims(settings: Settings, folder: Path) -> Iterator[None]:
    """Run what is killed while the block runs, and kill it at its end."""
    with ExitStack() as stack:
        for words in KILLED:
            log = stack.enter_context((folder / f"{words.split()[0]}.log").open("ab"))
            process = spawn(command(*words.split()), env=environment(settings), cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def test_a_job_in_a_kept_environment_plays_each_episode_once_though_controller_and_trainer_are_killed(
    settings: Settings, tmp_path: Path
) -> None:
    with serving(settings) as url:
        ask = partial(rest, url)
        kept = {"environment": "guess", "settings": {"highest": 4}, "name": "arena", "max_turns": TURNS}
        ask("POST", "/rl/environments", kept)
        job = ask("POST", "/finetune/jobs", ORDER)
        path = f"/finetune/jobs/{job['id']}/status"
        with running(settings, tmp_path, "streams", "scoring", "agents run --environments"):
            with victims(settings, tmp_path):
                until(
                    lambda: ask("GET", path)["metrics"]["iteration"] >= 1,
                    "an iteration",
                    folder=tmp_path,
                    timeout_s=400,
                )
            with victims(settings, tmp_path):
                until(
                    lambda: ask("GET", path)["status"] not in ("queued", "running"),
                    "the end of the job",
                    folder=tmp_path,
                    timeout_s=400,
                )
        job = ask("GET", path)
        figures = ask("GET", f"/rl/training/{job['id']}/metrics")
    assert job["status"] == "completed", f"{job['code']}: {job['reason']}: {said(tmp_path)}"
    order = job["config"]
    assert (order["environment"]["name"], order["environment"]["settings"]) == ("guess", '{"highest": 4}')
    assert (order["questions"], order["held_out"]) == (EPISODES + HELD_OUT, HELD_OUT)
    assert [one["iteration"] for one in figures["iterations"]] == [1, 2, 3]
    assert [(one["version"], one["n"]) for one in figures["evaluations"]] == [
        (0, HELD_OUT),
        (2, HELD_OUT),
        (3, HELD_OUT),
    ]
    assert job["metrics"]["cost_usd"] > 0
    check_episodes(settings)
    report = Audit(settings, settled=True).look()
    assert report.balanced, report.wrong
    assert (report.counts["jobs"], report.counts["jobs ended"]) == (1, 1)


def check_episodes(settings: Settings) -> None:
    """Check that each episode of the job was asked once, and that what the log has of it is what is played again."""
    (created, *_), trained = [event for _, event in read(settings, JobEvent)], read(settings, AdapterEvent)
    spec = created.spec
    assert spec is not None and spec.environment is not None
    tasks = [task for _, task in read(settings, Task)]
    assert Counter(task.task_id for task in tasks).most_common(1)[0][1] == 1
    assert Counter(task.purpose for task in tasks) == {"train": ITERATIONS * GROUPS, "eval": 3 * HELD_OUT}
    seeds = Counter((task.purpose, task.environment.seed) for task in tasks if task.environment is not None)
    train = {("train", seed): ITERATIONS * GROUPS // EPISODES for seed in spec.environment.seeds}
    assert seeds == train | {("eval", seed): 3 for seed in spec.environment.held_out_seeds}
    assert {(task.agent, task.max_turns, task.metadata[TOOL_IDS]) for task in tasks} == {
        ("environment", TURNS, spec.environment.entry)
    }
    responses = [response for _, response in read(settings, Response)]
    assert len(responses) == ITERATIONS * GROUPS * ANSWERS + 3 * HELD_OUT
    assert {(response.agent_id, response.error) for response in responses} == {("environment", None)}
    rewards = [reward for _, reward in read(settings, Reward)]
    assert {reward.source for reward in rewards} == {"environment"} and len(rewards) == len(responses)
    assert [event.version for _, event in trained if event.kind == "trained"] == [1, 2, 3]
    with closing(EnvironmentPool(settings.of_plugin(Environments))) as pool:
        runs = list(episode_replay.replay_episodes(episode_replay.read_episodes(settings, None), pool.open))
    assert len(runs) == len(responses) and {run.differs for run in runs} == {None}
