"""Which training call may come next, in the real service's terms. The server asks before it writes, the worker again.

    CallState, TrainingCall ──► refusal ──► None: it may                 a sentence: the caller's mistake (400, user)

What two servers let in at the same time, each before it knew of the other's, is decided by the log: the worker refuses
the later call with the same words.

Not covered: what only the model's weights can tell, such as tokens outside the vocabulary.
"""

from __future__ import annotations

import re

from plugins.tinker.calls.call_names import parse_path
from plugins.tinker.calls.call_state import BEGINS_AT, NUMBERED, CallState, TrainingSession, request_of, saved_path
from schemas.events import TrainingCall

PAID = frozenset(("forward", "forward_backward", "optim_step", "sample"))
"""Kinds whose calls cost something: a budget that is spent ends these, and what was trained can still be saved."""
LEAST_TTL_S, MOST_TTL_S = 3600, 10 * 365 * 24 * 3600
"""An hour, and ten years."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""The names that saved weights may have."""


def refusal(state: CallState, call: TrainingCall, now_ms: int) -> str | None:
    """Return why a call may not be made; None if it may. It is not in the state yet."""
    session = state.sessions.get(call.session_id)
    if call.kind == "create_session":
        return None if session is None else f"there is a session {call.session_id} already"
    if session is None:
        return f"there is no session {call.session_id}; create_session begins one"
    if call.kind in ("finish_session", "cancel", "delete_checkpoint", "set_expiry", "unload_model"):
        return _ttl_problem(call)
    if session.finished is not None:
        return f"session {call.session_id} has finished ({session.finished}); begin another one"
    if (problem := _budget_problem(session, call) or _ttl_problem(call)) is not None:
        return problem
    if call.kind in ("create_model", "copy_weights") or call.call_id == call.model:
        return f"there is a model {call.model} already" if call.model in state.models else None
    if call.kind in NUMBERED:
        return line_refusal(state, call, now_ms)
    if call.kind in ("sample", "join_sampling_session") and call.sampling_session not in state.samplers:
        return f"there is no sampling session {call.sampling_session}; create_sampling_session begins one"
    return None


def line_refusal(state: CallState, call: TrainingCall, now_ms: int) -> str | None:
    """Return why a model does not take this call of its line; None if it does, or if the call is no such call.

    Its session is not asked about: the worker, which asks this, may not have it.
    """
    if call.kind not in NUMBERED or call.call_id == call.model:
        return None
    if call.refusal is not None:
        return call.refusal
    model = state.models.get(call.model)
    if model is None:
        return f"there is no model {call.model}; create_model makes one"
    if not model.trains:
        return f"model {call.model} holds copied weights and is not trained; load them into a new model"
    if model.is_unloaded:
        return f"model {call.model} was unloaded; create one, and load what was saved"
    if call.seq_id is None or call.seq_id < BEGINS_AT:
        return f"seq_id is {call.seq_id}; the calls of a model are numbered from {BEGINS_AT}"
    if call.kind == "load_weights" and call.seq_id != BEGINS_AT:
        return (
            f"load_weights must be the model's first request, with seq_id {BEGINS_AT}; this one has {call.seq_id}. "
            "Create a model from the saved weights instead"
        )
    return _save_problem(state, call, now_ms)


def _save_problem(state: CallState, call: TrainingCall, now_ms: int) -> str | None:
    """Return why weights cannot be saved as this call says."""
    if call.path is None or call.kind == "load_weights":
        return None
    path = saved_path(call)
    if path is None:
        return None
    if NAME.fullmatch(call.path) is None or parse_path(path) is None:
        return f"path is {call.path[:80]!r}; expected a name of letters, digits, '.', '_' and '-', without a '/'"
    existing = state.checkpoints.get(path)
    other = state.pending_save(path)
    is_taken = other not in (None, call.call_id) and (existing is None or not existing.is_gone(now_ms))
    if call.kind == "save_weights" and is_taken and not request_of(call).get("overwrite"):
        return f"there are saved weights {path} already; choose another name, or send overwrite"
    return None


def _ttl_problem(call: TrainingCall) -> str | None:
    if call.ttl_s is None or LEAST_TTL_S <= call.ttl_s <= MOST_TTL_S:
        return None
    return f"ttl_seconds is {call.ttl_s}; expected {LEAST_TTL_S} (an hour) to {MOST_TTL_S} (10 years), or null"


def _budget_problem(session: TrainingSession, call: TrainingCall) -> str | None:
    if call.kind not in PAID or session.max_budget_usd is None or session.spent_usd < session.max_budget_usd:
        return None
    return (
        f"session {session.session_id} has cost {session.spent_usd:.4f} USD, and its budget is "
        f"{session.max_budget_usd:.4f}; begin another session"
    )
