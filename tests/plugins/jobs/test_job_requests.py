"""What may be ordered: each parameter that is wrong is named, and nothing is accepted that has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugins.jobs.fold.questions import train_task
from plugins.jobs.fold.state import JobUsage, fold, place
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.job_types import estimate
from plugins.jobs.orders.request import JobOrder, order, read_request
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import JobPrices, RewardSource, Sampling
from streams.errors import ContaminatedError, JobRequestError, NotFoundError, RefusedError
from streams.settings.model import Batches, Guard, Prices, Settings
from streams.stages.agents.registered_agents import KnownAgent
from tests.support.factories import job_event, job_spec
from tests.support.gates import gated
from tests.unit import test_prompt_check as prompt_check, test_scorer_check as scorer_check

SETTINGS = Settings(batches=Batches(groups=4))
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(20)]
NUMERIC = RewardSource(name="numeric", weight=0.5)
AGENTS = {"calc": KnownAgent("default"), "adder": KnownAgent("default", (NUMERIC,))}
PRICES = {"prompt": 1.0, "completion": 2.0, "trainer_hour": 3.0}


def asked(settings: Settings = SETTINGS, queries: Any = None, **config: Any) -> JobOrder:
    given = {
        "agent_id": config.pop("agent_id", "default"),
        "training_queries": QUERIES if queries is None else queries,
        "config": {"n_iterations": 3, **config},
    }
    return order(read_request(given), settings, policies={"default"}, agents=AGENTS)


def test_what_is_left_out_is_as_documented() -> None:
    spec = asked().spec
    assert (spec.iterations, spec.batch_size, spec.group_size, spec.evaluate_every) == (3, 4, 8, 10)
    assert (spec.held_out_share, spec.keep_best, spec.max_budget_usd, spec.prices) == (0.2, 5, None, None)
    assert [source.name for source in spec.reward_sources] == ["exact"]
    assert spec.questions[3].verifier == '{"answer": "6"}'


def test_an_expected_number_is_compared_as_people_write_it() -> None:
    queries = [{"query": f"{n}?", "expected_outcome": 0.00001} for n in range(20)]
    assert asked(queries=queries).spec.questions[0].verifier == '{"answer": "0.00001"}'


def test_an_agent_answers_for_its_policy_and_has_most_steps() -> None:
    ordered = asked(agent_id="calc")
    assert (ordered.policy, ordered.spec.agent, ordered.spec.max_turns) == ("default", "calc", 20)
    assert asked(agent_id="calc", max_steps_per_trajectory=3).spec.max_turns == 3


def test_a_policy_without_a_version_is_ordered_by_saying_that_it_is_new() -> None:
    with pytest.raises(NotFoundError, match=r"no agent 'q-00'.*config.new_policy lets a job begin a new policy"):
        asked(agent_id="q-00")
    ordered = asked(agent_id="q-00", new_policy=True)
    assert (ordered.policy, ordered.spec.agent) == ("q-00", None)
    assert asked(agent_id="calc", new_policy=True).spec.agent == "calc"
    with pytest.raises(NotFoundError, match="a name has to match"):
        asked(agent_id="../q", new_policy=True)


def test_a_job_without_held_out_questions_may_have_its_groups_ranked() -> None:
    assert asked(reward_sources=["ranking_judge"], held_out_share=0.0).spec.reward_sources[0].name == "ranking_judge"


def test_a_job_that_names_no_scorer_has_those_of_its_agent() -> None:
    assert asked(agent_id="adder").spec.reward_sources == (NUMERIC,)
    assert asked(agent_id="adder", reward_sources=["exact"]).spec.reward_sources == (RewardSource(name="exact"),)
    assert asked(agent_id="adder").digest == asked(agent_id="adder").digest


@pytest.mark.parametrize(
    ("config", "parameter", "says"),
    [
        ({"n_iterations": 0}, "config.n_iterations", "greater than or equal to 1"),
        ({"n_iterations": "3"}, "config.n_iterations", "valid integer"),
        ({"max_budget_usd": -1.0}, "config.max_budget_usd", "greater than 0"),
        ({"max_budget_usd": 1.0}, "config.prices", "a price is missing"),
        ({"prices": {"prompt": 1.0}}, "config.prices.completion", "is required"),
        ({"prices": {**PRICES, "prompt": -1.0}}, "config.prices.prompt", "greater than or equal to 0"),
        ({"batch_size": 16}, "config.batch_size", "batches.groups is 4 here"),
        ({"learning_rate": 0.5}, "config.learning_rate", "trainer.learning_rate is 0.001 here"),
        ({"gamma": 0.99}, "config.gamma", "advantages.gamma is 1 here"),
        ({"lora_rank": 16}, "config.lora_rank", r"trainer.lora_rank is 8 here.*a job that tunes \(sft, dpo\) may"),
        ({"lora_targets": "q_proj"}, "config.lora_targets", "trainer.lora_targets is all-linear here"),
        ({"max_steps_per_trajectory": 5}, "config.max_steps_per_trajectory", "no effect"),
        ({"n_trajectories_per_query": 1}, "config.n_trajectories_per_query", "greater than or equal to 2"),
        ({"colour": "red"}, "config.colour", "there is no field"),
        ({"reward_sources": ["exakt"]}, "training_queries[0]", "exakt"),
        ({"temperature": 0.0}, "config.temperature", "greater than 0"),
        ({"reward_sources": ["ranking_judge"]}, "config.reward_sources", "set config.held_out_share to 0"),
        ({"queries": []}, "training_queries", "at least 1 item"),
        ({"queries": [*QUERIES, QUERIES[2]]}, "training_queries[20].query", r"repeats training_queries\[2\]"),
        ({"queries": [{"query": "?"}] * 1}, "training_queries", "none is"),
        ({"queries": [{"query": ""}]}, "training_queries[0].query", "at least 1 character"),
        ({"queries": [{"query": "?", "answer": "!"}]}, "training_queries[0].answer", "there is no field"),
        ({"queries": [{"query": f"{n}?"} for n in range(20)]}, "training_queries[0]", "answer"),
        ({"queries": [{"query": "\ud800", "expected_outcome": "!"}]}, None, "Invalid JSON"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(config: dict[str, Any], parameter: str | None, says: str) -> None:
    with pytest.raises(JobRequestError, match=says) as raised:
        asked(**config)
    assert raised.value.parameter == parameter


def test_what_repeats_the_settings_is_accepted() -> None:
    assert asked(batch_size=4, learning_rate=1e-3, gamma=1.0).spec == asked().spec


def test_ten_million_queries_are_refused_by_their_number() -> None:
    with pytest.raises(JobRequestError, match="at most 100000 items"):
        read_request({"agent_id": "default", "training_queries": [{"query": "?"}] * 100_001, "config": {}})


def test_an_agent_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="did you mean calc"):
        asked(agent_id="calk")


def test_an_order_whose_estimate_is_over_its_budget_is_refused() -> None:
    # 3 iterations x 4 questions x 8 answers x 128 tokens, and a baseline and a last evaluation, at 2 USD a million
    with pytest.raises(RefusedError, match=r"estimated to cost 0\.0\d USD, and its budget is 0\.01"):
        asked(prices=PRICES, max_budget_usd=0.01)
    assert asked(prices=PRICES, max_budget_usd=0.2).spec.max_budget_usd == 0.2


def test_the_estimate_is_that_of_a_hand_worked_order() -> None:
    spec = job_spec(held_out_share=0.0, sampling=Sampling(max_tokens=100))
    # "0 + 1 =" has 7 bytes, and 24 answers are sampled
    assert estimate(spec) == JobUsage(42, 1200)


def test_prices_and_the_budget_come_from_the_settings() -> None:
    of_tokens = Settings(batches=Batches(groups=4), prices=Prices(prompt_usd=1.0, completion_usd=2.0))
    spec = asked(of_tokens.model_copy(update={"jobs": Jobs(trainer_hour_usd=3.0)})).spec
    assert spec.prices == JobPrices(prompt=1.0, completion=2.0, trainer_hour=3.0)
    assert spec.max_budget_usd == 100.0
    assert asked(of_tokens).spec.prices is None


def test_the_price_of_training_alone_and_a_budget_without_it_are_refused() -> None:
    own = Settings(batches=Batches(groups=4)).model_copy(update={"jobs": Jobs(trainer_hour_usd=3.0)})
    with pytest.raises(JobRequestError, match=r"a price is missing: set all of prices\.prompt_usd"):
        asked(own)
    with pytest.raises(ValueError, match="no effect without prices"):
        Jobs(max_budget_usd=5.0)


def test_the_same_request_has_the_same_digest_and_another_has_another() -> None:
    assert asked().digest == asked().digest != asked(n_iterations=4).digest


@gated
def test_a_job_on_a_held_out_question_is_refused_and_one_that_may_be_says_who_ordered_it(tmp_path: Path) -> None:
    train = [number for number, query in enumerate(QUERIES) if place(query["query"]) >= 0.2]
    leaked = QUERIES[train[0]]["query"]
    (tmp_path / "held-out.jsonl").write_text(f'{{"prompt": "{leaked.upper()}", "answer": "0", "scenario": "s"}}\n')
    (tmp_path / "suite.yaml").write_text(
        "name: sums\nscenarios:\n  all:\n    file: held-out.jsonl\n    reward_sources: [exact]\n"
    )
    guarded = SETTINGS.model_copy(update={"guard": Guard(suite=tmp_path / "suite.yaml")})
    with pytest.raises(ContaminatedError, match=rf"training_queries\[{train[0]}\].*question 0 of suite sums@"):
        asked(guarded)
    allowed = asked(guarded, allow_contaminated=True)
    assert allowed.allow_contaminated and not asked().allow_contaminated
    assert asked(allow_contaminated=False).digest == asked().digest != allowed.digest
    event = job_event("created", spec=allowed.spec, metadata={CONTAMINATION_ALLOWED_BY: "ann"})
    state = fold(None, event)
    assert state is not None and train_task(state, 1, 0, 0).metadata[CONTAMINATION_ALLOWED_BY] == "ann"
    plain = fold(None, job_event("created", spec=allowed.spec))
    assert plain is not None and CONTAMINATION_ALLOWED_BY not in train_task(plain, 1, 0, 0).metadata


def test_a_prompt_longer_than_the_context_is_refused_as_at_every_entrance(tmp_path: Path) -> None:
    settings = prompt_check.settings_for(tmp_path / "tiny")

    def ask(text: str) -> None:
        queries, config = [{"query": text, "expected_outcome": "1"}], {"n_iterations": 1, "held_out_share": 0}
        job = read_request({"agent_id": "default", "training_queries": queries, "config": config})
        order(job, settings, policies=["default"], agents={})

    ask("7")
    with pytest.raises(JobRequestError, match=r"model.base .* cannot answer it: .*context"):
        ask("7 " * 5000)


@pytest.mark.parametrize(("name", "words"), scorer_check.BAD.items())
def test_a_scorer_that_cannot_be_loaded_is_refused_as_at_every_entrance(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("my_scorers", "statistics"):
        Path(f"{module}.py").write_text(scorer_check.MARKED)
    config = {"n_iterations": 1, "held_out_share": 0, "reward_sources": [name]}
    queries = [{"query": "q", "expected_outcome": "a"}]
    job = read_request({"agent_id": "default", "training_queries": queries, "config": config})
    with pytest.raises(JobRequestError, match=f"reward_sources: .*{words}"):
        order(job, scorer_check.settings_for(name), policies=["default"], agents={})
