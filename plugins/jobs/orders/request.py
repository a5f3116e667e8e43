"""Turn a request into a job, or name the wrong parameter.

    {"agent_id", "training_queries" or "environment", "config"} ──► JobRequest ──► JobSpec, checked against the settings
                                                                        └──► JobRequestError(parameter)

Settings without effect are refused: learning rate, batch size and gamma belong to the trainer and the stages, so a job
may repeat but not change them. Its cost is estimated before its first token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from plugins.jobs.fold.questions import train_task
from plugins.jobs.fold.state import JobState, cost_usd, sides, split
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.job_types import estimate
from schemas.events import (
    MAX_GROUP_SIZE,
    MAX_TURNS,
    JobEnvironment,
    JobPrices,
    JobQuestion,
    JobSpec,
    PromptUse,
    RewardSource,
    Sampling,
    Task,
)
from schemas.faults import faults, nearest
from schemas.job_events import ONE_SOURCE
from streams.engines.prompt_check import unanswerable_prompts
from streams.errors import EventError, JobRequestError, NotFoundError, RefusedError
from streams.rows.row_texts import RowTexts, parameters_of
from streams.rows.training_gate import AllHeldOut, TrainingUse
from streams.scorers.registry import is_of_group
from streams.scorers.scorer_check import unusable_scorer
from streams.settings.model import FOLDER_NAME, Settings
from streams.stages.agents.registered_agents import KnownAgent
from streams.stages.tasks.episodes import ENVIRONMENT_AGENT, HELD_OUT_TASKS
from streams.stages.tasks.line_steps import LineSteps, log_now, names_of_tenant
from streams.stages.tasks.prompted import named_prompt
from streams.stages.tasks.suites import of_guard
from streams.stages.tasks.task_problems import task_problems

PRICE_SETTINGS = "prices.prompt_usd, prices.completion_usd and jobs.trainer_hour_usd"
MOST_QUERIES = 100_000
"""Most questions of one job; they are in one record, whose size is checked, too."""
MOST_HELD_OUT = 10_000
"""Most episodes that each evaluation plays."""
MOST_ITERATIONS = 1_000_000

Usd = Annotated[float, Field(ge=0)]


class RequestPart(BaseModel):
    """Strict types, no unknown parameters, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TrainingQuery(RequestPart):
    """One question, and what `exact` compares its answers with."""

    query: str = Field(min_length=1)
    expected_outcome: str | int | float | tuple[str | int | float, ...] | None = None
    variant_of: str | None = Field(None, description="the question that this one asks in other words")


class EnvironmentConfig(RequestPart):
    """An environment, whose episodes are trained on instead of questions."""

    name: str = Field(
        min_length=1, max_length=500, description="a built-in one, a reference that is allowed, or an entry's name"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="of the environment; an entry has its own")
    episodes: int = Field(1000, ge=1, le=MOST_QUERIES, description="seeds to train on")
    held_out: int = Field(
        HELD_OUT_TASKS, ge=0, le=MOST_HELD_OUT, description="other seeds, never trained on; 0: nothing is evaluated"
    )
    max_turns: int | None = Field(
        None, ge=1, le=MAX_TURNS, description="most actions of an episode; default: the environment's, else 8"
    )


class RewardSourceConfig(RequestPart):
    """A scorer, as a task names it; a text alone is its name."""

    name: str
    weight: float = 1.0
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class PricesConfig(RequestPart):
    """USD a million tokens, and an hour of training."""

    prompt: Usd
    completion: Usd
    trainer_hour: Usd


class JobConfig(RequestPart):
    """How a job is run."""

    n_iterations: int = Field(ge=1, le=MOST_ITERATIONS, description="adapter versions at most")
    batch_size: int | None = Field(None, ge=1, description="questions in one iteration; has to be batches.groups")
    n_trajectories_per_query: int = Field(8, ge=2, le=MAX_GROUP_SIZE, description="responses to each")
    learning_rate: float | None = Field(None, gt=0, description="has to be trainer.learning_rate")
    lora_rank: int | None = Field(None, ge=1, description="has to be trainer.lora_rank")
    lora_alpha: int | None = Field(None, ge=1, description="has to be trainer.lora_alpha")
    lora_targets: str | None = Field(None, description="has to be trainer.lora_targets")
    max_budget_usd: float | None = Field(None, gt=0, description="default: jobs.max_budget_usd, if there are prices")
    checkpoint_interval: int = Field(10, ge=1, description="iterations from one evaluation to the next")
    max_steps_per_trajectory: int | None = Field(
        None, ge=1, le=MAX_TURNS, description="most model calls of an agent; default: 20"
    )
    gamma: float | None = Field(None, gt=0, le=1, description="has to be advantages.gamma")
    held_out_share: float = Field(0.2, ge=0, lt=1, description="of the questions; 0: nothing is evaluated")
    keep_best: int = Field(5, ge=1, description="evaluated versions that are kept")
    patience: int = Field(3, ge=1, description="evaluations without a better version after which it stops")
    target_gain: float | None = Field(None, gt=0, le=1, description="gain in success at which it is complete")
    max_tokens: int = Field(
        256, ge=1, le=2**31 - 1, description="most tokens of an answer; in an environment, default: its own, else 64"
    )
    temperature: float = Field(1.0, gt=0, le=2, description="in an environment, default: its own, else 1")
    reward_sources: tuple[RewardSourceConfig, ...] = Field(
        (RewardSourceConfig(name="exact"),),
        min_length=1,
        description="scorers of the answers; default: those of the agent, in an environment its rewards, else exact",
    )
    prices: PricesConfig | None = Field(None, description="default: jobs.prices of the settings, if they are set")
    prompt: str | None = Field(
        None, min_length=1, description="NAME@ALIAS or NAME@3 that every question begins with until the job ends"
    )
    prompt_variables: dict[str, Any] = Field(default_factory=dict, description="the value of each of its variables")
    allow_contaminated: bool = Field(
        False, description="train on questions that a suite holds out; who ordered it is recorded"
    )
    new_policy: bool = Field(False, description="the policy may be one that has no version yet")


class JobRequest(RequestPart):
    """A request for a job."""

    agent_id: str = Field(min_length=1, description="a policy, new with config.new_policy, or a registered agent")
    training_queries: tuple[TrainingQuery, ...] | None = Field(None, min_length=1, max_length=MOST_QUERIES)
    environment: EnvironmentConfig | None = None
    config: JobConfig
    tenant: str | None = Field(None, min_length=1, description="tenant that pays")


class PlayableEnvironment(NamedTuple):
    """An environment that can be opened and repeats its episodes, and what it says of how it is played."""

    environment: JobEnvironment
    max_turns: int
    max_tokens: int
    temperature: float


TryEnvironment = Callable[[EnvironmentConfig], PlayableEnvironment]
"""Opens an environment by what an order says of it. Raises JobRequestError."""


def try_no_environment(config: EnvironmentConfig) -> PlayableEnvironment:
    """Raise JobRequestError: no environment is opened here."""
    raise JobRequestError(f"environment: {config.name} is not opened here; give training_queries", "environment")


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A valid request."""

    policy: str
    tenant: str | None
    spec: JobSpec
    digest: str
    """sha256 of the request in its canonical form."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Recorded for the user's information; no decision depends on them."""
    allow_contaminated: bool = False
    """Whether it may train on questions that a suite holds out."""

    def with_metadata(self, metadata: Mapping[str, str], request: Any) -> JobOrder:
        """Return the order with metadata; `request` is the request that it was made of, and its digest is of that."""
        return replace(self, metadata=metadata, digest=digest_of(request))

    def of_agent(self, agent_id: str) -> JobOrder:
        """Return the order as one for an agent and its policy."""
        return replace(self, spec=replace(self.spec, agent=agent_id), digest=digest_of([self.digest, agent_id]))


def read_request(body: Any) -> JobRequest:
    """Return a request. Raises JobRequestError that names the first parameter that is wrong."""
    try:
        text = json.dumps(body)
        text.encode()
        request = JobRequest.model_validate_json(text)
    except ValidationError as exc:
        raise explain(exc, JobRequest, body) from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise JobRequestError(f"the request cannot be written as JSON in UTF-8: {exc}") from exc
    if request.training_queries is None and request.environment is None:
        raise JobRequestError(f"training_queries is required, or environment; {ONE_SOURCE}", "training_queries")
    if request.training_queries is not None and request.environment is not None:
        raise JobRequestError(f"training_queries and environment are both set; {ONE_SOURCE}", "environment")
    return request


def order(
    request: JobRequest,
    settings: Settings,
    *,
    policies: Collection[str],
    agents: Mapping[str, KnownAgent],
    tenant: str | None = None,
    try_environment: TryEnvironment = try_no_environment,
) -> JobOrder:
    """Return the requested job. `agents`: the registered ones; `tenant`: the owner of the prompts that it may name.

    Raises JobRequestError, NotFoundError for an unknown agent, RefusedError if the estimate is over the budget.
    """
    config = request.config
    policy, agent = _who(request.agent_id, policies, agents, may_be_new=config.new_policy)
    if request.environment is None:
        queries = request.training_queries or ()
        _each_once(queries)
        rewards = () if agent is None else agents[agent].reward_sources
        spec = spec_of(config, questions_in(queries), settings, policy=policy, agent=agent, rewards_of_agent=rewards)
    else:
        _check_without_effect(config, policy, agent)
        spec = _episodes_spec(config, try_environment(request.environment), settings, policy)
    if config.prompt is not None:
        spec = replace(spec, prompt_version=prompt_of(config, tenant or request.tenant, settings))
        _check_tasks(policy, spec, settings)
    digest = digest_of(request.model_dump(mode="json"))
    return JobOrder(policy, request.tenant, spec, digest, allow_contaminated=config.allow_contaminated)


def prompt_of(config: JobConfig, tenant: str | None, settings: Settings) -> PromptUse:
    """Return the prompt that a job's questions begin with. Raises JobRequestError, NotFoundError."""
    try:
        name = names_of_tenant(tenant, {"prompt_version": config.prompt or ""})["prompt_version"]
        return named_prompt(LineSteps(log_now(settings)), name, config.prompt_variables, None)
    except EventError as exc:
        raise JobRequestError(f"config.prompt: {exc}", "config.prompt") from exc


def spec_of(
    config: JobConfig,
    questions: tuple[JobQuestion, ...],
    settings: Settings,
    *,
    policy: str,
    agent: str | None,
    rewards_of_agent: tuple[RewardSource, ...] = (),
) -> JobSpec:
    """Return a job of these questions, checked against the settings. Raises as `order`."""
    if config.max_steps_per_trajectory is not None and agent is None:
        raise JobRequestError(
            f"config.max_steps_per_trajectory has no effect: {policy} is a policy, which answers in one step. Leave it "
            "out, or name an agent",
            "config.max_steps_per_trajectory",
        )
    spec = replace(
        _bare_spec(config, settings),
        held_out_share=config.held_out_share,
        agent=agent,
        max_turns=None if agent is None else config.max_steps_per_trajectory or 20,
        sampling=Sampling(temperature=config.temperature, max_tokens=config.max_tokens),
        reward_sources=_reward_sources(config, rewards_of_agent),
        questions=questions,
    )
    _check_share(spec)
    _check(config, spec, settings, policy)
    return spec


def _episodes_spec(config: JobConfig, tried: PlayableEnvironment, settings: Settings, policy: str) -> JobSpec:
    """Return a job of these episodes, checked against the settings. Raises as `order`."""
    chosen = config.model_fields_set
    sampling = Sampling(
        temperature=config.temperature if "temperature" in chosen else tried.temperature,
        max_tokens=config.max_tokens if "max_tokens" in chosen else tried.max_tokens,
    )
    spec = replace(
        _bare_spec(config, settings),
        agent=ENVIRONMENT_AGENT,
        max_turns=tried.max_turns,
        sampling=sampling,
        reward_sources=_reward_sources(config, (RewardSource(name="environment"),)),
        environment=tried.environment,
    )
    _check(config, spec, settings, policy)
    return spec


def _check_without_effect(config: JobConfig, policy: str, agent: str | None) -> None:
    """Raise JobRequestError for what has no effect on episodes."""
    if agent is not None:
        raise JobRequestError(
            f"agent_id: {agent} is an agent, whose program plays no episodes; name its policy, {policy}", "agent_id"
        )
    instead = {
        "held_out_share": "environment.held_out says how many seeds are held out",
        "max_steps_per_trajectory": "environment.max_turns is the most actions of an episode",
        "prompt": "an environment shows its own messages",
        "prompt_variables": "an environment shows its own messages",
    }
    for name in instead:
        if name in config.model_fields_set:
            path = f"config.{name}"
            raise JobRequestError(f"{path} has no effect on episodes: {instead[name]}. Leave it out", path)


def _bare_spec(config: JobConfig, settings: Settings) -> JobSpec:
    """Return a job that has nothing to train on yet. Raises JobRequestError."""
    _repeats(config, settings)
    prices, budget = prices_and_budget(config.prices, config.max_budget_usd, settings)
    return JobSpec(
        iterations=config.n_iterations,
        batch_size=settings.batches.groups,
        group_size=config.n_trajectories_per_query,
        held_out_share=0.0,
        evaluate_every=config.checkpoint_interval,
        keep_best=config.keep_best,
        patience=config.patience,
        target_gain=config.target_gain,
        max_budget_usd=budget,
        prices=prices,
    )


def _check(config: JobConfig, spec: JobSpec, settings: Settings, policy: str) -> None:
    """Raise JobRequestError or RefusedError for a job that could not run, or would cost too much."""
    _check_comparing(spec)
    _check_tasks(policy, spec, settings)
    if not config.allow_contaminated:
        _check_held_out(spec, settings)
    check_estimate(spec, "n_iterations, n_trajectories_per_query or max_tokens")


def digest_of(request: Any) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _reward_sources(config: JobConfig, of_agent: tuple[RewardSource, ...]) -> tuple[RewardSource, ...]:
    """Return those that are ordered, else the agent's, else `exact`."""
    if of_agent and "reward_sources" not in config.model_fields_set:
        return of_agent
    return tuple(
        RewardSource(name=source.name, weight=source.weight, settings=json.dumps(source.settings))
        for source in config.reward_sources
    )


def _who(
    name: str, policies: Collection[str], agents: Mapping[str, KnownAgent], *, may_be_new: bool
) -> tuple[str, str | None]:
    """Return the policy that is trained, and the agent that answers for it, if any."""
    if name in agents:
        return agents[name].policy, name
    if name in policies:
        return name, None
    if may_be_new and re.fullmatch(FOLDER_NAME, name):
        return name, None
    known = nearest(name, [*policies, *agents])
    way_out = f"a name has to match {FOLDER_NAME}" if may_be_new else "config.new_policy lets a job begin a new policy"
    raise NotFoundError(f"agent_id: there is no policy and no agent {name!r}; {known}; {way_out}")


def _repeats(config: JobConfig, settings: Settings) -> None:
    """Raise JobRequestError for a parameter that is the deployment's, and has another value there."""
    deployment: dict[str, tuple[str, float | str]] = {
        "batch_size": ("batches.groups", settings.batches.groups),
        "learning_rate": ("trainer.learning_rate", settings.trainer.learning_rate),
        "gamma": ("advantages.gamma", settings.advantages.gamma),
        "lora_rank": ("trainer.lora_rank", settings.trainer.lora_rank),
        "lora_alpha": ("trainer.lora_alpha", settings.trainer.lora_alpha),
        "lora_targets": ("trainer.lora_targets", settings.trainer.lora_targets),
    }
    for name, (key, value) in deployment.items():
        if (requested := getattr(config, name)) is not None and requested != value:
            way_out = "; a job that tunes (sft, dpo) may choose it" if name.startswith("lora_") else ""
            raise JobRequestError(
                f"config.{name} is {_plain(requested)}, and would have no effect: {key} is {_plain(value)} here. Leave "
                f"it out, or set {key} for the processes of the loop{way_out}",
                f"config.{name}",
            )


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _each_once(queries: tuple[TrainingQuery, ...]) -> None:
    first: dict[str, int] = {}
    for number, query in enumerate(queries):
        if first.setdefault(query.query, number) != number:
            raise JobRequestError(
                f"training_queries[{number}].query repeats training_queries[{first[query.query]}].query; give each "
                "once",
                f"training_queries[{number}].query",
            )


def prices_and_budget(
    prices: PricesConfig | None, budget_usd: float | None, settings: Settings
) -> tuple[JobPrices | None, float | None]:
    """Return the prices and the budget of a job.

    Raises JobRequestError for a budget without prices, or if the settings have the price of training alone.
    """
    job_prices = _prices(prices, settings)
    if job_prices is None and budget_usd is not None:
        raise JobRequestError(
            f"config.max_budget_usd is set, and a price is missing: give config.prices, or set {PRICE_SETTINGS}",
            "config.prices",
        )
    if job_prices is not None and budget_usd is None:
        budget_usd = settings.of_plugin(Jobs).max_budget_usd
    return job_prices, budget_usd


def _prices(config: PricesConfig | None, settings: Settings) -> JobPrices | None:
    if config is not None:
        return JobPrices(**config.model_dump())
    of_tokens, trainer_hour = settings.prices, settings.of_plugin(Jobs).trainer_hour_usd
    prompt, completion = of_tokens.prompt_usd, of_tokens.completion_usd
    if trainer_hour is None:
        return None
    if prompt is None or completion is None:
        raise JobRequestError(f"a price is missing: set all of {PRICE_SETTINGS} (0 is free), or none", "config.prices")
    return JobPrices(prompt=prompt, completion=completion, trainer_hour=trainer_hour)


def questions_in(queries: Iterable[TrainingQuery]) -> tuple[JobQuestion, ...]:
    """Return the questions of a request."""
    return tuple(map(_question, queries))


def _question(query: TrainingQuery) -> JobQuestion:
    expected = query.expected_outcome
    if isinstance(expected, float):
        expected = f"{Decimal(repr(expected)):f}"  # without an exponent
    verifier = "{}" if expected is None else json.dumps({"answer": expected})
    return JobQuestion(query=query.query, verifier=verifier, variant_of=query.variant_of)


def _check_share(spec: JobSpec) -> None:
    train, held_out = split(spec.questions, spec.held_out_share)
    if not train or (spec.held_out_share and not held_out):
        which = "trained on" if held_out else "held out"
        raise JobRequestError(
            f"training_queries: of these {len(spec.questions)} none is {which}, as a hash decides with "
            f"config.held_out_share {spec.held_out_share:g}; give more of them, or another share (0: none is held out)",
            "training_queries",
        )


def _check_comparing(spec: JobSpec) -> None:
    """Raise JobRequestError for a scorer that compares responses, where a question has one."""
    name = next((source.name for source in spec.reward_sources if is_of_group(source)), None)
    if name is None or not sides(spec)[1]:
        return
    zero = "config.held_out_share" if spec.environment is None else "environment.held_out"
    raise JobRequestError(
        f"config.reward_sources: {name} compares the responses to a question, and a held-out one is answered once; set "
        f"{zero} to 0, or name another scorer",
        "config.reward_sources",
    )


def _check_tasks(policy: str, spec: JobSpec, settings: Settings) -> None:
    """Raise JobRequestError for a question that would make no task, and a scorer that cannot be loaded."""
    tasks: dict[str, tuple[str, Task]] = {}
    for number in range(len(spec.questions) or 1):  # all episodes are alike
        place = "environment" if spec.environment is not None else f"training_queries[{number}]"
        task = _task_of(spec, policy, number)
        if (problem := next(task_problems(task, settings.topics, settings.advantages.min_group), None)) is not None:
            raise JobRequestError(f"{place}: {problem}", place)
        tasks[task.task_id] = place, task
    if problem := unusable_scorer(settings.scoring, spec.reward_sources):
        raise JobRequestError(f"reward_sources: {problem}", "reward_sources")
    for task, problem in unanswerable_prompts(settings, (task for _, task in tasks.values())):
        place = tasks[task.task_id][0]
        raise JobRequestError(f"{place}: model.base {settings.model.base} cannot answer it: {problem}", place)


def _task_of(spec: JobSpec, policy: str, number: int) -> Task:
    """Return the train task of a question or an episode, before its job has an id."""
    alone = JobState(
        job_id="", policy=policy, tenant=None, spec=spec, train=(number,), held_out=(), request_digest=None,
        created_at=0, updated_at=0, asks_since=0,
    )  # fmt: skip
    return train_task(alone, 1, 0, 0)


def _check_held_out(spec: JobSpec, settings: Settings) -> None:
    """Raise RefusedError if what is trained on is held out by guard.suite; the trainer checks suites of the log."""
    if (suite := of_guard(settings)) is None:
        return
    environment, (train, _) = spec.environment, sides(spec)
    if environment is None:
        name = "training_queries"
        questions = ((number, spec.questions[number]) for number in train)
        rows = (
            RowTexts(f"{name}[{number}]", tuple(filter(None, (question.query, question.variant_of))))
            for number, question in questions
        )
    else:
        name, tasks = (
            "environment",
            ((seed, _task_of(spec, "", number)) for number, seed in enumerate(environment.seeds)),
        )
        rows = (RowTexts(f"{name}, seed {seed}", (), parameters_of(task.environment)) for seed, task in tasks)
    use = TrainingUse(name, "Leave them out, or set config.allow_contaminated, which is recorded")
    AllHeldOut.of_suites(settings, [suite]).check(rows, use)


def check_estimate(spec: JobSpec, lower: str) -> None:
    """Raise RefusedError if what the job is likely to cost is over its budget; `lower`: what would make it less."""
    if spec.prices is None or spec.max_budget_usd is None:
        return
    cost = cost_usd(estimate(spec), spec.prices)
    if cost > spec.max_budget_usd:
        raise RefusedError(
            f"the job is estimated to cost {cost:.2f} USD, and its budget is {spec.max_budget_usd:.2f} "
            f"(config.max_budget_usd). Lower {lower}, or raise the budget"
        )


def explain(exc: ValidationError, model: type[BaseModel], value: Any) -> JobRequestError:
    """Return what is wrong with the parameters in `value`, which `model` was to read: the first of its faults."""
    fault = next(faults(exc, model, value))
    return JobRequestError(fault.text, fault.path or None)
