"""Training calls as one request sees them: those of its key's tenant, and no sign of others'.

    request ──► its principal ──► TenantCalls ──► CallLog
    submit: the same call again ──► the id it has       another under its number, or against a rule ──► 400
            the tenant's month, jobs and calls, is spent ──► 400, before it is in the log
            a new one ──► the log, acknowledged by all replicas ──► its id

A request that must not be sent again gets 400: Tinker's SDK repeats 409 for minutes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from gateway.http.principal import principal_of
from gateway.http.request_record import record_of
from plugins.tinker.api.call_log import CallLog
from plugins.tinker.api.tensors import tensor_bytes
from plugins.tinker.calls.call_names import numbered_call
from plugins.tinker.calls.call_rules import PAID, refusal
from plugins.tinker.calls.call_state import (
    ANSWERED,
    BEGINS_AT,
    Checkpoint,
    SamplingSession,
    TrainingRun,
    TrainingSession,
    UploadedLoss,
)
from schemas.events import CallKind, TrainingCall
from schemas.tokens import Octets
from streams.errors import CallError, NotFoundError
from streams.kafka import times


class TenantCalls:
    """A CallLog, as one request sees it. Methods wait for the broker where CallLog does."""

    def __init__(self, log: CallLog, request: Request) -> None:
        principal, record = principal_of(request), record_of(request)
        self.log = log
        self.tenant = None if principal is None else principal.tenant
        self._subject = None if principal is None else principal.subject_id
        self._trace = None if record is None else record.traceparent

    # --- what there is ------------------------------------------------------------------------------------------------

    def sees(self, tenant: str | None) -> bool:
        """Return whether what is a tenant's may be known of."""
        return self.tenant is None or tenant == self.tenant

    def session(self, session_id: str) -> TrainingSession:
        """Return a session. Raises NotFoundError, LogError."""
        with self.log.state() as state:
            session = state.sessions.get(session_id)
        if session is None or not self.sees(session.tenant):
            raise NotFoundError(f"there is no session {session_id[:80]!r}; GET /api/v1/sessions lists them")
        return session

    def model(self, model_id: str) -> TrainingRun:
        """Return a model. Raises as `session`."""
        with self.log.state() as state:
            model = state.models.get(model_id)
        if model is None or not self.sees(model.tenant):
            raise NotFoundError(f"there is no model {model_id[:80]!r}; GET /api/v1/training_runs lists them")
        return model

    def sampler(self, sampler_id: str) -> SamplingSession:
        """Return a sampling session. Raises as `session`."""
        with self.log.state() as state:
            sampler = state.samplers.get(sampler_id)
        if sampler is None or not self.sees(sampler.tenant):
            raise NotFoundError(f"there is no sampling session {sampler_id[:80]!r}; create one")
        return sampler

    def loss(self, loss_id: str) -> UploadedLoss:
        """Return a custom loss. Raises as `session`."""
        with self.log.state() as state:
            loss = state.losses.get(loss_id)
        if loss is None or not self.sees(loss.tenant):
            raise NotFoundError(f"there is no custom loss {loss_id[:80]!r}; create_custom_loss makes one")
        return loss

    def checkpoint(self, path: str) -> Checkpoint:
        """Return saved weights that are neither deleted nor expired. Raises as `session`."""
        with self.log.state() as state:
            checkpoint = state.checkpoints.get(path)
        if checkpoint is None or not self.sees(checkpoint.tenant) or checkpoint.is_gone(times.now_ms()):
            raise NotFoundError(f"there are no saved weights {path[:200]!r}; GET /api/v1/checkpoints lists them")
        return checkpoint

    def call(self, call_id: str) -> TrainingCall:
        """Return a call. Raises as `session`."""
        with self.log.state() as state:
            call = state.calls.get(call_id)
        if call is None or not self.sees(call.tenant):
            raise NotFoundError(f"there is no request {call_id[:200]!r}")
        return call

    # --- calls --------------------------------------------------------------------------------------------------------

    def new_call(
        self, kind: CallKind, call_id: str, session_id: str, content: Mapping[str, Any], **fields: Any
    ) -> TrainingCall:
        """Return a call of this request; `content` is what makes another call of the same id another."""
        with self.log.state() as state:
            session = state.sessions.get(session_id)
        if session is not None and kind in ANSWERED:  # a worker may know nothing of the session
            fields["prices"] = session.prices
        arrays = fields.pop("tensors", None)
        data = Octets() if arrays is None else Octets(tensor_bytes(arrays))
        return TrainingCall(
            call_id=call_id,
            model=fields.pop("model", session_id),
            created_at=times.now_ms(),
            traceparent=self._trace,
            kind=kind,
            session_id=session_id,
            subject_id=self._subject,
            tenant=fields.pop("tenant", self.tenant),
            request_digest=digest({"kind": kind, **content}, data.data),
            data=data,
            **fields,
        )

    @contextmanager
    def line(self, kind: str, model_id: str, seq_id: int) -> Iterator[TrainingRun]:
        """Yield a model for a call of this kind and number.

        If it is refused, a call of kind `refused` keeps its number: the SDK continues with the next one, and calls of a
        model wait for those before them. Raises as `model`.
        """
        model = self.model(model_id)
        try:
            yield model
        except (CallError, NotFoundError) as exc:
            name = numbered_call(model_id, seq_id)
            with self.log.state() as state:
                is_taken = name in state.calls
            if not is_taken and seq_id >= BEGINS_AT and model.trains and not model.is_unloaded:
                fields = {"model": model_id, "tenant": model.tenant, "seq_id": seq_id, "refusal": str(exc)}
                asked = {"kind": kind}
                self.log.append(
                    self.new_call("refused", name, model.session_id, asked, request=request_text(asked), **fields)
                )
            raise

    def submit(self, call: TrainingCall) -> TrainingCall:
        """Return a call once it is in the log, or the same call that was there before.

        Raises CallError if its id is another call's, or a rule forbids it; LogError if the broker does not answer.
        """
        with self.log.state() as state:
            before = state.calls.get(call.call_id)
            refused = None if before is not None else refusal(state, call, call.created_at)
        if before is None:
            refused = refused or self._month_problem(call)
            if refused is not None:
                raise CallError("invalid", refused)
            self.log.append(call)
            with self.log.state() as state:
                before = state.calls[call.call_id]
        if before.refusal is not None:
            raise CallError("invalid", before.refusal)
        if before.request_digest != call.request_digest:
            problem = f"{call.kind}: {call.call_id} was sent before with another content; take the next seq_id"
            raise CallError("invalid", problem, "seq_id")
        return before

    def _month_problem(self, call: TrainingCall) -> str | None:
        """Return that the month of a call's tenant is spent, in the words of jobs."""
        if call.prices is None or call.kind not in PAID:
            return None
        month = self.log.month(call.tenant, call.created_at)
        problem = None if month is None else month.problem()
        return (
            problem and f"{problem}; save what was trained, and call again next month, or raise jobs.tenant_month_usd"
        )


def digest(content: Mapping[str, Any], data: bytes = b"") -> str:
    """Return the SHA-256 of what a request asks for, whatever the order of its fields."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass") + b"\0" + data).hexdigest()


def request_text(content: Mapping[str, Any]) -> str:
    """Return an object as the log has it: JSON with sorted keys, without what is null. Raises CallError."""
    present = {name: value for name, value in content.items() if value is not None}
    text = json.dumps(present, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise CallError("invalid", f"the body has a text that is no Unicode: {exc}") from exc
    return text
