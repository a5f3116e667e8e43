"""Training that somebody ordered: what it may cost, and how far it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import MAX_TURNS, Int, Millis, TuningMethod
from schemas.json_text import parse
from schemas.message_types import Message, Tool
from schemas.prompt_events import PromptUse, prompt_use_problems
from schemas.task_events import RewardSource, Sampling

SearchMethod = Literal["pairs", "live", "reflection"]
JobKind = Literal[
    "created",
    "started",
    "iteration",
    "evaluated",
    "paused",
    "resumed",
    "budget_warned",
    "budget_exceeded",
    "completed",
    "failed",
    "cancelled",
    "month_closed",
]
ONE_SOURCE = "a job trains on questions, or on episodes of one environment: give one of the two"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """A question of a job: what the policy is asked, and what its answers are checked against."""

    query: str
    verifier: Annotated[str, "JSON object the scorers check against, e.g. the right answer"] = "{}"
    messages: Annotated[tuple[Message, ...], "the whole prompt, which ends with the query; empty: the query alone"] = ()
    variant_of: Annotated[str | None, "the question that this one asks in other words; both are on one side"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrices:
    """What a job's work costs, in USD, as agreed when it was created."""

    prompt: Annotated[float, "a million tokens of prompts"] = 0.0
    completion: Annotated[float, "a million sampled tokens"] = 0.0
    trainer_hour: Annotated[float, "an hour of training"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTuning:
    """A version by supervised training or preferences, on the examples of a file or on answers of the log."""

    method: TuningMethod
    epochs: Annotated[Int, "how often each example is seen"]
    batch: Annotated[Int, "examples of a step"]
    beta: Annotated[float | None, "dpo: how strongly the start is held on to"] = None
    lora_rank: Annotated[Int | None, "of the adapter; null: as the version it starts from, else the settings"] = None
    lora_alpha: Annotated[Int | None, "as the rank"] = None
    lora_targets: Annotated[str | None, "as the rank"] = None
    start_policy: Annotated[str | None, "null: the version to start from is one of the job's policy"] = None
    start_version: Annotated[Int | None, "null: the newest of the policy when the job begins"] = None
    file_id: Annotated[str | None, "the uploaded file with the examples, named by its sha256; null: groups"] = None
    file: Annotated[str | None, "what it was called"] = None
    file_bytes: Annotated[int | None, "its size"] = None
    dataset: Annotated[str | None, "name of the data set; null: a file or groups"] = None
    dataset_digest: Annotated[str | None, "of its event: which build of that name"] = None
    groups_policy: Annotated[str | None, "whose groups; null: a file"] = None
    selection: Annotated[dict[str, str], "which of its groups' answers, as of a tuned version"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSearch:
    """A search for a better version of a prompt, by what answers earn."""

    prompt: Annotated[str, "its name"]
    method: SearchMethod
    alias: Annotated[str | None, "that the best version gets; live: whose users are shared among the versions"] = None
    max_answers: Annotated[Int, "most answers that are paid for"]
    alpha: Annotated[float, "probability that a worse version is called better"]
    min_gain: Annotated[float, "pairs: a smaller difference of mean rewards is not looked for"] = 0.0
    validation_share: Annotated[float, "reflection: of the questions that are not held out, to pick the best by"] = 0.5
    minibatch: Annotated[Int, "reflection: questions that a proposal is first tried on"] = 3
    adapter_version: Annotated[Int | None, "that answers; null: the primary when the job starts"] = None
    seed: int = 0
    model: Annotated[str | None, "reflection: that proposes texts"] = None
    endpoint: Annotated[str | None, "reflection: URL that it is asked at, or module:function"] = None
    values: Annotated[str, "JSON object: the value of each variable"] = "{}"
    share: Annotated[float | None, "live: of the alias's users, who get the other versions; null: equal parts"] = None
    versions: Annotated[tuple[Int, ...], "that are compared; reflection: the one that it begins with"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """The environment whose episodes a job trains on."""

    name: Annotated[str, "a listed environment, or where it comes from: package:name, gymnasium:id, mcp:url, ..."]
    settings: Annotated[str, "JSON object handed to the environment"] = "{}"
    entry: Annotated[str | None, "ID@DIGEST of the registry's entry that it was ordered by; null: none"] = None
    seeds: Annotated[tuple[int, ...], "of the episodes to train on"]
    held_out_seeds: Annotated[tuple[int, ...], "of those that evaluations play, and that are never trained on"] = ()
    held_out_temperature: Annotated[float, "at which evaluations play; 0 means greedy"] = 0.0
    messages: Annotated[tuple[Message, ...], "that the first episode begins with"] = ()
    tools: Annotated[tuple[Tool, ...], "that it offers"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What somebody ordered: train a policy on these questions or episodes, within a budget; or tune it, or find it a
    prompt.
    """

    iterations: Annotated[Int, "adapter versions at most"]
    batch_size: Annotated[Int, "questions in one iteration"]
    group_size: Annotated[Int, "responses to each"]
    held_out_share: Annotated[float, "of the questions, by their hash: never trained on, asked in evaluations"]
    evaluate_every: Annotated[Int, "iterations from one evaluation to the next"]
    keep_best: Annotated[Int, "evaluated versions that are kept when the job completes"]
    patience: Annotated[Int, "evaluations without a better version after which it stops early"]
    target_gain: Annotated[float | None, "gain in success, of 1, at which it is complete; null: none"] = None
    max_budget_usd: Annotated[float | None, "null: no limit"] = None
    agent: Annotated[str | None, "id of the agent that works on the tasks; null: the policy answers directly"] = None
    max_turns: Annotated[Int | None, "most model calls of one attempt of the agent"] = None
    prices: JobPrices | None = None
    tuning: Annotated[JobTuning | None, "instead of questions: one version by tuning"] = None
    prompt_version: Annotated[PromptUse | None, "that its tasks begin with until it ends; null: no prompt"] = None
    search: Annotated[PromptSearch | None, "instead of training: a search for a better prompt"] = None
    environment: Annotated[JobEnvironment | None, "instead of questions: episodes in an environment"] = None
    sampling: Annotated[Sampling, "of train tasks"] = field(default_factory=Sampling)
    reward_sources: tuple[RewardSource, ...] = ()
    questions: tuple[JobQuestion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A step in the life of a job. The state of a job is the fold of these, in order.

    month_closed is about no job: it says what a tenant spent in a month, and is written once.
    """

    event_id: Annotated[str, "uuid5(job_id, kind, sequence, ...); of a command with an Idempotency-Key: of that"]
    job_id: Annotated[str, "key of the record; month_closed: uuid5(month, tenant, which)"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: JobKind
    sequence: Annotated[Int, "compare and swap: how many events of the job took effect before this one"]
    policy: Annotated[str, "month_closed: empty"]
    tenant: str | None = None
    actor: Annotated[str, "jobs (the controller), or a person"]
    reason: str
    iteration: Annotated[Int | None, "how many iterations have ended, this one included"] = None
    version: Annotated[Int | None, "started: the newest before the job; iteration, evaluated: whose it is"] = None
    trained_batches: Annotated[
        Int | None, "started: batches that the policy's line had taken; null: as many as the version's number says"
    ] = None
    groups_next: Annotated[
        int | None, "offset in the policy's partition of groups: those below it are in the job's figures"
    ] = None
    code: Annotated[str | None, "failed: a word for programs"] = None
    suggested_action: Annotated[str | None, "failed: what to do about it"] = None
    request_digest: Annotated[str | None, "created: sha256 of what was asked for"] = None
    month: Annotated[str | None, "month_closed: which, in UTC, e.g. 2026-11"] = None
    spec: Annotated[JobSpec | None, "set exactly when it was created"] = None
    metrics: Annotated[
        dict[str, float],
        "of the job until now: tokens, seconds, USD; evaluated: against the version before the job; month_closed: of "
        "all jobs of the tenant in it",
    ] = field(default_factory=dict)
    best: Annotated[tuple[Int, ...], "evaluated: the best versions until now, the best first"] = ()
    counted: Annotated[
        tuple[int, ...], "month_closed: by partition of jobs, the offset below which records are in its figures"
    ] = ()


def job_problems(event: JobEvent) -> Iterator[str]:
    """Return one sentence for each rule that a job breaks."""
    if (event.spec is not None) != (event.kind == "created"):
        yield f"kind is {event.kind} and spec is {'missing' if event.spec is None else 'set'}; only created has one"
    if event.sequence < 0 or (event.sequence == 0) != (event.kind in ("created", "month_closed")):
        yield f"kind is {event.kind} and sequence {event.sequence}; created has 0, what follows it more"
    if (event.kind == "month_closed") != (event.month is not None):
        yield f"kind is {event.kind} and month {event.month}; month_closed alone has one"
    if event.month is not None:
        yield from _month_problems(event, event.month)
    if event.kind in ("iteration", "evaluated") and None in (event.iteration, event.version):
        yield f"kind is {event.kind}; it needs iteration and version"
    if event.kind == "started" and None in (event.version, event.groups_next):
        yield "kind is started; it needs version and groups_next"
    measured = {"success", "mean_reward", "success_gain", "gain"}
    if event.kind == "evaluated" and not measured <= event.metrics.keys():
        yield f"kind is evaluated and metrics has {sorted(event.metrics)}; it needs {', '.join(sorted(measured))}"
    if event.spec is not None:
        yield from _job_spec_problems(event.spec)


def _month_problems(event: JobEvent, month: str) -> Iterator[str]:
    if re.fullmatch(r"[1-9]\d{3}-(0[1-9]|1[0-2])", month) is None:
        yield f"month is {month!r}; expected a year and a month, e.g. 2026-11"
    if not event.counted or min(event.counted) < 0:
        yield f"kind is month_closed and counted is {event.counted}; expected an offset for each partition of jobs"
    figures = {"prompt_tokens", "completion_tokens", "trainer_s", "cost_usd"}
    if not figures <= event.metrics.keys():
        yield f"kind is month_closed and metrics has {sorted(event.metrics)}; it needs {', '.join(sorted(figures))}"


def _job_tuning_problems(tuning: JobTuning) -> Iterator[str]:
    if tuning.epochs < 1 or tuning.batch < 1:
        yield f"spec.tuning has {tuning.epochs} epochs and {tuning.batch} examples a step; expected 1 or more of each"
    if 0 in (tuning.lora_rank, tuning.lora_alpha) or tuning.lora_targets == "":
        yield (
            f"spec.tuning has lora_rank {tuning.lora_rank}, lora_alpha {tuning.lora_alpha} and lora_targets "
            f"{tuning.lora_targets!r}; expected 1 or more, names of modules, or null"
        )
    if (tuning.method == "dpo") != (tuning.beta is not None and tuning.beta > 0):
        yield f"spec.tuning.method is {tuning.method} and beta {tuning.beta}; dpo has one above 0, sft none"
    sources = {"file": tuning.file_id, "groups of": tuning.groups_policy, "data set": tuning.dataset}
    if sum(source is not None for source in sources.values()) != 1:
        named = ", ".join(f"{name} {source}" for name, source in sources.items())
        yield f"spec.tuning has {named}; expected one of them"
    if (tuning.dataset is None) != (tuning.dataset_digest is None):
        yield f"spec.tuning has dataset {tuning.dataset} and digest {tuning.dataset_digest}; set both or neither"
    if tuning.start_version is None and tuning.start_policy is not None:
        yield f"spec.tuning starts from {tuning.start_policy}, and no version is named; name one"


def _job_environment_problems(environment: JobEnvironment, spec: JobSpec) -> Iterator[str]:
    if spec.questions:
        yield f"spec.questions and spec.environment are both set; {ONE_SOURCE}"
    if spec.tuning is not None or spec.search is not None:
        yield "spec.environment is set in a job that tunes or searches; leave it out"
    if spec.prompt_version is not None:
        yield "spec.environment and spec.prompt_version are both set; an environment shows its own messages"
    if spec.agent is None or not 1 <= (spec.max_turns or 0) <= MAX_TURNS:
        yield (
            f"spec.environment is set, agent is {spec.agent} and max_turns {spec.max_turns}; name the agent that plays "
            f"its episodes, and 1 to {MAX_TURNS} turns"
        )
    if not environment.seeds:
        yield "spec.environment.seeds is empty; a job needs at least one to train on"
    every = (*environment.seeds, *environment.held_out_seeds)
    if len(set(every)) != len(every):
        yield "spec.environment has a seed twice in seeds and held_out_seeds; give each once"
    if not environment.held_out_temperature >= 0:
        yield f"spec.environment.held_out_temperature is {environment.held_out_temperature}; expected 0 or more"
    try:
        is_object = isinstance(parse(environment.settings), dict)
    except ValueError:
        is_object = False
    if not is_object:
        yield f"spec.environment.settings is {environment.settings[:80]!r}; expected a JSON object"


def _job_spec_problems(spec: JobSpec) -> Iterator[str]:
    for name in ("iterations", "batch_size", "group_size", "evaluate_every", "keep_best", "patience"):
        if getattr(spec, name) < 1:
            yield f"spec.{name} is {getattr(spec, name)}; expected 1 or more"
    if not 0 <= spec.held_out_share < 1:
        yield f"spec.held_out_share is {spec.held_out_share}; expected 0 or more, and less than 1"
    is_live = spec.search is not None and spec.search.method == "live"
    if not spec.reward_sources and spec.tuning is None:
        yield "spec.reward_sources is empty; a job needs at least one"
    if not spec.questions and spec.environment is None and spec.tuning is None and not is_live:
        yield f"spec.questions is empty and spec.environment null; {ONE_SOURCE}"
    if spec.environment is not None:
        yield from _job_environment_problems(spec.environment, spec)
    if spec.tuning is not None:
        yield from _job_tuning_problems(spec.tuning)
    if spec.prompt_version is not None:
        yield from prompt_use_problems(spec.prompt_version)
    if spec.search is not None:
        yield from _prompt_search_problems(spec.search, spec)
    if spec.max_budget_usd is not None and not spec.max_budget_usd > 0:
        yield f"spec.max_budget_usd is {spec.max_budget_usd}; expected more than 0, or null"
    prices = spec.prices
    if prices is not None and not min(prices.prompt, prices.completion, prices.trainer_hour) >= 0:
        yield f"spec.prices are {prices.prompt}, {prices.completion} and {prices.trainer_hour}; expected 0 or more"


def _prompt_search_problems(search: PromptSearch, spec: JobSpec) -> Iterator[str]:
    if spec.tuning is not None:
        yield "spec has tuning and search; a job does one of them"
    if search.max_answers < 1:
        yield f"spec.search.max_answers is {search.max_answers}; expected 1 or more"
    if not 0 < search.alpha < 1:
        yield f"spec.search.alpha is {search.alpha}; expected a probability above 0 and below 1"
    least = 1 if search.method == "reflection" else 2
    if len(set(search.versions)) < least or min(search.versions, default=0) < 1:
        yield f"spec.search.versions is {list(search.versions)}; expected {least} or more, each 1 or more"
    if search.method == "live" and search.alias is None:
        yield "spec.search.method is live and alias is null; a share of an alias's users is asked with each version"
    if search.share is not None and not (search.method == "live" and 0 < search.share < 1):
        yield f"spec.search.share is {search.share}; expected more than 0 and less than 1, of a live search"
    if search.method == "reflection" and search.endpoint is None:
        yield "spec.search.method is reflection and endpoint is null; name who proposes texts"
