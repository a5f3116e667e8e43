"""Sessions, and what a client of the Tinker API asks before anything else.

    client/config ──► how to behave          create_session ──► session_heartbeat … ──► sessions/ID/finish
    get_server_capabilities ──► base models  telemetry ──► dropped        what is not offered ──► 400, by its name

A heartbeat leaves nothing in the log: a session ends when its client says so, never because it was silent.
"""

from __future__ import annotations

import importlib.util
import uuid

from starlette.requests import Request
from starlette.responses import Response

from plugins.jobs.orders.request import prices_and_budget
from plugins.tinker.api.api_answers import (
    AcceptedAnswer,
    ApiHealth,
    CapabilitiesAnswer,
    ConfigAnswer,
    DynamicConfigAnswer,
    HeartbeatAnswer,
    SessionAnswer,
    SessionCreated,
    SessionList,
    SupportedModel,
)
from plugins.tinker.api.base_names import base_names
from plugins.tinker.api.bodies import ConfigBody, FinishBody, HeartbeatBody, PageQuery, ScopeQuery, SessionBody
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.tenant_calls import TenantCalls, digest, request_text
from plugins.tinker.api.training_runs import page
from streams.access.tenants.tenant_names import named
from streams.errors import CallError
from streams.settings.model import Settings

LISTED = "GET /api/v1/sessions lists sessions"
REFRESH_S = 300
"""How often clients ask for the part of their configuration that may change."""
CANCELLED_AT_ONCE = 64


class TinkerService:
    """The routes about sessions and the server. Methods wait for the broker."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.get("/healthz", may=None, refuses=())
    async def tinker_health(self) -> ApiHealth:
        """Say that the server answers."""
        return ApiHealth(status="ok")

    @TINKER.post("/client/config", may=TRAIN, refuses=())
    async def tinker_config(self, body: ConfigBody) -> ConfigAnswer:
        """Return how a client should behave: among others, how large its requests may be."""
        return ConfigAnswer(
            pjwt_auth_enabled=False,
            credential_default_source="api_key",
            parallel_fwdbwd_chunks=True,
            proto_compress_fwdbwd=importlib.util.find_spec("zstandard") is not None,
            fwdbwd_max_chunk_bytes_count=self._settings.topics.max_record_bytes // 2,
            sample_use_retrieve_futures=True,
            sample_join_sampling_session=True,
            custom_loss_server_side=True,
        )

    @TINKER.post("/client/dynamic_config", may=TRAIN, refuses=())
    async def tinker_dynamic_config(self, body: ConfigBody) -> DynamicConfigAnswer:
        """Return what of it may change."""
        return DynamicConfigAnswer(
            refresh_interval_sec=REFRESH_S,
            sample_cancel_enabled=True,
            sample_cancel_max_batch_size=CANCELLED_AT_ONCE,
        )

    @TINKER.get("/get_server_capabilities", may=TRAIN, refuses=())
    async def tinker_capabilities(self) -> CapabilitiesAnswer:
        """Return the base models."""
        models = [
            SupportedModel(model_name=name, max_context_length=None, trainable=True, sampleable=True)
            for name in base_names(self._settings)
        ]
        return CapabilitiesAnswer(supported_models=models)

    @TINKER.post("/telemetry", may=TRAIN, takes={"application/json": {}}, refuses=())
    async def tinker_telemetry(self, raw: bytes) -> AcceptedAnswer:
        """Take what the SDK reports of itself, and drop it."""
        return AcceptedAnswer(status="accepted")

    # --- sessions -----------------------------------------------------------------------------------------------------

    @TINKER.post("/create_session", may=TRAIN)
    def tinker_create_session(self, request: Request, body: SessionBody) -> SessionCreated:
        """Begin a session."""
        calls = TenantCalls(self._calls.log, request)
        session_id = named(calls.tenant, str(uuid.uuid4()))
        prices, budget_usd = prices_and_budget(None, None, self._settings)
        content = body.model_dump(exclude={"type"})
        call = calls.new_call(
            "create_session",
            session_id,
            session_id,
            content,
            prices=prices,
            max_budget_usd=budget_usd,
            request=request_text(content),
        )
        calls.submit(call)
        return SessionCreated(type="create_session", session_id=session_id)

    @TINKER.post("/session_heartbeat", may=TRAIN, ids=LISTED, also={410: "The session has finished"})
    def tinker_heartbeat(self, request: Request, body: HeartbeatBody) -> HeartbeatAnswer:
        """Say that a session's program runs."""
        session = TenantCalls(self._calls.log, request).session(body.session_id)
        if session.finished is not None:
            raise CallError("gone", f"session {body.session_id} has finished ({session.finished})")
        return HeartbeatAnswer(type="session_heartbeat")

    @TINKER.post("/sessions/{session_id}/finish", may=TRAIN, ids=LISTED, answers={})
    def tinker_finish_session(self, request: Request, session_id: str, body: FinishBody) -> Response:
        """End a session; the first reason counts."""
        calls = TenantCalls(self._calls.log, request)
        if calls.session(session_id).finished is None:
            content = {"reason": body.reason.type, "detail": body.detail}
            name = f"{session_id}:finish:{digest(content)[:16]}"
            calls.submit(calls.new_call("finish_session", name, session_id, content, request=request_text(content)))
        return Response(status_code=204)

    @TINKER.get("/sessions", may=TRAIN, ids=LISTED)
    def tinker_list_sessions(self, request: Request, query: PageQuery) -> SessionList:
        """List sessions, the newest first."""
        calls = TenantCalls(self._calls.log, request)
        with calls.log.state() as state:
            seen = [session for session in state.sessions.values() if calls.sees(session.tenant)]
        newest = sorted(seen, key=lambda session: (session.created_at, session.session_id), reverse=True)
        part, _ = page(newest, query)
        return SessionList(sessions=[session.session_id for session in part])

    @TINKER.get("/sessions/{session_id}", may=TRAIN, ids=LISTED)
    def tinker_get_session(self, request: Request, session_id: str, query: ScopeQuery) -> SessionAnswer:
        """Return what a session made."""
        calls = TenantCalls(self._calls.log, request)
        session = calls.session(session_id)
        with calls.log.state() as state:
            models = [name for name, model in state.models.items() if model.session_id == session_id]
            samplers = [name for name, sampler in state.samplers.items() if sampler.session_id == session_id]
        return SessionAnswer(
            training_run_ids=models,
            sampler_ids=samplers,
            user_metadata=session.request.get("user_metadata"),
            display_name=session.request.get("display_name"),
        )
