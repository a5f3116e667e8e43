"""Runs of agents on tasks: how they begin and end, what limits their calls, and what they come to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from plugins.agents.runs import run_metrics
from plugins.agents.runs.agent_runner import AgentPlan, AgentWork, run as run_agent
from schemas.events import Observed, Response, Sampling, TrajectoryEvent, derive_id
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.tasks.submit import submit
from tests.support.agent_server import serving, settings_of, turns
from tests.support.documented import as_documented
from tests.support.factories import PROGRAM, task
from tests.support.processes import read, until, write
from tests.support.scrape import parse

pytestmark = pytest.mark.kafka
SCRIPT = {
    "context_tokens": 1_000_000,
    "replies": [{"when": "at length", "reply": "x" * 100_000, "token_ms": 1}, {"when": "first", "reply": "one"}],
}


@pytest.fixture(scope="module")
def settings(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(kafka_bootstrap, tmp_path_factory.mktemp("runs"), SCRIPT, acknowledge_s=60)


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    with serving(settings) as url:
        yield url


def documented(answer: httpx.Response) -> httpx.Response:
    as_documented(answer)
    return answer


class Run:
    """One slot of an attempt at a task, as its manager has it."""

    def __init__(self, url: str, sampling_id: str, slot: int = 0) -> None:
        self.sampling_id, self.slot = sampling_id, slot
        self.trajectory_id = derive_id(sampling_id, slot)
        self.url = f"{url}/agents/adder/trajectories/{self.trajectory_id}"

    def begin(self, **changes: Any) -> httpx.Response:
        sampling = {"temperature": 0.5, "top_p": 1.0, "max_tokens": 7, "stop": ["END"]}
        body = {
            "task_id": f"task-{self.sampling_id}", "sampling_id": self.sampling_id, "slot": self.slot, "group_size": 2,
            "policy": "sums", "purpose": "train", "sampling": sampling, "metadata": {"manager": "m1"},
        }  # fmt: skip
        return documented(httpx.post(f"{self.url}/begin", json=body | changes, timeout=300))

    def end(self, ending: str = "completed", reason: str = "exit code 0") -> httpx.Response:
        return documented(httpx.post(f"{self.url}/end", json={"ending": ending, "reason": reason}, timeout=300))

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def ask(self, text: str, **asked: Any) -> Any:
        message: Any = {"role": "user", "content": text}
        return self.client.chat.completions.create(model="sums", messages=[message], **asked)


def events(settings: Settings, run: Run, kind: type[Any]) -> list[Any]:
    of = "response_id" if kind is Response else "trajectory_id"
    return [event for _, event in read(settings, kind) if getattr(event, of) == run.trajectory_id]


def test_a_run_becomes_a_response_and_both_requests_may_be_sent_again(settings: Settings, url: str) -> None:
    run = Run(url, "whole")
    begun = [run.begin(program=asdict(PROGRAM)).json() for _ in range(2)]
    assert begun[0] == begun[1]
    assert (begun[0]["ending"], begun[0]["adapter_version"], begun[0]["metadata"]) == (None, 0, {"manager": "m1"})
    run.ask("first")
    for ending in ("completed", "failed"):  # the first counts
        assert run.end(ending).json() | {"metadata": 0} == begun[0] | {"ending": "completed", "turns": 1, "metadata": 0}
    [response], [turn] = events(settings, run, Response), turns_of(settings, run)
    assert (response.error, response.text, response.steps, response.agent_id) == (None, "one", 1, "adder")
    assert (response.sampling_id, response.slot, response.metadata["purpose"]) == ("whole", 0, "train")
    assert response.program == PROGRAM
    assert response.prompt_token_ids == turn.prompt_token_ids
    assert response.completion_token_ids == turn.completion_token_ids
    assert [event.kind for event in events(settings, run, TrajectoryEvent)] == ["started", "ended"]
    run.ask("a call after the end")
    assert [turn.number for turn in turns_of(settings, run)] == [0, 1]
    assert run.begin().json()["ending"] == "completed"


def test_a_group_that_no_task_can_have_is_refused_before_anything_looks_for_its_slots(url: str) -> None:
    """The server looked for each of them, and answered nobody meanwhile."""
    refused = [Run(url, "vast").begin(**wrong) for wrong in ({"group_size": 2**40}, {"slot": -1})]
    assert [(answer.status_code, answer.json()["error"]["param"]) for answer in refused] == [
        (400, "group_size"),
        (400, "slot"),
    ]


def test_what_an_environment_shows_is_in_the_turn_and_the_response_says_what_it_made_of_it(
    settings: Settings, url: str
) -> None:
    run, sibling, other = (Run(url, "episode", slot) for slot in range(3))
    observation: list[dict[str, Any]] = [{"environment": "guess@1", "seed": 7, "digest": digit * 64} for digit in "ab"]
    assert run.begin(observed=observation[0], group_size=3).json()["ending"] is None
    for _ in range(2):
        assert other.begin(observed=observation[1], group_size=3).json()["ending"] == "failed"
    assert sibling.begin(observed=observation[0], group_size=3).json()["ending"] is None
    run.ask("first", extra_headers={"X-Streamward-Observed": json.dumps(observation[0])})
    with pytest.raises(BadRequestError, match="X-Streamward-Observed: digest: "):
        run.ask("second", extra_headers={"X-Streamward-Observed": json.dumps(observation[0] | {"digest": "short"})})
    end = {
        "ending": "completed",
        "reason": "found",
        "success": True,
        "observed": observation[1] | {"ok": True, "reward": 0.5},
    }
    assert httpx.post(f"{run.url}/end", json=end, timeout=300).json()["ending"] == "completed"
    [turn], [response] = turns_of(settings, run), events(settings, run, Response)
    assert turn.observed == Observed(**observation[0])
    assert [(one.observation, one.ok, one.reward) for one in response.turns] == [("a" * 64, True, 0.5)]
    assert (response.success, response.turns[0].end) == (True, len(turn.completion_token_ids))
    [refused] = events(settings, other, Response)
    assert refused.error.startswith("failed: siblings_differ: its environment began with guess@1, seed 7, bbbbbbbbbbbb")
    sibling.end()


def turns_of(settings: Settings, run: Run) -> list[Any]:
    return [turn for turn in turns(settings, "adder") if turn.trajectory_id == run.trajectory_id]


def test_how_tokens_are_drawn_is_the_tasks_decision_and_the_turn_says_so(settings: Settings, url: str) -> None:
    run = Run(url, "drawn")
    run.begin()
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": 7, "seed": 3, "stop": ["STOP"]}
    message: Any = {"role": "user", "content": "first"}
    raw = run.client.chat.completions.with_raw_response.create(model="sums", messages=[message], **asked)
    assert raw.headers["x-streamward-ignored"] == "temperature, seed"
    [turn] = turns_of(settings, run)
    assert turn.sampling == Sampling(temperature=0.5, max_tokens=7, stop=("END", "STOP"))
    assert turn.ignored == ("temperature", "seed")
    run.end()


def test_the_runs_of_a_sampling_have_one_version_and_no_client_gets_another(settings: Settings, url: str) -> None:
    run, sibling = Run(url, "pinned"), Run(url, "pinned", 1)
    assert run.begin(adapter_version=5).json()["adapter_version"] == 5
    assert sibling.begin().json()["adapter_version"] == 5
    with pytest.raises(BadRequestError, match="version 5 answers all runs of this task"):
        message: Any = {"role": "user", "content": "hi"}
        run.client.chat.completions.create(model="sums@0", messages=[message])
    run.end("failed", "no such version")
    [response] = events(settings, run, Response)
    assert (response.adapter_version, response.error) == (5, "failed: no such version")


def test_a_call_too_many_is_refused_and_the_run_ends_with_what_there_is(settings: Settings, url: str) -> None:
    run = Run(url, "short")
    run.begin(max_turns=2)
    for text in ("first", "second"):
        run.ask(text)
    with pytest.raises(BadRequestError, match=r"made 2 calls, and its task allows 2 \(max_turns\)"):
        run.ask("third")
    assert run.end().json()["turns"] == 2
    [response] = events(settings, run, Response)
    assert (response.error, response.steps) == (None, 2)


def test_an_end_cancels_what_is_still_answered_and_counts_it(settings: Settings, url: str) -> None:
    run = Run(url, "killed")
    run.begin(purpose="eval", sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": 200_000})
    asked = {"model": "sums", "stream": True, "messages": [{"role": "user", "content": "at length"}]}
    with httpx.stream("POST", f"{run.url}/v1/chat/completions", json=asked, timeout=300) as answer:
        # the first event only says who answers, and may come before the first token
        next(line for line in answer.iter_lines() if '"content":"' in line and '"content":""' not in line)
        assert run.end("timeout", "it took over 1 s").json()["turns"] == 1
    [turn], [response] = turns_of(settings, run), events(settings, run, Response)
    assert turn.finish_reason == "cancelled" and 0 < len(turn.completion_token_ids) < 100_000
    assert response.error == "timeout: it took over 1 s" and not response.completion_token_ids


def test_what_is_no_run_of_a_task_is_not_begun_or_ended(settings: Settings, url: str) -> None:
    assert Run(url, "nobody").end().status_code == 404
    assert Run(url, "policy").begin(policy="other").status_code == 409
    assert Run(url, "slot").begin(slot=1).status_code == 400  # its trajectory's id is that of slot 0
    stray = Run(url, "stray")
    stray.ask("hi")
    assert "is there already" in stray.begin().json()["error"]["message"]


def test_a_server_that_is_started_again_knows_its_runs_and_makes_the_responses_that_are_missing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, SCRIPT)
    with serving(settings) as url:
        ended, opened, killed = Run(url, "ended"), Run(url, "open"), Run(url, "killed")
        for run in (ended, opened, killed):
            run.begin(max_turns=1)
            run.ask("first")
        ended.end()
    # and if that server was killed between the end of a run and its response:
    [of_ended] = [event for event in events(settings, ended, TrajectoryEvent) if event.kind == "ended"]
    of_killed = {"event_id": derive_id(killed.trajectory_id, "ended"), "trajectory_id": killed.trajectory_id}
    write(settings, replace(of_ended, **of_killed, task_id="task-killed", sampling_id="killed"))
    with serving(settings) as url:
        assert opened.begin(metadata={"manager": "m2"}).json()["metadata"] == {"manager": "m1"}
        with pytest.raises(BadRequestError, match="max_turns"):
            opened.ask("second")
        opened.end("failed", "its manager is gone")
        assert ended.end("failed", "its manager is gone").json()["ending"] == "completed"
        until(lambda: events(settings, killed, Response), "a response of the run that ended before the kill")
    first, other = (events(settings, run, Response) for run in (ended, killed))
    assert [(response.error, response.text) for response in (*first, *other)] == [(None, "one")] * 2
    [response] = events(settings, opened, Response)
    assert response.error == "failed: its manager is gone"
    assert [event.kind for event in events(settings, opened, TrajectoryEvent)] == ["started", "ended"]


# --- the manager ------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_manager_is_there_and_counts_its_runs(settings: Settings, url: str, tmp_path: Path) -> None:
    submit(settings, [task(task_id=f"counted {n}", policy="sums", agent="counter", purpose="eval") for n in range(2)])
    go_on, stop, meter = threading.Event(), threading.Event(), Meter("agents", waits_for=("kafka",))

    def gives_up(*_: object) -> TrajectoryEnd:
        go_on.wait()
        return TrajectoryEnd("failed", "it gave up")

    plan = AgentPlan(
        agent_id="counter", work=lambda _: AgentWork(gives_up), server=url, parallel=3, folder=tmp_path, until_done=True
    )
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run_agent, settings, plan, stop=stop, meter=meter)
        until(lambda: meter.value(run_metrics.RUNS_OPEN, "counter") == 3, "three runs at once")
        until(lambda: meter.value(run_metrics.AGENT_TASKS, "counter") == 1, "a task that waits for them")
        assert (meter.value(run_metrics.AGENT_TASK_AGE, "counter") or 0) > 0
        until(lambda: catalog.LAG_SECONDS.name in parse(meter.text()).kinds, "a look at how far behind it is")
        go_on.set()
        assert ended.result() == {"failed": 8}
    found = parse(meter.text())
    wanted = {one.name: one.kind for one in catalog.all_metrics() if "agents" in one.processes and not one.needs}
    wanted.pop(catalog.PROCESS.name)  # that is set where the metrics are served
    assert {name: found.kinds.get(name) for name in wanted} == wanted
    assert set(found.kinds) <= {one.name for one in catalog.all_metrics() if "agents" in one.processes}
    assert found.total(run_metrics.RUNS_STARTED.name) == found.total(run_metrics.RUN_SECONDS.name) == 8
    assert found.total(run_metrics.RUNS_ENDED.name, agent="counter", ending="failed") == 8
    assert meter.answer("/readyz") == (200, "ok\n")
