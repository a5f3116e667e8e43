"""Save weights, load them, copy them: named ones are versions of a policy, as any other that is trained.

save_weights ──► tinker://MODEL/weights/NAME, with the optimizer           load_weights: a model's first request
save_weights_for_sampler ──► …/sampler_weights/NAME, or a sampling session of its own
"""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request

from plugins.tinker.api.api_answers import CopyAnswer, FutureAnswer, OptimizerAnswer, WeightsInfo
from plugins.tinker.api.bodies import (
    CopyWeightsBody,
    LoadWeightsBody,
    NumberedBody,
    PathBody,
    SaveForSamplerBody,
    SaveWeightsBody,
)
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.not_offered import ARCHIVE, refuse
from plugins.tinker.api.tenant_calls import TenantCalls, request_text
from plugins.tinker.api.training import MODELS, check_base, future_of
from plugins.tinker.calls.call_forms import check_optimizer, trained_layers
from plugins.tinker.calls.call_names import checkpoint_path, model_name, numbered_call, sampler_name
from streams.access.tenants.tenant_names import named
from streams.errors import CallError
from streams.settings.model import Settings

CHECKPOINTS = "GET /api/v1/checkpoints lists saved weights"
IDEMPOTENCY_KEY = "x-idempotency-key"
LONGEST_KEY = 200


class TinkerWeights:
    """The routes about weights."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.post("/save_weights", may=TRAIN, ids=MODELS)
    def tinker_save_weights(self, request: Request, body: SaveWeightsBody) -> FutureAnswer:
        """Save weights and optimizer under a name."""
        calls = TenantCalls(self._calls.log, request)
        with calls.line("save_weights", body.model_id, body.seq_id) as model:
            extra = {"overwrite": body.overwrite or None, "user_metadata": body.user_metadata}
            call = calls.new_call(
                "save_weights",
                numbered_call(body.model_id, body.seq_id),
                model.session_id,
                body.model_dump(exclude={"type"}),
                model=body.model_id,
                tenant=model.tenant,
                seq_id=body.seq_id,
                path=body.path or f"{body.seq_id:06d}",
                ttl_s=body.ttl_seconds,
                request=request_text(extra),
            )
            return future_of(calls.submit(call))

    @TINKER.post("/save_weights_for_sampler", may=TRAIN, ids=MODELS)
    def tinker_save_weights_for_sampler(self, request: Request, body: SaveForSamplerBody) -> FutureAnswer:
        """Save weights to sample with: under a name, or for one sampling session."""
        calls = TenantCalls(self._calls.log, request)
        with calls.line("save_weights_for_sampler", body.model_id, body.seq_id) as model:
            if body.kind != "snapshot":
                problem = "kind is 'inflight': weights that change while they are sampled with are not offered"
                raise CallError("unsupported", f"{problem}; save a snapshot after each step", "kind")
            if (body.path is None) == (body.sampling_session_seq_id is None):
                raise CallError("invalid", "send path, a name for the weights, or sampling_session_seq_id; one of them")
            sampler = None
            if body.sampling_session_seq_id is not None:
                sampler = sampler_name(model.session_id, body.sampling_session_seq_id)
            call = calls.new_call(
                "save_weights_for_sampler",
                numbered_call(body.model_id, body.seq_id),
                model.session_id,
                body.model_dump(exclude={"type"}),
                model=body.model_id,
                tenant=model.tenant,
                seq_id=body.seq_id,
                path=body.path,
                sampling_session=sampler,
                ttl_s=body.ttl_seconds,
                request=request_text({"user_metadata": body.user_metadata}),
            )
            return future_of(calls.submit(call))

    @TINKER.post("/save_weights_external", may=TRAIN, ids=MODELS)
    def tinker_save_external(self, request: Request, body: NumberedBody) -> FutureAnswer:
        """Refuse weights in a bucket of Tinker's operator."""
        with TenantCalls(self._calls.log, request).line("save_weights_external", body.model_id, body.seq_id):
            refuse("save_weights_external", f"{ARCHIVE}, and `streamward adapters export` other formats")

    @TINKER.post("/load_weights", may=TRAIN, ids=CHECKPOINTS)
    def tinker_load_weights(self, request: Request, body: LoadWeightsBody) -> FutureAnswer:
        """Load weights into a model that was just created, or create one with them."""
        calls = TenantCalls(self._calls.log, request)
        if body.model_id is None or body.seq_id is None:
            return self._load(calls, body)
        with calls.line("load_weights", body.model_id, body.seq_id):
            return self._load(calls, body)

    def _load(self, calls: TenantCalls, body: LoadWeightsBody) -> FutureAnswer:
        checkpoint = calls.checkpoint(body.path)
        fields: dict[str, Any] = {"path": body.path, "source": checkpoint.uri, "base_model": checkpoint.base_model}
        fields["lora"] = checkpoint.lora
        check_optimizer(body.optimizer_config)
        if body.base_model is not None:
            check_base(self._settings, body.base_model)
        extra = {"optimizer": body.optimizer, "user_metadata": body.user_metadata}
        if body.model_id is not None and body.seq_id is not None and body.session_id is None:
            model = calls.model(body.model_id)
            model_id, session_id, tenant = body.model_id, model.session_id, model.tenant
            call_id, seq_id = numbered_call(model_id, body.seq_id), body.seq_id
        elif body.session_id is not None and body.model_seq_id is not None and body.model_id is None:
            session_id, tenant = body.session_id, calls.session(body.session_id).tenant
            model_id = call_id = model_name(session_id, body.model_seq_id)
            seq_id = 0
        else:
            raise CallError("invalid", "send model_id and seq_id, or session_id and model_seq_id")
        call = calls.new_call(
            "load_weights",
            call_id,
            session_id,
            body.model_dump(exclude={"type"}),
            model=model_id,
            tenant=tenant,
            seq_id=seq_id,
            request=request_text(extra),
            **fields,
        )
        return future_of(calls.submit(call))

    @TINKER.post("/copy_weights", may=TRAIN, ids=CHECKPOINTS)
    def tinker_copy_weights(self, request: Request, body: CopyWeightsBody) -> CopyAnswer:
        """Copy saved weights to a model that only holds them; the files are shared."""
        calls = TenantCalls(self._calls.log, request)
        checkpoint = calls.checkpoint(body.source_path)
        session_id, number = body.session_id, body.model_seq_id
        if (session_id is None) != (number is None):
            raise CallError("invalid", "send session_id and model_seq_id, or none of them")
        if session_id is None or number is None:
            key = request.headers.get(IDEMPOTENCY_KEY, "")[:LONGEST_KEY] or str(uuid.uuid4())
            session_id, number = named(calls.tenant, str(uuid.uuid5(uuid.NAMESPACE_URL, f"{calls.tenant}:{key}"))), 0
            content: dict[str, Any] = {"display_name": f"copy of {body.source_path}"}
            calls.submit(
                calls.new_call("create_session", session_id, session_id, content, request=request_text(content))
            )
        tenant = calls.session(session_id).tenant
        model_id = model_name(session_id, number)
        call = calls.new_call(
            "copy_weights",
            model_id,
            session_id,
            body.model_dump(),
            model=model_id,
            tenant=tenant,
            seq_id=0,
            base_model=checkpoint.base_model,
            lora=checkpoint.lora,
            path=body.source_path,
            source=checkpoint.uri,
            ttl_s=body.ttl_seconds,
        )
        calls.submit(call)
        kind, name = body.source_path.split("/")[-2:]
        return CopyAnswer(tinker_path=checkpoint_path(model_id, kind, name))

    @TINKER.post("/weights_info", may=TRAIN, ids=CHECKPOINTS)
    def tinker_weights_info(self, request: Request, body: PathBody) -> WeightsInfo:
        """Return what saved weights are of."""
        checkpoint = TenantCalls(self._calls.log, request).checkpoint(body.tinker_path)
        return WeightsInfo(
            base_model=checkpoint.base_model,
            optimizer_config=OptimizerAnswer(type="adamw"),
            is_lora=True,
            lora_rank=checkpoint.lora.rank,
            **trained_layers(checkpoint.lora),
        )
