"""What OpenAI's clients order as `supervised` or `dpo`, and REST as `peft`: a job that tunes.

body, the file that it names ──► TuningRequest ──► JobOrder, or an error in the words of the request
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.jobs.fine_tuning_body import (
    ORDERED,
    CreateFineTuningBody,
    DpoHyperparameters,
    SupervisedHyperparameters,
    check_whose,
)
from schemas.events import TuningMethod
from streams.adapters.versions import AdapterState
from streams.errors import CallError, JobRequestError, NotFoundError, RefusedError
from streams.jobs import training_files
from streams.jobs.request import JobOrder
from streams.jobs.training_files import TrainingFile
from streams.jobs.tuning import tuning_request
from streams.kafka import times
from streams.settings.model import Settings

METHODS: Mapping[str, TuningMethod] = {"supervised": "sft", "dpo": "dpo"}
"""By OpenAI's name."""
Adapters = Callable[[str], AdapterState]
"""Returns what the log knows of a policy's adapters."""


def fine_tuning(
    body: CreateFineTuningBody, settings: Settings, adapters: Adapters, tenant: str | None = None
) -> JobOrder:
    """Return the job that an OpenAI client orders. Raises CallError that names what is wrong, in its words."""
    check_whose(body, settings)
    kind = body.method.type
    method, where = METHODS[kind], f"method.{kind}.hyperparameters"
    own = {name: value for name, value in (body.config or {}).items() if value is not None}
    named = _hyperparameters(body)
    theirs = {"epochs": "n_epochs", "batch": "batch_size"} | ({"beta": "beta"} if kind == "dpo" else {})
    for mine, name in theirs.items():
        value = getattr(named, name)
        if value in (None, "auto"):
            continue
        if mine in own:
            raise CallError("invalid", f"config.{mine}: {where}.{name} says it, too; leave one out", f"config.{mine}")
        own[mine] = float(value) if mine == "beta" else value
    names = {f"config.{mine}": f"{where}.{name}" for mine, name in theirs.items() if mine not in (body.config or {})}
    given = {"policy": body.model, "method": method, "config": own}
    names["policy"] = "model"
    order = tuning(given, body.training_file, settings, adapters, names=names, tenant=tenant)
    made = order.spec.tuning
    assert made is not None  # noqa: S101 - `tuning` makes no other
    hyperparameters = {"n_epochs": made.epochs, "batch_size": made.batch}
    shown = {
        "model": body.model,
        "training_file": body.training_file,
        "seed": settings.trainer.seed,
        "metadata": body.metadata,
        "method": {
            "type": kind,
            kind: {"hyperparameters": hyperparameters | ({} if made.beta is None else {"beta": made.beta})},
        },
    }
    return order.with_metadata({ORDERED: json.dumps(shown, sort_keys=True)}, body.model_dump(mode="json"))


def tuning(
    given: dict[str, Any],
    file_id: str | None,
    settings: Settings,
    adapters: Adapters,
    *,
    names: Mapping[str, str],
    tenant: str | None = None,
) -> JobOrder:
    """Return the job that a request asks for; `names`: what its parameters are called there, by ours.

    The file is looked for among those of `tenant`; None: among all. Raises CallError, NotFoundError or SettingsError as
    the log or the store does.
    """
    try:
        request = tuning_request.read_request(given)
        state = adapters(request.policy)
        try:
            tuning_request.refuse_trained(state)
        except RefusedError as exc:
            raise CallError("invalid", str(exc), names.get("policy", "policy")) from exc
        file = None if file_id is None else _file(settings, file_id, tenant, request.method)
        return tuning_request.order(request, settings, state, file, times.now_ms())
    except JobRequestError as exc:
        raise CallError("invalid", _renamed(str(exc), names), _name(exc.parameter, names)) from exc
    except RefusedError as exc:  # its estimate is over its budget
        raise CallError("invalid", str(exc), "config.max_budget_usd") from exc


def _file(settings: Settings, file_id: str, tenant: str | None, method: TuningMethod) -> TrainingFile:
    """Return what is known of a file whose lines may be examples. Raises CallError."""
    store = settings.adapters.store
    try:
        about = training_files.find(store, file_id, tenant)
        lines = training_files.lines_of(training_files.content(store, file_id, tenant))
        tuning_request.check_lines(method, lines)
    except NotFoundError as exc:
        raise CallError("not_found", f"training_file: {exc}", "training_file") from exc
    except JobRequestError as exc:
        raise CallError("invalid", f"training_file: {exc}", "training_file") from exc
    return about


def _hyperparameters(body: CreateFineTuningBody) -> SupervisedHyperparameters:
    asked = body.method.supervised if body.method.type == "supervised" else body.method.dpo
    default = SupervisedHyperparameters() if body.method.type == "supervised" else DpoHyperparameters()
    return default if asked is None or asked.hyperparameters is None else asked.hyperparameters


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for ours, theirs in names.items():
        if ours.startswith("config."):
            text = text.replace(ours, theirs)
    return text


def _name(parameter: str | None, names: Mapping[str, str]) -> str | None:
    return None if parameter is None else names.get(parameter, parameter)
