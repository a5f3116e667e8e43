"""Turn a request into a tuning job: supervised training or preferences, instead of questions.

    {"policy", "method", "config"}, an uploaded file, a data set or neither ──► TuningRequest ──► JobOrder
                                                                                          └─► JobRequestError

The lines of the file are checked here, with the model's chat template if it is on this machine; everything else is
checked when the job runs, before its first step.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError

from plugins.jobs.orders.request import (
    JobOrder,
    PricesConfig,
    RequestPart,
    check_estimate,
    digest_of,
    explain,
    prices_and_budget,
)
from schemas.events import DatasetEvent, JobSpec, JobTuning, Purpose, TuningMethod
from streams.adapters.lora_shape import LoraChoice, LoraShape, in_order
from streams.adapters.store import uri_of
from streams.adapters.training_files import FileLine, TrainingFile
from streams.adapters.versions import AdapterState
from streams.engines.prompt_check import local_renderer
from streams.errors import JobRequestError, RefusedError, SettingsError
from streams.kafka.times import parse_time
from streams.settings.model import Settings
from trainer.examples import from_file
from trainer.examples.curation import Curation

MOST_RANK = 512
"""vLLM's."""
BETA = 0.1
"""TRL's."""
START = re.compile(r"(?:(?P<policy>.+):)?(?P<version>\d{1,9})")
EXPECTED: dict[TuningMethod, tuple[tuple[str, ...], ...]] = {
    "sft": (("messages",), ("input_ids", "assistant_masks")),
    "dpo": (("prompt", "chosen", "rejected"), ("input", "preferred_output", "non_preferred_output")),
}
"""Fields of a line that is an example."""
OPTIONS = {"--min-reward": "config.min_reward", "--all": "config.all", "--margin": "config.margin"}
"""Options of `streamward tune`, as they are called here."""


class TuningConfig(RequestPart):
    """How a version is tuned."""

    epochs: int = Field(1, ge=1, le=10_000, description="how often each example is seen")
    batch: int = Field(8, ge=1, le=2**31 - 1, description="examples of a step")
    beta: float | None = Field(
        None, gt=0, description="dpo: KL strength (beta), how close to stay to the start model; default: 0.1"
    )
    lora_rank: int | None = Field(
        None, ge=1, le=MOST_RANK, description="of the adapter; default: that of the start, else trainer.lora_rank"
    )
    lora_alpha: int | None = Field(None, ge=1, le=2**31 - 1, description="default: as for the rank")
    lora_targets: str | None = Field(
        None, description="linear modules, comma separated, or all-linear; default: as for the rank"
    )
    start: str | None = Field(None, description="[POLICY:]VERSION; default: the newest when the job begins")
    groups_of: str | None = Field(
        None, min_length=1, description="without a file: take groups of this policy; default: the job's own"
    )
    dataset: str | None = Field(
        None, min_length=1, description="NAME, or NAME@DIGEST: a data set of the log instead of groups or a file"
    )
    purpose: Purpose = Field("train", description="of the tasks of these groups")
    min_reward: float | None = Field(None, description="sft: only answers with at least this reward")
    all: bool = Field(False, description="sft: every answer that is good enough, not only the best")
    margin: float = Field(0.0, ge=0, description="dpo: only pairs whose rewards differ by more")
    since: str | None = Field(None, description="only groups from this time on: ISO 8601 (UTC), or an age")
    until: str | None = Field(None, description="only groups before this time")
    learning_rate: float | None = Field(None, gt=0, description="has to be trainer.learning_rate")
    max_budget_usd: float | None = Field(None, gt=0, description="default: jobs.max_budget_usd, if there are prices")
    prices: PricesConfig | None = Field(None, description="default: jobs.prices of the settings, if they are set")
    allow_contaminated: bool = Field(
        False, description="train on questions that a suite holds out; who ordered it is recorded"
    )


class TuningRequest(RequestPart):
    """A request for a job that tunes."""

    policy: str = Field(min_length=1, description="policy to tune; it may be a new one")
    method: TuningMethod
    config: TuningConfig = TuningConfig()
    tenant: str | None = Field(None, min_length=1, description="tenant that pays")


def read_request(body: Any) -> TuningRequest:
    """Return a request. Raises JobRequestError that names the first parameter that is wrong."""
    try:
        return TuningRequest.model_validate(body)
    except ValidationError as exc:
        raise explain(exc, TuningRequest, body) from exc


def order(
    request: TuningRequest,
    settings: Settings,
    adapters: AdapterState,
    examples: TrainingFile | DatasetEvent | None,
    now_ms: int,
) -> JobOrder:
    """Return the job that is asked for; `adapters` are those of its policy.

    `examples`: the file, or the build of the data set that config.dataset names. Raises JobRequestError, RefusedError
    if the estimate is over the budget.
    """
    config = request.config
    try:
        uri_of(settings.adapters.store, request.policy, 1)
    except RefusedError as exc:
        raise JobRequestError(str(exc), "policy") from exc
    if (rate := config.learning_rate) is not None and rate != settings.trainer.learning_rate:
        raise JobRequestError(
            f"config.learning_rate is {rate:g}, and would have no effect: trainer.learning_rate is "
            f"{settings.trainer.learning_rate:g} here. Leave it out, or set it for the process that tunes",
            "config.learning_rate",
        )
    tuning = _tuning(request, examples, now_ms)
    _check_shape(tuning, settings, adapters)
    prices, budget = prices_and_budget(config.prices, config.max_budget_usd, settings)
    spec = JobSpec(
        iterations=1,
        batch_size=1,
        group_size=1,
        held_out_share=0.0,
        evaluate_every=1,
        keep_best=1,
        patience=1,
        max_budget_usd=budget,
        prices=prices,
        tuning=tuning,
    )
    check_estimate(spec, "epochs")
    plain = {**request.model_dump(mode="json"), "file": None}
    if isinstance(examples, TrainingFile):
        plain["file"] = examples.file_id
    elif examples is not None:
        plain["dataset_digest"] = examples.digest
    return JobOrder(
        request.policy, request.tenant, spec, digest_of(plain), allow_contaminated=config.allow_contaminated
    )


def check_lines(settings: Settings, method: TuningMethod, lines: Sequence[FileLine]) -> None:
    """Raise JobRequestError for the first line that is no example, or that model.base cannot be tuned on if it is here.

    Raises SettingsError if its tokenizer cannot be loaded.
    """
    examples = [each for each in lines if method != "sft" or from_file.reason_left_out(each.value) is None]
    for number, line in examples:
        if from_file.is_interaction(line) and method == "sft":
            continue
        if not any(all(line.get(name) for name in names) for names in EXPECTED[method]):
            expected = " or ".join(", ".join(names) for names in EXPECTED[method])
            fields = ", ".join(sorted(line)) or "nothing"
            raise JobRequestError(f"line {number}: expected {expected}, for {method}; it has {fields[:80]}", "file")
    if (renderer := local_renderer(settings.model.base)) is None:
        return
    for number, line in examples:
        try:
            from_file.example_of(line, method, renderer.template, renderer.context_tokens)
        except ValueError as exc:
            raise JobRequestError(f"line {number}: {exc}", "file") from exc


def _tuning(request: TuningRequest, examples: TrainingFile | DatasetEvent | None, now_ms: int) -> JobTuning:
    config = request.config
    if config.beta is not None and request.method == "sft":
        raise JobRequestError("config.beta is the KL strength of dpo, and sft has none: leave it out", "config.beta")
    start = None if config.start is None else START.fullmatch(config.start)
    if config.start is not None and start is None:
        raise JobRequestError(
            f"config.start {config.start!r}: expected a version, as 3, or one of another policy, as other:3",
            "config.start",
        )
    start_policy = None if start is None or start["policy"] == request.policy else start["policy"]
    tuning = JobTuning(
        method=request.method,
        epochs=config.epochs,
        batch=config.batch,
        beta=None if request.method == "sft" else config.beta or BETA,
        lora_rank=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_targets=None if config.lora_targets is None else in_order(config.lora_targets),
        start_policy=start_policy,
        start_version=None if start is None else int(start["version"]),
    )
    rule = _curation(request, now_ms)
    if config.dataset is not None and isinstance(examples, TrainingFile):
        raise JobRequestError(
            "config.dataset and a file both have the examples; leave one of them out", "config.dataset"
        )
    if config.dataset is not None and examples is None:
        raise JobRequestError(f"config.dataset: there is no data set {config.dataset[:80]!r} here", "config.dataset")
    if examples is None:
        return dataclasses.replace(tuning, groups_policy=config.groups_of or request.policy, selection=rule.plain())
    set_for_groups = config.model_fields_set & {"groups_of", "purpose", "min_reward", "all", "margin", "since", "until"}
    source = "a file" if isinstance(examples, TrainingFile) else "a data set"
    if set_for_groups:
        name = sorted(set_for_groups)[0]
        raise JobRequestError(
            f"config.{name} chooses answers of the log, and the examples are those of {source}; leave one of them out",
            f"config.{name}",
        )
    if isinstance(examples, TrainingFile):
        return dataclasses.replace(
            tuning, file_id=examples.file_id, file=examples.filename, file_bytes=examples.size_bytes
        )
    return dataclasses.replace(tuning, dataset=examples.dataset, dataset_digest=examples.digest)


def _check_shape(tuning: JobTuning, settings: Settings, adapters: AdapterState) -> None:
    """Raise JobRequestError for a shape that its start does not have, or that cannot be trained or served here.

    A start in another policy, and the names of modules, are checked when the job runs.
    """
    choice = LoraChoice(tuning.lora_rank, tuning.lora_alpha, tuning.lora_targets)
    if choice.targets is not None and (not choice.targets or "lm_head" in choice.targets.split(",")):
        raise JobRequestError(
            f"config.lora_targets is {choice.targets!r}: expected names of linear modules of the model, or all-linear; "
            "the head, lm_head, is not trained",
            "config.lora_targets",
        )
    if settings.policy.engine == "vllm" and (choice.rank or 0) > settings.trainer.lora_rank:
        raise JobRequestError(
            f"config.lora_rank is {choice.rank}, and vLLM is started for ranks of at most trainer.lora_rank, "
            f"{settings.trainer.lora_rank}; start it with a larger --max-lora-rank, and set trainer.lora_rank here",
            "config.lora_rank",
        )
    shape = LoraShape.of_settings(settings)
    by_batches = next((made for made in adapters.versions.values() if made.took_batch), None)
    if by_batches is not None and choice.over(shape) != shape:
        raise JobRequestError(
            f"config: version {by_batches.version} of {adapters.policy} was trained on batches, and the trainer "
            f"continues in the shape of its settings, {shape}; leave lora_rank, lora_alpha and lora_targets out, or "
            f"tune another policy, e.g. {adapters.policy}-tuned",
            "config",
        )
    number = adapters.newest if tuning.start_version is None else tuning.start_version
    version = adapters.versions.get(number) if tuning.start_policy is None else None
    problem = choice.contradiction(None if version is None else version.lora, f"version {number} of {adapters.policy}")
    if problem is not None:
        raise JobRequestError(f"config: {problem}", "config")


def _curation(request: TuningRequest, now_ms: int) -> Curation:
    """Return how answers are chosen. Raises JobRequestError for what has no effect together."""
    config = request.config
    times: dict[str, int | None] = {}
    for name in ("since", "until"):
        text = getattr(config, name)
        try:
            times[name] = None if text is None else parse_time(text, f"config.{name}", now_ms)
        except SettingsError as exc:
            raise JobRequestError(str(exc), f"config.{name}") from exc
    rule = Curation(
        method=request.method,
        purpose=config.purpose,
        min_reward=config.min_reward,
        every=config.all,
        margin=config.margin,
        since_ms=times["since"],
        until_ms=times["until"],
    )
    try:
        rule.check()
    except SettingsError as exc:
        message = str(exc)
        for option, name in OPTIONS.items():
            message = message.replace(option, name)
        raise JobRequestError(message, next((name for name in OPTIONS.values() if name in message), None)) from exc
    return rule
