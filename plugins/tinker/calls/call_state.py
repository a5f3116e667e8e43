"""What the training calls in the log come to: sessions, models, sampling sessions, saved weights, and who waits.

    training-calls ───► take ──► CallState ──► call_rules.py: what may come next      worker/: what is to be done
    training-results ─► take ──┘

It is the same in whatever order the two topics, and their partitions, are read: a result that is read before its call
waits for it, and a call is about nothing of another partition but the session that it belongs to. The first call of an
id counts, and so does the first result. Tensors are not kept.

Not covered: what retention has deleted of the two topics. Its models and paths are unknown; the versions that they
saved are in `adapters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plugins.tinker.calls.call_names import checkpoint_path, parse_path, policy_of
from schemas import json_text
from schemas.events import CallLora, JobPrices, TrainingCall, TrainingResult
from schemas.tokens import Octets

NUMBERED = frozenset(
    ("forward", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "load_weights", "refused")
)
"""Kinds that a model takes in the order of their numbers."""
ANSWERED = NUMBERED | {"create_model", "sample", "unload_model"}
"""Kinds that the worker writes a result for; the others are done when they are in the log."""
BEGINS_AT = 1
"""The number of a model's first call after the one that creates it."""


@dataclass(slots=True)
class TrainingSession:
    """A program that calls, from its start to its end."""

    session_id: str
    tenant: str | None
    subject_id: str | None
    created_at: int
    request: Mapping[str, Any]
    prices: JobPrices | None = None
    max_budget_usd: float | None = None
    finished: str | None = None
    """Why it ended; None: it continues."""
    spent_usd: float = 0.0


@dataclass(slots=True)
class TrainingRun:
    """Weights that a session trains."""

    model_id: str
    session_id: str
    tenant: str | None
    base_model: str
    lora: CallLora
    created_at: int
    request: Mapping[str, Any]
    trains: bool = True
    """False: it only holds copied weights."""
    is_unloaded: bool = False
    last_call_at: int = 0

    @property
    def policy(self) -> str:
        """The policy whose versions are what it saved."""
        return policy_of(self.model_id)


@dataclass(slots=True)
class SamplingSession:
    """A sampling session: weights that do not change, and its calls that have ended."""

    sampler_id: str
    session_id: str
    tenant: str | None
    model: str
    """The key of its calls: the model whose weights it has, if it has them by a save of its own; else the session."""
    base_model: str
    path: str | None = None
    """Of the saved weights; None: the base model's, or those of `save`."""
    source: str | None = None
    """Their folder in the store."""
    save: str | None = None
    """The call that saved the weights for this session alone."""
    joined: list[str] = field(default_factory=list)
    """Its further clients, by the calls that numbered them, from 1."""
    ended: list[str] = field(default_factory=list)
    """Calls that have a result, in the order in which these were read."""


@dataclass(slots=True)
class UploadedLoss:
    """A loss of a caller's own, as it was sent."""

    loss_id: str
    session_id: str
    tenant: str | None
    request: Mapping[str, Any]


@dataclass(slots=True)
class Checkpoint:
    """Saved weights that have a name."""

    path: str
    model_id: str
    tenant: str | None
    base_model: str
    lora: CallLora
    created_at: int
    uri: str
    """Their folder in the store."""
    version: int | None = None
    """Of the model's policy; None: they are a copy."""
    expires_at: int | None = None
    user_metadata: Mapping[str, str] | None = None
    state_sha256: str | None = None

    @property
    def kind(self) -> str:
        """weights, or sampler_weights."""
        parts = parse_path(self.path)
        return "" if parts is None else parts.kind

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def is_gone(self, now_ms: int) -> bool:
        """Return whether it has expired. Deleted ones are in no list."""
        return self.expires_at is not None and self.expires_at <= now_ms


class CallState:
    """The fold of calls and results."""

    def __init__(self) -> None:
        self.sessions: dict[str, TrainingSession] = {}
        self.models: dict[str, TrainingRun] = {}
        self.samplers: dict[str, SamplingSession] = {}
        self.losses: dict[str, UploadedLoss] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        """By path; those that expired included."""
        self.calls: dict[str, TrainingCall] = {}
        """By id, without their data."""
        self.results: dict[str, TrainingResult] = {}
        """By the id of the call, without their outputs."""
        self.cancelled: set[str] = set()
        """Calls whose results no client waits for."""
        self._saves: dict[str, str] = {}
        """By path, the newest call that saves there; a path that was deleted has none."""
        self._expiries: dict[str, int | None] = {}
        """By the call that saved, when its weights expire if that was changed."""

    def take(self, event: TrainingCall | TrainingResult) -> None:
        """Take the next event of one of the topics."""
        if isinstance(event, TrainingResult):
            if event.call_id not in self.results:
                self.results[event.call_id] = replace(event, outputs=Octets())
                if event.call_id in self.calls:
                    self._end(self.calls[event.call_id], self.results[event.call_id])
        elif event.call_id not in self.calls:
            call = self.calls[event.call_id] = replace(event, data=Octets())
            self._begin(call)
            if (early := self.results.get(call.call_id)) is not None:
                self._end(call, early)

    def is_pending(self, call_id: str) -> bool:
        """Return whether a call waits for its result."""
        call = self.calls.get(call_id)
        return call is not None and call.kind in ANSWERED and call_id not in self.results

    def pending_save(self, path: str) -> str | None:
        """Return the newest call that saves under this path, whether it has ended or not."""
        return self._saves.get(path)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _begin(self, call: TrainingCall) -> None:
        request = request_of(call)
        if (model := self.models.get(call.model)) is not None:
            model.last_call_at = max(model.last_call_at, call.created_at)
        match call.kind:
            case "create_session":
                self.sessions[call.session_id] = TrainingSession(
                    call.session_id, call.tenant, call.subject_id, call.created_at, request, call.prices,
                    call.max_budget_usd,
                )  # fmt: skip
            case "finish_session":
                if (session := self.sessions.get(call.session_id)) is not None and session.finished is None:
                    session.finished = str(request.get("reason") or "finished")
            case "create_custom_loss":
                self.losses[call.call_id] = UploadedLoss(call.call_id, call.session_id, call.tenant, request)
            case "create_model" | "load_weights" | "copy_weights":
                self._create_model(call, request)
            case "create_sampling_session":
                self._create_sampler(call, source=call.source)
            case "join_sampling_session":
                if (sampler := self.samplers.get(call.sampling_session or "")) is not None:
                    sampler.joined.append(call.call_id)
            case "save_weights" | "save_weights_for_sampler":
                self._begin_save(call)
            case "unload_model":
                if model is not None:
                    model.is_unloaded = True
            case "delete_checkpoint":
                self._saves.pop(call.path or "", None)
                self.checkpoints.pop(call.path or "", None)
            case "set_expiry":
                self._set_expiry(call)
            case "cancel":
                self.cancelled.update(map(str, request.get("request_ids", ())))

    def _create_model(self, call: TrainingCall, request: Mapping[str, Any]) -> None:
        if call.model in self.models or call.lora is None or call.base_model is None:
            return  # weights that are loaded into a model which was created before
        self.models[call.model] = TrainingRun(
            call.model, call.session_id, call.tenant, call.base_model, call.lora, call.created_at, request,
            trains=call.kind != "copy_weights", last_call_at=call.created_at,
        )  # fmt: skip
        source = parse_path(call.path or "")
        if call.kind == "copy_weights" and source is not None and call.source is not None:
            path = checkpoint_path(call.model, source.kind, source.name)
            self._saves[path] = call.call_id
            self.checkpoints[path] = _checkpoint(self.models[call.model], path, call, uri=call.source)

    def _create_sampler(self, call: TrainingCall, *, source: str | None = None, save: str | None = None) -> None:
        name = call.sampling_session
        if name is None or name in self.samplers:
            return
        model = self.models.get(call.model)
        base_model = call.base_model or ("" if model is None else model.base_model)
        path = None if save is not None else call.path
        self.samplers[name] = SamplingSession(
            name, call.session_id, call.tenant, call.model, base_model, path, source, save
        )

    def _begin_save(self, call: TrainingCall) -> None:
        if (path := saved_path(call)) is not None:
            self._saves[path] = call.call_id
        else:
            self._create_sampler(call, save=call.call_id)

    def _set_expiry(self, call: TrainingCall) -> None:
        path = call.path or ""
        expires_at = None if call.ttl_s is None else call.created_at + 1000 * call.ttl_s
        if (save := self._saves.get(path)) is not None:
            self._expiries[save] = expires_at
            if path in self.checkpoints:
                self.checkpoints[path].expires_at = expires_at

    # --- results ------------------------------------------------------------------------------------------------------

    def _end(self, call: TrainingCall, result: TrainingResult) -> None:
        if (session := self.sessions.get(call.session_id)) is not None:
            session.spent_usd += result.cost_usd or 0.0
        if call.kind == "sample" and (sampler := self.samplers.get(call.sampling_session or "")) is not None:
            sampler.ended.append(call.call_id)
        path, model = saved_path(call), self.models.get(call.model)
        if path is None or model is None or result.uri is None or self._saves.get(path) != call.call_id:
            return
        saved = _checkpoint(model, path, call, uri=result.uri)
        saved.version, saved.state_sha256 = result.version, result.state_sha256
        if call.call_id in self._expiries:
            saved.expires_at = self._expiries[call.call_id]
        self.checkpoints[path] = saved


def request_of(call: TrainingCall) -> Mapping[str, Any]:
    """Return what of a request no field of its call has; nothing of a text that is no object."""
    try:
        request = json_text.parse(call.request)
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def saved_path(call: TrainingCall) -> str | None:
    """Return the path of the weights that a call saves; None if it saves none, or none with a name."""
    kinds = {"save_weights": "weights", "save_weights_for_sampler": "sampler_weights"}
    if call.kind not in kinds or call.path is None:
        return None
    return checkpoint_path(call.model, kinds[call.kind], call.path)


def place_of(call: TrainingCall) -> int | None:
    """Return the place of a call in the order of its model's; None if it has none. The one that creates it has 0."""
    if call.call_id == call.model:
        return 0
    return call.seq_id if call.kind in NUMBERED else None


def _checkpoint(model: TrainingRun, path: str, call: TrainingCall, uri: str) -> Checkpoint:
    metadata = request_of(call).get("user_metadata")
    return Checkpoint(
        path,
        model.model_id,
        model.tenant,
        model.base_model,
        model.lora,
        call.created_at,
        uri,
        expires_at=None if call.ttl_s is None else call.created_at + 1000 * call.ttl_s,
        user_metadata=metadata if isinstance(metadata, dict) else None,
    )
