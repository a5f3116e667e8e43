"""Make a model on another server the next version of a policy.

    data set ──► its newest fine-tuning elsewhere ──► URL, model ──► asked once ──► adapters: trained, without weights
                                                                                        read back ──► is it the one?

After that `rollouts.mode` treats it like any version: a suite of the guard, a canary, or a person decides. The model
must be at `outside.url`, the only server that agents ask. The current prices of `outside` are recorded with it, so its
cost follows from the log. Repeating it with the same model writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from plugins.improve.curation.verifier import endpoint_of
from plugins.improve.datasets import dataset_log
from schemas.events import AdapterEvent, Message, OutsideModel, derive_id
from streams.adapters.decisions import AdapterHistory, read_history
from streams.engines.outside import outside_model
from streams.engines.outside.outside_model import OutsideModels
from streams.errors import EventError, NotFoundError, RefusedError, SettingsError
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.settings.model import Settings

MOST_ATTEMPTS = 5
"""How often another process may be faster."""
QUESTION = Message(role="user", content="Reply with: yes")
QUESTION_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionOrder:
    """The model to make a version, named by a data set that it was tuned on, or by itself."""

    policy: str
    dataset: str | None = None
    """NAME, or NAME@DIGEST."""
    model: str | None = None
    url: str | None = None
    """None: that of the data set's tuning, or `outside.url`."""
    actor: str


@dataclass(frozen=True, slots=True)
class AdoptedModel:
    """The version that it is."""

    event: AdapterEvent
    again: bool
    """Whether it was one already, and nothing was written now."""


def adopt(settings: Settings, order: AdoptionOrder) -> AdoptedModel:
    """Make the model a version, and return once it is one.

    Raises NotFoundError for a data set without a model, SettingsError for a URL that is not `outside.url`, RefusedError
    if the model does not answer, or others were faster each time; LogError.
    """
    model = _model(settings, order)
    try:
        outside_model.check(model, settings.outside)
    except EventError as exc:
        raise SettingsError(str(exc)) from exc
    asked = False
    for _ in range(MOST_ATTEMPTS):
        history = read_history(settings, order.policy)
        if (existing := _existing(history, model)) is not None:
            return AdoptedModel(existing, again=True)
        if not asked:
            _ask(settings, model)
            asked = True
        event = _event(order, model, history.state.newest + 1)
        with Producer(settings) as producer:
            producer.send(event)
            producer.flush()
        first = read_history(settings, order.policy).trained_event(event.version)
        if first == event:
            return AdoptedModel(event, again=False)
    raise RefusedError(
        f"other processes made versions of {order.policy} meanwhile, {MOST_ATTEMPTS} times. Nothing is lost: run the "
        "command again"
    )


def _model(settings: Settings, order: AdoptionOrder) -> OutsideModel:
    """Return the model that is ordered. Raises NotFoundError, SettingsError."""
    rule, url, name = settings.outside, order.url, order.model
    dataset: str | None = None
    job: str | None = None
    if order.dataset is not None:
        log = dataset_log.read(settings)
        build = log.find(order.dataset)
        tuned = [event for event in log.of(build.dataset) if event.digest == build.digest and event.kind == "succeeded"]
        result = next((event.outside for event in reversed(tuned) if event.outside and event.outside.result), None)
        dataset = f"{build.dataset}@{build.digest[:12]}"
        if result is None:
            raise NotFoundError(
                f"data set {dataset} has no model of an outside provider; order one with `streamward improve "
                "datasets submit`"
            )
        url, name, job = url or result.endpoint, name or result.result, result.job
    url = url or rule.url
    if url is None or name is None:
        raise SettingsError("name the model: --dataset, or --model with outside.url set to its server")
    prices = {"prompt_usd": rule.prompt_usd, "completion_usd": rule.completion_usd}
    return OutsideModel(url=endpoint_of(url), model=name, dataset=dataset, job=job, **prices)


def _existing(history: AdapterHistory, model: OutsideModel) -> AdapterEvent | None:
    """Return the event by which this model is a version already."""
    events = (event for _, event in history.trained.values())
    return next((event for event in events if event.outside and _is_same(event.outside, model)), None)


def _is_same(first: OutsideModel, second: OutsideModel) -> bool:
    return (first.url, first.model) == (second.url, second.model)


def _ask(settings: Settings, model: OutsideModel) -> None:
    """Raise RefusedError unless the model answers a short question, with counts of its tokens."""
    models = OutsideModels(settings.outside)
    try:
        models.ask(model, [QUESTION], QUESTION_TOKENS)
    except EventError as exc:
        raise RefusedError(f"{exc}. Nothing was written") from exc
    finally:
        models.close()


def _event(order: AdoptionOrder, model: OutsideModel, version: int) -> AdapterEvent:
    tuned = "" if model.dataset is None else f", tuned on data set {model.dataset} by job {model.job}"
    return AdapterEvent(
        event_id=derive_id(order.policy, version, "trained"),
        policy=order.policy,
        created_at=times.now_ms(),
        version=version,
        kind="trained",
        actor=order.actor,
        reason=f"{model.model} at {model.url}{tuned}",
        outside=model,
    )
