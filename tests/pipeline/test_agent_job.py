"""A job for a registered agent, from its registration over HTTP to its end: its own program answers every task."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, AgentEvent, JobEvent, Response, Reward, Task, TrajectoryEvent, Turn
from streams.engines.base_model import Base
from streams.settings.model import Settings
from streams.tools.audit.reading import Audit
from tests.support.agent_server import rest, serving, training_settings
from tests.support.models.chat_tiny import base
from tests.support.processes import read, running, said, until

__all__ = ["base"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

PROGRAM = """\
    #!{python}
    import json, os, urllib.request

    def ask(messages):
        body = json.dumps({{"model": "sums", "messages": messages}}).encode()
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        request = urllib.request.Request(url, body, {{"Content-Type": "application/json"}})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]

    messages = [{{"role": "user", "content": os.environ["STREAMWARD_PROMPT"]}}]
    messages.append(ask(messages))
    messages.append({{"role": "user", "content": "9"}})
    ask(messages)
"""
"""An agent of two calls, which are one conversation."""
SOURCES = [{"name": "length", "weight": 1.0, "settings": {"limit": 64}}]
CONFIG = {
    "n_iterations": 2,
    "n_trajectories_per_query": 2,
    "checkpoint_interval": 1,
    "held_out_share": 0.25,
    "max_steps_per_trajectory": 3,
    "max_tokens": 4,
    "prices": {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0},
    "max_budget_usd": 5.0,
}
QUERIES = [{"query": f"{n} 7", "expected_outcome": str(n)} for n in range(11, 23)]


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path, base: Base) -> Settings:
    return training_settings(kafka_bootstrap, tmp_path, base.model.config._name_or_path, groups=2)


def test_a_job_for_a_registered_agent_completes_with_its_program_answering_every_task(
    settings: Settings, tmp_path: Path
) -> None:
    program = tmp_path / "adder"
    program.write_text(textwrap.dedent(PROGRAM.format(python=sys.executable)))
    program.chmod(0o755)
    run = f"agents run adder --command {program} --folder {tmp_path / 'runs'} --parallel 4"
    with serving(settings) as url:
        ask = partial(rest, url)
        ask("POST", "/rl/agents", {"agent_id": "adder", "model_id": "sums", "reward_sources": SOURCES})
        order = {"type": "RL_TRAINING", "agent_id": "adder", "training_queries": QUERIES, "config": CONFIG}
        job = ask("POST", "/finetune/jobs", order)
        path = f"/finetune/jobs/{job['id']}/status"
        with running(settings, tmp_path, "streams", "scoring", "train", "jobs run", run):
            until(
                lambda: ask("GET", path)["status"] not in ("queued", "running"),
                "the end of the job",
                folder=tmp_path,
                timeout_s=500,
            )
        job = ask("GET", path)
        figures = ask("GET", f"/rl/training/{job['id']}/metrics")
    assert job["status"] == "completed", f"{job['code']}: {job['reason']}: {said(tmp_path)}"
    assert (job["config"]["agent"], [one["name"] for one in job["config"]["reward_sources"]]) == ("adder", ["length"])
    assert [one["iteration"] for one in figures["iterations"]] == [1, 2]
    assert [one["version"] for one in figures["evaluations"]] == [0, 1, 2]
    check_runs(settings, held_out=job["config"]["held_out"])
    report = Audit(settings, settled=True).look()
    assert report.balanced, report.wrong
    assert (report.counts["jobs"], report.counts["jobs ended"]) == (1, 1)


def check_runs(settings: Settings, held_out: int) -> None:
    """Check that every task of the job was asked once, and answered by runs of the agent, call by call in the log."""
    tasks = [task for _, task in read(settings, Task)]
    assert Counter(task.task_id for task in tasks).most_common(1)[0][1] == 1
    assert Counter(task.purpose for task in tasks) == {"train": 4, "eval": 3 * held_out}
    assert {(task.agent, task.max_turns, task.reward_sources[0].name) for task in tasks} == {("adder", 3, "length")}
    responses = [response for _, response in read(settings, Response)]
    assert {(response.agent_id, response.error, response.steps) for response in responses} == {("adder", None, 2)}
    assert len(responses) == 4 * 2 + 3 * held_out
    rewards = [reward for _, reward in read(settings, Reward)]
    assert {reward.source for reward in rewards} == {"length"} and len(rewards) == len(responses)
    endings = Counter(event.ending for _, event in read(settings, TrajectoryEvent) if event.kind == "ended")
    assert endings == {"completed": len(responses)}
    versions = {response.response_id: response.adapter_version for response in responses}
    turns = [turn for _, turn in read(settings, Turn)]
    assert len(turns) == 2 * len(responses)
    assert all(turn.adapter_version == versions[turn.trajectory_id] for turn in turns)
    assert {turn.adapter_version for turn in turns} == {0, 1, 2}
    assert [event.version for _, event in read(settings, AdapterEvent) if event.kind == "trained"] == [1, 2]
    assert [event.kind for _, event in read(settings, JobEvent)][-1] == "completed"
    *_, registered = (event for _, event in read(settings, AgentEvent))
    assert (registered.model_id, registered.reward_sources[0].name) == ("sums", "length")
