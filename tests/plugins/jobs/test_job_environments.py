"""Jobs on episodes of an environment: what may be ordered, and the tasks that are made of its seeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugins.environments import environment_step
from plugins.environments.environment_step import NamedEnvironment
from plugins.environments.episode_tasks import episodes
from plugins.environments.settings import Environments
from plugins.jobs.controller import job_episodes
from plugins.jobs.fold.questions import suite, train_task
from plugins.jobs.fold.state import JobState, fold
from plugins.jobs.log import job_view
from plugins.jobs.orders.job_types import estimate
from plugins.jobs.orders.request import JobOrder, order, read_request
from schemas.conventions import TOOL_IDS
from schemas.events import EpisodeStart, JobPrices, JobQuestion, RewardSource, Sampling, Task, problems
from streams.errors import ContaminatedError, JobRequestError, RefusedError
from streams.settings.model import Batches, Guard, Settings
from streams.stages.agents.registered_agents import KnownAgent
from streams.stages.tasks.episodes import EpisodeSpec
from streams.stages.tasks.line_steps import LineSteps, Registries
from tests.support.factories import episodes_spec, job_event
from tests.support.gates import gated

QUESTION = JobQuestion(query="4 + 7 =")
COUNTER = """
class Counter:
    version = "1"

    def __init__(self, careless=False):
        self.careless, self.resets = careless, 0

    def reset(self, seed):
        self.resets += 1
        return f"{seed} {self.resets if self.careless else ''}"

    def step(self, action):
        return "over", 1.0, True, False, {}
"""
SETTINGS = Settings(batches=Batches(groups=4)).model_copy(update={"environments": Environments(modules="., counter")})
PRICES = {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0}


def environment(**changes: Any) -> Any:
    return dataclasses.replace(episodes_spec().environment, **changes)


def ordered(
    environment: Any,
    settings: Settings = SETTINGS,
    names: Mapping[str, NamedEnvironment] | None = None,
    agent_id: str = "default",
    **config: Any,
) -> JobOrder:
    body = {"agent_id": agent_id, "environment": environment, "config": {"n_iterations": 3, **config}}

    def find(name: str, _: Registries) -> NamedEnvironment | None:
        if name == "strange":
            raise RefusedError("strange is described otherwise than ann accepted")
        return (names or {}).get(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment_step, "extensions", lambda _: (find,))
        return order(
            read_request(body),
            settings,
            policies={"default"},
            agents={"calc": KnownAgent("default")},
            try_environment=lambda ordered: job_episodes.try_environment(ordered, settings, LineSteps()),
        )


def state_of(made: JobOrder) -> JobState:
    state = fold(None, job_event("created", spec=made.spec, policy=made.policy))
    assert state is not None
    return state


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "counter.py").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what is ordered --------------------------------------------------------------------------------------------------


def test_a_built_in_environment_is_played_as_up_plays_it() -> None:
    made = ordered({"name": "guess", "settings": {"highest": 4}, "episodes": 9, "held_out": 5})
    train, held_out, *_ = episodes(
        EpisodeSpec(name="guess", settings='{"highest": 4}', count=9, policy="default", group_size=8), no_reference
    )
    state = state_of(made)
    asked = [train_task(dataclasses.replace(state, train=(number,)), 1, 0, 0) for number in state.train]
    measured = suite(state).questions
    for of_job, of_up in ((asked, train), (measured, held_out[:5])):
        assert [task.environment for task in of_job] == [task.environment for task in of_up]
        assert {same_in_both(task) for task in of_job} == {same_in_both(task) for task in of_up}
    assert {task.reward_sources for task in (*asked, *measured)} == {(RewardSource(name="environment"),)}
    assert {task.group_size for task in measured} == {1}


def no_reference(start: EpisodeStart) -> Any:
    raise AssertionError(start)


def same_in_both(task: Task) -> Any:
    return task.agent, task.max_turns, task.tools, task.sampling.temperature, task.sampling.max_tokens, task.purpose


def test_what_is_left_out_is_as_documented(folder: Path) -> None:
    spec = ordered({"name": "counter:Counter"}).spec
    assert spec.environment is not None
    assert spec.environment.seeds == tuple(range(1000)) and len(spec.environment.held_out_seeds) == 35
    assert (spec.agent, spec.max_turns, spec.sampling) == ("environment", 8, Sampling(max_tokens=64))
    assert [message.content for message in spec.environment.messages] == ["0 "]
    assert job_view.order(state_of(ordered({"name": "counter:Counter"})))["environment"]["name"] == "counter:Counter"


def test_what_an_order_says_of_its_answers_comes_before_what_the_environment_says() -> None:
    made = ordered(
        {"name": "guess", "max_turns": 2}, max_tokens=7, temperature=0.5, reward_sources=[{"name": "verified"}]
    )
    assert (made.spec.max_turns, made.spec.sampling) == (2, Sampling(temperature=0.5, max_tokens=7))
    assert [source.name for source in made.spec.reward_sources] == ["verified"]


def test_a_name_gives_its_settings_and_its_tasks_refer_to_it() -> None:
    start = EpisodeStart(name="guess", settings='{"highest": 4}', seed=0)
    made = ordered({"name": "arena"}, names={"arena": NamedEnvironment(start, 3, "arena@2c26")})
    environment = made.spec.environment
    assert environment is not None and (environment.name, environment.settings) == ("guess", '{"highest": 4}')
    assert made.spec.max_turns == 3
    assert train_task(state_of(made), 1, 0, 0).metadata[TOOL_IDS] == "arena@2c26" == environment.entry


def test_the_ids_of_its_tasks_are_of_the_job_and_each_epoch_has_every_seed_once() -> None:
    state = state_of(ordered({"name": "guess", "episodes": 8, "held_out": 0}))
    tasks = [train_task(state, iteration, draw, 0) for iteration in (1, 2) for draw in range(4)]
    assert len({task.task_id for task in tasks}) == len({task.environment for task in tasks}) == 8
    assert tasks == [train_task(state, iteration, draw, 0) for iteration in (1, 2) for draw in range(4)]
    assert not suite(state).questions


def test_it_is_estimated_to_last_for_all_turns_of_each_episode() -> None:
    spec = episodes_spec(sampling=Sampling(max_tokens=10), prices=JobPrices())
    answers = 3 * 4 * 2 + 3 * 2  # the groups of three iterations, and three evaluations of two held-out seeds
    assert estimate(spec).completion_tokens == answers * 4 * 10 / 2
    with pytest.raises(RefusedError, match="estimated to cost"):
        ordered({"name": "guess"}, prices=PRICES, max_budget_usd=0.0001)


def test_an_order_without_an_environment_has_the_digest_of_one_that_says_so() -> None:
    queries = [{"query": f"{n}?", "expected_outcome": "!"} for n in range(9)]
    body = {"agent_id": "default", "training_queries": queries, "config": {"n_iterations": 1}}
    digests = [
        order(read_request(plain), SETTINGS, policies={"default"}, agents={}).digest
        for plain in (body, {**body, "environment": None})
    ]
    assert digests[0] == digests[1]
    assert ordered({"name": "guess"}).digest != ordered({"name": "guess", "episodes": 9}).digest


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "config", "parameter", "says"),
    [
        ({"name": "gess"}, {}, "environment", "no environment is called 'gess'; did you mean guess"),
        ({"name": "guess", "settings": {"hihgest": 4}}, {}, "environment", "guess has no setting 'hihgest'"),
        ({"name": "other:Game"}, {}, "environment", r"environments.modules lists \., counter"),
        ({"name": "mcp:http://a/mcp"}, {}, "environment", "environments.servers lists no server"),
        ({"name": "verifiers:x"}, {}, "environment", "environments of verifiers call the model themselves"),
        ({"name": "counter:Counter", "settings": {"careless": True}}, {}, "environment", "two episodes that differ"),
        ({"name": "counter:Nothing"}, {}, "environment", "has no class 'Nothing'"),
        ({"name": "arena", "settings": {"highest": 3}}, {}, "environment.settings", "is registered with its settings"),
        ({"name": "strange"}, {}, "environment.name", "is described otherwise than ann accepted"),
        ({"name": "guess", "episodes": 0}, {}, "environment.episodes", "greater than or equal to 1"),
        ({"name": "guess", "seed": 3}, {}, "environment.seed", "there is no field"),
        ({"name": "guess", "max_turns": 1025}, {}, "environment.max_turns", "less than or equal to 1024"),
        ({"name": ""}, {}, "environment.name", "at least 1 character"),
        ({}, {}, "environment.name", "is required"),
        ({"name": "guess"}, {"held_out_share": 0.2}, "config.held_out_share", "environment.held_out says how many"),
        (
            {"name": "guess"},
            {"max_steps_per_trajectory": 3},
            "config.max_steps_per_trajectory",
            "environment.max_turns",
        ),
        ({"name": "guess"}, {"prompt": "greet@1"}, "config.prompt", "an environment shows its own messages"),
        ({"name": "guess"}, {"agent_id": "calc"}, "agent_id", "plays no episodes; name its policy, default"),
        ({"name": "guess"}, {"reward_sources": ["exakt"]}, "environment", "exakt"),
        (
            {"name": "guess"},
            {"reward_sources": ["ranking_judge"]},
            "config.reward_sources",
            "environment.held_out to 0",
        ),
        ({"name": "guess"}, {"batch_size": 16}, "config.batch_size", "batches.groups is 4 here"),
    ],
)
def test_an_environment_that_cannot_be_trained_in_is_refused(
    folder: Path, environment: Any, config: dict[str, Any], parameter: str, says: str
) -> None:
    names = {"arena": NamedEnvironment(EpisodeStart(name="guess", seed=0), None, "arena@2c26")}
    with pytest.raises(JobRequestError, match=says) as raised:
        ordered(environment, names=names, **config)
    assert raised.value.parameter == parameter


def test_an_order_names_questions_or_an_environment_and_not_both() -> None:
    body = {"agent_id": "default", "config": {"n_iterations": 1}}
    with pytest.raises(
        JobRequestError, match="training_queries is required, or environment; a job trains on"
    ) as raised:
        read_request(body)
    assert raised.value.parameter == "training_queries"
    both = {**body, "training_queries": [{"query": "?"}], "environment": {"name": "guess"}}
    with pytest.raises(JobRequestError, match="are both set; a job trains on questions, or on episodes") as raised:
        read_request(both)
    assert raised.value.parameter == "environment"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "gess"}, "no environment is called 'gess'; did you mean guess"),
        ({"settings": '{"hihgest": 4}'}, "guess has no setting 'hihgest'"),
        ({"name": "other:Game"}, "environments.modules lists ., counter"),
        ({"name": "counter:Counter", "settings": '{"careless": true}'}, "two episodes that differ"),
    ],
)
def test_a_record_that_no_gateway_has_checked_is_judged_in_the_same_words(
    folder: Path, changes: dict[str, Any], says: str
) -> None:
    spec = episodes_spec(environment=environment(**changes))
    problem = job_episodes.problem_of(spec, SETTINGS)
    assert problem is not None and says in problem
    named, settings = spec.environment.name, json.loads(spec.environment.settings)  # type: ignore[union-attr]
    with pytest.raises(JobRequestError) as raised:
        ordered({"name": named, "settings": settings})
    if "differ" not in says:  # which names the seed of the episode
        assert str(raised.value) == problem


def test_a_record_of_an_environment_that_can_be_played_has_no_problem(folder: Path) -> None:
    assert job_episodes.problem_of(episodes_spec(), SETTINGS) is None
    spec = episodes_spec(environment=environment(name="counter:Counter"))
    assert job_episodes.problem_of(spec, SETTINGS) is None


@gated
def test_an_episode_that_a_suite_holds_out_is_not_trained_on(tmp_path: Path) -> None:
    spec = ordered({"name": "guess", "episodes": 4}).spec
    assert spec.environment is not None
    seed = spec.environment.seeds[2]
    line: dict[str, Any] = {
        "prompt": "?",
        "environment": {"name": "guess", "seed": seed},
        "agent": "environment",
        "max_turns": 4,
    }
    line["reward_sources"] = ["verified"]
    (tmp_path / "held-out.jsonl").write_text(json.dumps({**line, "scenario": "s"}) + "\n")
    (tmp_path / "suite.yaml").write_text(
        "name: games\nscenarios:\n  all:\n    file: held-out.jsonl\n    reward_sources: [verified]\n"
    )
    guarded = SETTINGS.model_copy(update={"guard": Guard(suite=tmp_path / "suite.yaml")})
    with pytest.raises(ContaminatedError, match=f"environment, seed {seed}.*question 0 of suite games@"):
        ordered({"name": "guess", "episodes": 4}, guarded)
    assert ordered({"name": "guess", "episodes": 4}, guarded, allow_contaminated=True).allow_contaminated


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": None}, "spec.questions is empty and spec.environment null; a job trains on questions, or on"),
        ({"questions": (QUESTION,)}, "spec.questions and spec.environment are both set; a job trains on questions, or"),
        ({"agent": None}, "agent is None and max_turns 4; name the agent that plays its"),
        ({"max_turns": None}, "max_turns None; name the agent that plays its episodes, and 1 to 1024"),
        ({"max_turns": 1025}, "max_turns 1025; name the agent that plays its episodes, and 1 to 1024"),
        ({"environment": environment(seeds=())}, "seeds is empty; a job needs at least one to train on"),
        ({"environment": environment(held_out_seeds=(3,))}, "a seed twice in seeds and held_out_seeds"),
        ({"environment": environment(held_out_temperature=-1.0)}, "held_out_temperature is -1.0; expected 0 or more"),
        ({"environment": environment(settings="[]")}, "settings is '[]'; expected a JSON object"),
        ({"environment": environment(settings="{")}, "settings is '{'; expected a JSON object"),
    ],
)
def test_a_record_of_a_job_in_an_environment_says_what_is_wrong_with_it(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(job_event("created", spec=episodes_spec(**changes)))
    assert says in problem


def test_a_record_of_a_job_in_an_environment_may_be_written() -> None:
    assert not list(problems(job_event("created", spec=episodes_spec())))
