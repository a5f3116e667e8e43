"""Training calls of one session, `s1`, and their results, numbered as the SDK numbers them."""

from __future__ import annotations

from typing import Any

from plugins.tinker.calls.call_names import model_name, numbered_call, sampler_name
from schemas.events import CallAdam, CallKind, CallLora, TrainingCall, TrainingResult
from tests.support.factories import T0

SESSION = "s1"
MODEL = model_name(SESSION, 0)
ADAM = CallAdam(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0)


def call(kind: CallKind, call_id: str, **fields: Any) -> TrainingCall:
    """Return a call of the session."""
    whole: dict[str, Any] = {
        "call_id": call_id,
        "model": SESSION,
        "created_at": T0,
        "kind": kind,
        "session_id": SESSION,
        "request_digest": "a" * 64,
    }
    return TrainingCall(**whole | fields)


def begin_session(**fields: Any) -> TrainingCall:
    """Return the call that begins the session."""
    return call("create_session", SESSION, **fields)


def create_model(number: int = 0, **fields: Any) -> TrainingCall:
    """Return the call that makes a model."""
    name = model_name(SESSION, number)
    whole = {"model": name, "seq_id": number, "base_model": "tiny", "lora": CallLora(rank=4, seed=7)}
    return call("create_model", name, **whole | fields)


def numbered(kind: CallKind, seq_id: int, model: str = MODEL, **fields: Any) -> TrainingCall:
    """Return a call of a model's line."""
    own: dict[str, Any] = {}
    if kind in ("forward", "forward_backward"):
        own = {"loss": "cross_entropy"}
    if kind == "optim_step":
        own = {"optimizer": ADAM}
    if kind == "refused":
        own = {"refusal": "it may not", "request": '{"kind": "optim_step"}'}
    return call(kind, numbered_call(model, seq_id), **{"model": model, "seq_id": seq_id} | own | fields)


def create_sampler(number: int = 0, **fields: Any) -> TrainingCall:
    """Return the call that begins a sampling session."""
    name = sampler_name(SESSION, number)
    whole = {"seq_id": number, "sampling_session": name, "base_model": "tiny"}
    return call("create_sampling_session", name, **whole | fields)


def sample(seq_id: int, sampler: int = 0, **fields: Any) -> TrainingCall:
    """Return a call that samples."""
    name = sampler_name(SESSION, sampler)
    return call("sample", numbered_call(name, seq_id), **{"sampling_session": name, "seq_id": seq_id} | fields)


def result(of: TrainingCall, **fields: Any) -> TrainingResult:
    """Return what became of a call."""
    whole: dict[str, Any] = {
        "call_id": of.call_id,
        "model": of.model,
        "created_at": T0 + 10,
        "kind": of.kind,
        "session_id": of.session_id,
        "seq_id": of.seq_id,
        "source_partition": 0,
        "source_offset": 0,
    }
    return TrainingResult(**whole | fields)
