"""The job that a crossing starts.

    tune   ──► the newest build of a data set, or answers of the log ──► a tuning order
    train  ──► the questions of its runs, with their scorers ──► an order for GRPO

The order depends only on the crossing and the log before it, so every process makes the same one, and the crossing
names its id.
"""

from __future__ import annotations

from typing import Any

from plugins.improve.triggers.rule import RetrainRule, TrainPart, TunePart
from plugins.improve.triggers.run_questions import questions_of
from plugins.jobs.orders.request import JobConfig, JobOrder, RewardSourceConfig, digest_of, spec_of
from plugins.tuning.api import tuning_request
from plugins.tuning.api.tuning_request import TuningConfig, TuningRequest
from schemas import json_text
from schemas.events import DatasetEvent, RewardSource, TriggerEvent
from schemas.serde import Poison
from streams.adapters.versions import read_state
from streams.errors import NotFoundError, RefusedError, SettingsError
from streams.kafka.admin import read_topic
from streams.settings.model import Settings

TRIGGER, RULE = "trigger", "rule"
"""Metadata of its `created` event: the crossing's id, and the name of the rule."""


def order_of(crossing: TriggerEvent, rule: RetrainRule, settings: Settings) -> JobOrder:
    """Return the order of a crossing.

    Raises NotFoundError for runs or a data set that are not there, JobRequestError, RefusedError for an order that
    cannot be given, LogError if the broker does not answer.
    """
    if crossing.action == "tune" and rule.tune is not None:
        order = _tuning(crossing, rule, rule.tune, settings)
    elif crossing.action == "train" and rule.train is not None:
        order = _training(crossing, rule, rule.train, settings)
    else:
        raise RefusedError(
            f"event {crossing.sequence} of the rule starts {crossing.action}, and the rule has no "
            f"[{crossing.action}] any more; add it again, and its job is ordered"
        )
    return order.with_metadata({TRIGGER: crossing.event_id, RULE: rule.name}, [rule.digest, crossing.event_id])


def _source_config(source: RewardSource) -> RewardSourceConfig:
    """Return a task's scorer as an order names it. Raises SettingsError if its settings are no JSON."""
    try:
        return RewardSourceConfig(name=source.name, weight=source.weight, settings=json_text.parse(source.settings))
    except ValueError as exc:
        raise SettingsError(f"scorer {source.name} of a run has settings that are no JSON object: {exc}") from exc


def _training(crossing: TriggerEvent, rule: RetrainRule, part: TrainPart, settings: Settings) -> JobOrder:
    run_questions = questions_of(crossing, rule, settings, part.questions)
    sources = tuple(map(_source_config, run_questions.reward_sources))
    changes: dict[str, Any] = {"reward_sources": sources}
    if part.max_budget_usd is None:
        changes["max_budget_usd"] = rule.budget_usd
    if run_questions.agent is not None and part.max_steps_per_trajectory is None:
        changes["max_steps_per_trajectory"] = run_questions.max_turns
    config: JobConfig = part.model_copy(update=changes)
    spec = spec_of(config, run_questions.questions, settings, policy=rule.policy, agent=run_questions.agent)
    digest = digest_of([rule.digest, crossing.event_id])
    return JobOrder(rule.policy, rule.tenant, spec, digest, allow_contaminated=config.allow_contaminated)


def _tuning(crossing: TriggerEvent, rule: RetrainRule, part: TunePart, settings: Settings) -> JobOrder:
    fields = part.model_dump(exclude_unset=True, exclude={"method", "target"})
    if part.max_budget_usd is None:
        fields["max_budget_usd"] = rule.budget_usd
    build = None if part.dataset is None else newest_build(settings, part.dataset, rule, crossing.created_at)
    if build is None:
        fields = {"purpose": rule.purpose, "groups_of": rule.policy} | fields
    policy = part.target or rule.policy
    if policy != rule.policy and part.start is None:
        fields["start"] = f"{rule.policy}:{int(crossing.evidence.get('version', 0))}"
    request = TuningRequest(policy=policy, method=part.method, config=TuningConfig(**fields), tenant=rule.tenant)
    return tuning_request.order(request, settings, read_state(settings, policy), build, crossing.created_at)


def newest_build(settings: Settings, reference: str, rule: RetrainRule, before_ms: int) -> DatasetEvent:
    """Return the newest build by a time of the data set that NAME, or NAME@DIGEST, names. Raises NotFoundError."""
    name, _, digest = reference.partition("@")
    builds: list[DatasetEvent] = []
    for record in read_topic(settings, "datasets"):
        event = record.decode_placed(DatasetEvent, settings.topics.policy_partitions)
        if isinstance(event, Poison) or event.kind != "built" or event.dataset != name:
            continue
        if event.digest.startswith(digest) and rule.tenant in (None, event.tenant) and event.created_at <= before_ms:
            builds.append(event)
    if not builds:
        raise NotFoundError(f"data set {reference!r} was not built yet; `streamward improve datasets build {name}`")
    return builds[-1]
