"""What OpenAI's clients order as `supervised` or `dpo`, and REST as `peft`: a job that tunes.

body, the file that it names ──► TuningRequest ──► JobOrder, or an error in the words of the request
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.http.body import without_nulls
from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api import tuning_request
from plugins.tuning.api.fine_tuning_body import (
    ORDERED,
    CreateFineTuningBody,
    DpoHyperparameters,
    SupervisedHyperparameters,
    check_order,
)
from schemas.events import DatasetEvent, TuningMethod
from streams.adapters import training_files
from streams.adapters.training_files import TrainingFile
from streams.adapters.versions import AdapterState
from streams.errors import CallError, JobRequestError, NotFoundError, RefusedError
from streams.kafka import times
from streams.settings.model import Settings
from streams.tools.dataset_reader import dataset_reader

METHODS: Mapping[str, TuningMethod] = {"supervised": "sft", "dpo": "dpo"}
"""By OpenAI's name."""
Adapters = Callable[[str], AdapterState]
"""Returns what the log knows of a policy's adapters."""


def fine_tuning(
    body: CreateFineTuningBody, settings: Settings, adapters: Adapters, tenant: str | None = None
) -> JobOrder:
    """Return the job that an OpenAI client orders. Raises CallError that names what is wrong, in its words."""
    check_order(body, settings)
    kind = body.method.type
    method, section = METHODS[kind], f"method.{kind}.hyperparameters"
    config = without_nulls(body.config)
    named = _hyperparameters(body)
    parameters = {"epochs": "n_epochs", "batch": "batch_size"} | ({"beta": "beta"} if kind == "dpo" else {})
    for option, name in parameters.items():
        value = getattr(named, name)
        if value in (None, "auto"):
            continue
        if option in config:
            raise CallError(
                "invalid", f"config.{option}: {section}.{name} says it, too; leave one out", f"config.{option}"
            )
        config[option] = float(value) if option == "beta" else value
    names = {
        f"config.{option}": f"{section}.{name}"
        for option, name in parameters.items()
        if option not in (body.config or {})
    }
    fields = {"policy": body.model, "method": method, "config": config}
    names["policy"] = "model"
    order = tuning(fields, body.training_file, settings, adapters, names=names, tenant=tenant)
    spec = order.spec.tuning
    assert spec is not None  # noqa: S101 - `tuning` makes no other
    hyperparameters: dict[str, float] = {"n_epochs": spec.epochs, "batch_size": spec.batch}
    if spec.beta is not None:
        hyperparameters["beta"] = spec.beta
    order_fields = {
        "model": body.model,
        "training_file": body.training_file,
        "seed": settings.trainer.seed,
        "metadata": body.metadata,
        "method": {
            "type": kind,
            kind: {"hyperparameters": hyperparameters},
        },
    }
    return order.with_metadata({ORDERED: json.dumps(order_fields, sort_keys=True)}, body.model_dump(mode="json"))


def tuning(
    fields: dict[str, Any],
    file_id: str | None,
    settings: Settings,
    adapters: Adapters,
    *,
    names: Mapping[str, str],
    tenant: str | None = None,
) -> JobOrder:
    """Return the job that a request asks for; `names`: what its parameters are called there, by ours.

    File and data set are looked for among those of `tenant`; None: among all. Raises CallError, NotFoundError or
    SettingsError as the log or the store does.
    """
    try:
        request = tuning_request.read_request(fields)
        state = adapters(request.policy)
        examples: TrainingFile | DatasetEvent | None = None
        if file_id is not None:
            examples = _file(settings, file_id, tenant, request.method)
        elif request.config.dataset is not None:
            examples = _dataset(settings, request.config.dataset, tenant)
        return tuning_request.order(request, settings, state, examples, times.now_ms())
    except JobRequestError as exc:
        raise CallError("invalid", _rename(str(exc), names), _name(exc.parameter, names)) from exc
    except RefusedError as exc:  # its estimate is over its budget
        raise CallError("invalid", str(exc), "config.max_budget_usd") from exc


def _file(settings: Settings, file_id: str, tenant: str | None, method: TuningMethod) -> TrainingFile:
    """Return a file whose lines are examples. Raises CallError."""
    store = settings.adapters.store
    try:
        about = training_files.find(store, file_id, tenant)
        lines = training_files.lines_of(training_files.content(store, file_id, tenant))
        tuning_request.check_lines(settings, method, lines)
    except NotFoundError as exc:
        raise CallError("not_found", f"training_file: {exc}", "training_file") from exc
    except JobRequestError as exc:
        raise CallError("invalid", f"training_file: {exc}", "training_file") from exc
    return about


def _dataset(settings: Settings, reference: str, tenant: str | None) -> DatasetEvent:
    """Return the build that a request names; a tenant's key may use that tenant's alone. Raises CallError."""
    try:
        return dataset_reader().find(settings, reference, None if tenant is None else (tenant,))
    except (NotFoundError, RefusedError) as exc:
        raise CallError("not_found", f"config.dataset: {exc}", "config.dataset") from exc


def _hyperparameters(body: CreateFineTuningBody) -> SupervisedHyperparameters:
    method = body.method.supervised if body.method.type == "supervised" else body.method.dpo
    default = SupervisedHyperparameters() if body.method.type == "supervised" else DpoHyperparameters()
    return default if method is None or method.hyperparameters is None else method.hyperparameters


def _rename(text: str, names: Mapping[str, str]) -> str:
    for option, name in names.items():
        if option.startswith("config."):
            text = text.replace(option, name)
    return text


def _name(parameter: str | None, names: Mapping[str, str]) -> str | None:
    return None if parameter is None else names.get(parameter, parameter)
