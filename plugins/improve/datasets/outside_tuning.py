"""Send a data set to an outside provider of fine-tuning, and follow the job to its end.

    DatasetEvent `built` ──► train.jsonl ──► provider: file, job ──► datasets: submitted
                                                  └─ asked again and again ──► succeeded, failed, cancelled

A submission has a key, derived from data set, digest, provider, model and method, in the metadata of its job. A process
that was killed after ordering the job finds it there, so repeating the command continues and orders nothing twice; the
ids of events are derived from the job's. The eval rows stay here, to judge the resulting model.

Not covered: a provider that neither lists metadata nor supports Idempotency-Key gets the job twice if the process dies
between order and event; and serving the model, which needs a policy with the provider as its server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plugins.improve.curation.verifier import endpoint_of
from plugins.improve.datasets import dataset_log
from plugins.improve.datasets.provider_api import ENDED, ProviderApi, ProviderJob
from schemas.events import DatasetEvent, DatasetKind, OutsideTuning, TuningMethod, derive_id
from streams.errors import NotFoundError, RefusedError
from streams.files import code_version
from streams.kafka import times
from streams.settings.model import Settings

SUBMISSION = "submission"
"""In the metadata of an event: the key of its submission."""
FILES: Mapping[TuningMethod, str] = {"sft": "train.jsonl", "dpo": "train.pairs.jsonl"}
METHODS: Mapping[TuningMethod, str] = {"sft": "supervised", "dpo": "dpo"}
"""OpenAI's names."""
KINDS: Mapping[str, DatasetKind] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}
PER_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideOrder:
    """A data set to be tuned on elsewhere."""

    event: DatasetEvent
    """Its build."""
    url: str
    model: str
    method: TuningMethod = "sft"
    epochs: int | None = None
    """None: the provider decides."""
    attempt: int = 1
    """A failed job is ordered again with the next number."""
    usd_per_million: float | None = None
    """Price of a million trained tokens."""
    actor: str

    @property
    def key(self) -> str:
        """The key of the submission."""
        about = (self.event.dataset, self.event.digest, endpoint_of(self.url), self.model, self.method)
        return derive_id(*about, self.epochs or "", self.attempt)

    @property
    def filename(self) -> str:
        """The name of the file at the provider."""
        return f"{self.event.dataset}-{self.event.digest[:12]}-{FILES[self.method]}"


def submit(
    settings: Settings,
    order: OutsideOrder,
    contents: Callable[[], Mapping[str, bytes]],
    api: ProviderApi,
    *,
    stop: threading.Event,
    poll_s: float,
) -> DatasetEvent:
    """Order the job unless it is ordered, wait for its end, and return the newest event.

    `contents` returns the files of the data set, and is called only if they are sent. Raises NotFoundError if the set
    has no rows for the method, RefusedError if the provider does not want them, ProviderError if it does not answer,
    LogError.
    """
    events = [event for event in dataset_log.read(settings).of(order.event.dataset) if _is_of(event, order)]
    ended = next((event for event in events if event.kind != "submitted"), None)
    if ended is not None:
        return ended
    submitted = events[0] if events else _announce(settings, order, "submitted", _order_job(order, contents, api))
    assert submitted.outside is not None  # noqa: S101 - a rule of its kind
    while not stop.is_set():
        job = api.read_job(submitted.outside.job)
        if job.status in ENDED:
            return _announce(settings, order, KINDS[job.status], job)
        stop.wait(poll_s)
    return submitted


def _is_of(event: DatasetEvent, order: OutsideOrder) -> bool:
    return event.outside is not None and event.metadata.get(SUBMISSION) == order.key


def _order_job(order: OutsideOrder, contents: Callable[[], Mapping[str, bytes]], api: ProviderApi) -> ProviderJob:
    """Return the job of a submission, found or ordered now."""
    if (job := api.find_job(order.key)) is not None:
        return job
    name = FILES[order.method]
    if (content := contents().get(name)) is None:
        raise NotFoundError(
            f"data set {order.event.dataset}@{order.event.digest[:12]} has no {name}: no run of its train split fits "
            f"{order.method}"
        )
    method = METHODS[order.method]
    hyperparameters = {} if order.epochs is None else {"hyperparameters": {"n_epochs": order.epochs}}
    body = {
        "model": order.model,
        "training_file": api.upload(order.filename, content),
        "method": {"type": method, method: hyperparameters},
    }
    return api.create_job(body, order.key)


def _announce(settings: Settings, order: OutsideOrder, kind: DatasetKind, job: ProviderJob) -> DatasetEvent:
    about, tokens = order.event, job.trained_tokens
    cost_usd = None
    if tokens is not None and order.usd_per_million is not None:
        cost_usd = tokens * order.usd_per_million / PER_MILLION
    event = DatasetEvent(
        event_id=derive_id(about.dataset, kind, about.digest, job.job),
        dataset=about.dataset,
        created_at=times.now_ms(),
        metadata={SUBMISSION: order.key},
        kind=kind,
        policy=about.policy,
        tenant=about.tenant,
        actor=order.actor,
        reason=job.problem or f"{METHODS[order.method]} of {order.model}: {job.status}",
        digest=about.digest,
        code_version=code_version(),
        outside=OutsideTuning(
            endpoint=endpoint_of(order.url),
            job=job.job,
            model=order.model,
            result=job.result,
            trained_tokens=tokens,
            cost_usd=cost_usd,
        ),
    )
    return dataset_log.announce(settings, event)[0]


def check_tenant(event: DatasetEvent, tenant: str | None) -> None:
    """Raise RefusedError unless the named tenant owns the runs of a set, since its texts leave this deployment."""
    if event.tenant != tenant:
        owner = "no tenant" if event.tenant is None else f"tenant {event.tenant}"
        way_out = "leave --tenant out" if event.tenant is None else f"say so with --tenant {event.tenant}"
        raise RefusedError(f"data set {event.dataset} has runs of {owner}, and would be sent elsewhere; {way_out}")
