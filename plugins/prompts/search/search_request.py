"""A request to search for a better version of a prompt: fields, checks, and the resulting job.

    {agent_id, prompt, method, questions, config} ──► SearchRequest ──► JobOrder ──► created ──► jobs

Everything is checked before a sample is paid for: known versions, a value for each variable, questions on each of the
three sides, budgets. The method is `pairs` (given versions on the same questions), `live` (given versions on shares of
an alias's users; questions, if there are any, are for the report) or `reflection` (new versions, by a model that reads
what answers earned).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, ValidationError

from plugins.jobs.fold.state import JobState, split
from plugins.jobs.orders.request import (
    JobOrder,
    PricesConfig,
    RequestPart,
    RewardSourceConfig,
    TrainingQuery,
    check_estimate,
    digest_of,
    explain,
    prices_and_budget,
    questions_in,
)
from plugins.prompts.search.search_tasks import prompt_of
from plugins.prompts.versions.prompt_state import PromptState, PromptVersion
from schemas.events import JobSpec, PromptSearch, RewardSource, Sampling
from streams.access.tenants.tenant_names import named
from streams.errors import EventError, JobRequestError, NotFoundError
from streams.settings.model import Settings


class SearchConfig(RequestPart):
    """How a better version is searched for."""

    versions: tuple[int, ...] = Field((), description="to compare, the one in use first; default: all of them")
    alias: str | None = Field(None, min_length=1, description="that a better version gets")
    max_answers: int = Field(400, ge=2, le=1_000_000, description="most answers of the policy")
    alpha: float = Field(0.05, gt=0, lt=1, description="probability that a version which is not better is called so")
    held_out_share: float = Field(0.2, ge=0, lt=1, description="of the questions, for the figures of the report alone")
    share: float | None = Field(
        None, gt=0, lt=1, description="live: of the alias's users, who get the other versions; default: equal parts"
    )
    validation_share: float = Field(0.5, gt=0, lt=1, description="reflection: of the others, to pick the best by")
    minibatch: int = Field(3, ge=1, le=100, description="reflection: questions that a proposal is first tried on")
    model: str | None = Field(None, min_length=1, description="reflection: that proposes; default: scoring.judge_model")
    endpoint: str | None = Field(
        None, min_length=1, description="reflection: its URL up to /v1, or module:function; default: scoring.judge_url"
    )
    variables: dict[str, Any] = Field(default_factory=dict, description="the value of each variable")
    version: int | None = Field(None, ge=0, description="adapter version that answers; default: the primary")
    max_tokens: int = Field(256, ge=1, le=2**31 - 1, description="most tokens of an answer")
    seed: int = 0
    reward_sources: tuple[RewardSourceConfig, ...] = Field((RewardSourceConfig(name="exact"),), min_length=1)
    max_budget_usd: float | None = Field(None, gt=0, description="default: jobs.max_budget_usd, if there are prices")
    prices: PricesConfig | None = Field(None, description="default: jobs.prices of the settings, if they are set")


class SearchRequest(RequestPart):
    """A request for a search."""

    policy: str = Field(min_length=1, description="that answers")
    prompt: str = Field(min_length=1, description="its name")
    method: Literal["pairs", "live", "reflection"] = "pairs"
    questions: tuple[TrainingQuery, ...] = Field((), description="each with `query` and `expected_outcome`")
    config: SearchConfig = SearchConfig()
    tenant: str | None = Field(None, min_length=1, description="tenant that pays")


def read_request(body: Any) -> SearchRequest:
    """Return a request. Raises JobRequestError that names the first parameter that is wrong."""
    try:
        return SearchRequest.model_validate_json(json.dumps(body))
    except ValidationError as exc:
        raise explain(exc, SearchRequest, body) from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise JobRequestError(f"the request cannot be written as JSON: {exc}") from exc


def order(
    request: SearchRequest, settings: Settings, prompts: Mapping[str, PromptState], *, agent: str | None = None
) -> JobOrder:
    """Return the job that is asked for. Raises JobRequestError, NotFoundError, RefusedError over its budget."""
    config, name = request.config, named(request.tenant, request.prompt)
    state = prompts.get(name)
    if state is None:
        raise NotFoundError(f"there is no prompt {name[:80]!r}; `streamward improve prompts list` prints them")
    versions = _versions(request, state)
    prices, budget = prices_and_budget(config.prices, config.max_budget_usd, settings)
    sources = tuple(
        RewardSource(name=one.name, weight=one.weight, settings=json.dumps(one.settings))
        for one in config.reward_sources
    )
    spec = JobSpec(
        iterations=1,
        batch_size=1,
        group_size=1,
        held_out_share=config.held_out_share,
        evaluate_every=1,
        keep_best=1,
        patience=1,
        target_gain=None,
        max_budget_usd=budget,
        agent=agent,
        prices=prices,
        sampling=Sampling(max_tokens=config.max_tokens),
        reward_sources=sources,
        questions=questions_in(request.questions),
        search=PromptSearch(
            prompt=name,
            method=request.method,
            alias=config.alias,
            max_answers=config.max_answers,
            alpha=config.alpha,
            validation_share=config.validation_share,
            minibatch=config.minibatch,
            adapter_version=config.version,
            seed=config.seed,
            model=config.model or settings.scoring.judge_model,
            endpoint=config.endpoint or settings.scoring.judge_url if request.method == "reflection" else None,
            values=json.dumps(config.variables, ensure_ascii=False),
            share=config.share,
            versions=tuple(version.number for version in versions),
        ),
    )
    _check(request, spec, versions)
    _check_live(request, state, versions)
    check_estimate(spec, "max_answers or max_tokens")
    return JobOrder(request.policy, request.tenant, spec, digest_of(request.model_dump(mode="json")))


def _versions(request: SearchRequest, state: PromptState) -> list[PromptVersion]:
    """Return the versions that are compared, the one in use first."""
    config = request.config
    numbers = list(dict.fromkeys(config.versions))
    target = None if config.alias is None else state.aliases.get(config.alias)
    if not numbers:
        numbers = [version.number for version in state.versions if version.number not in state.withdrawn]
        if target is not None and target.version is not None:
            numbers = [target.version, *(number for number in numbers if number != target.version)]
        if request.method == "reflection":
            numbers = numbers[:1]
    versions = []
    for number in numbers:
        if (version := state.version(number)) is None:
            raise NotFoundError(f"prompt {state.prompt} has no version {number}; its newest is {len(state.versions)}")
        if (problem := state.withdrawal(number)) is not None:
            raise NotFoundError(f"prompt {state.prompt}: {problem}")
        versions.append(version)
    return versions


def _check(request: SearchRequest, spec: JobSpec, versions: list[PromptVersion]) -> None:
    """Raise JobRequestError for a search that could not begin, or would have no result."""
    search = spec.search
    if search is None:
        raise JobRequestError("no search is asked for")
    if request.method != "reflection" and len(versions) < 2:
        raise JobRequestError(
            f"config.versions: {len(versions)} to compare; create another version first", "config.versions"
        )
    if request.method == "reflection" and search.endpoint is None:
        raise JobRequestError(
            "config.endpoint is missing: name a model's URL or module:function, or set scoring.judge_url",
            "config.endpoint",
        )
    train, held_out = ((), ()) if request.method == "live" else split(spec.questions, spec.held_out_share)
    sides = {"searched on": len(train)} | ({"held out": len(held_out)} if spec.held_out_share else {})
    if request.method != "live" and min(sides.values()) < 1:
        which = min(sides, key=lambda side: sides[side])
        raise JobRequestError(f"questions: of {len(spec.questions)} none is {which}; give more of them", "questions")
    whole = JobState(
        job_id="", policy=request.policy, tenant=request.tenant, spec=replace(spec), train=(), held_out=(),
        request_digest=None, created_at=0, updated_at=0, asks_since=0,
    )  # fmt: skip
    for version in versions:
        try:
            prompt_of(version, whole)
        except EventError as exc:
            raise JobRequestError(f"config.variables: {exc}", "config.variables") from exc


def _check_live(request: SearchRequest, state: PromptState, versions: list[PromptVersion]) -> None:
    """Raise JobRequestError for a live comparison with an alias that cannot be shared."""
    config = request.config
    if request.method != "live":
        if config.share is not None:
            raise JobRequestError("config.share: it is of a live search; leave it out", "config.share")
        return
    if config.alias is None:
        raise JobRequestError("config.alias is missing: name the alias whose users are shared", "config.alias")
    target = state.aliases.get(config.alias)
    if target is None or target.version != versions[0].number:
        meaning = "nothing yet" if target is None else f"version {target.version}"
        if target is not None and target.version is None:
            meaning = f"several versions, by the comparison of job {target.event.job_id}"
        raise JobRequestError(
            f"config.alias: {config.alias} means {meaning}, and the search begins with version {versions[0].number}; "
            "activate that one, or name another first in config.versions",
            "config.alias",
        )
