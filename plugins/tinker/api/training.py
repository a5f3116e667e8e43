"""Train models: the calls that a training loop is made of, each an event before it is answered.

    create_model ──► forward_backward (one or several) ──► optim_step ──► save_weights …      numbered by seq_id
                          TrainingCall ──► training-calls ──► {request_id} ──► futures.py

A call's id is that of its model and its number, so the SDK's repetition of a request is the same call. What a call may
ask for is judged here and by the fold of the calls, in the same words.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from gateway.http.errors import apart
from gateway.http.intake import read_apart
from plugins.tinker.api.api_answers import FutureAnswer, InfoAnswer, ModelData, OptimizerAnswer
from plugins.tinker.api.base_names import base_names
from plugins.tinker.api.bodies import CreateModelBody, CustomLossBody, ModelBody, OptimStepBody
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.pass_calls import EXAMPLE, PASS, PassCall, RefusedPass, read_pass
from plugins.tinker.api.tenant_calls import TenantCalls, request_text
from plugins.tinker.calls.call_forms import (
    CUSTOM,
    adam_of,
    check_examples,
    check_optimizer,
    custom_loss_id,
    lora_of,
    loss_config,
)
from plugins.tinker.calls.call_names import loss_name, model_name, numbered_call
from plugins.tinker.calls.call_state import TrainingRun
from plugins.tinker.calls.loss_graph import loss_graph_of
from schemas.events import CallKind, TrainingCall
from streams.errors import CallError
from streams.settings.model import Settings

MODELS = "GET /api/v1/training_runs lists models"
FORWARD = {"forward_input": EXAMPLE, "model_id": "m", "seq_id": 1}
FORWARD_BACKWARD = {"forward_backward_input": EXAMPLE, "model_id": "m", "seq_id": 1}


class TinkerTraining:
    """The routes that train."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.post("/create_model", may=TRAIN, ids="GET /api/v1/sessions lists sessions")
    def tinker_create_model(self, request: Request, body: CreateModelBody) -> FutureAnswer:
        """Create a model: an adapter on the base model."""
        calls = TenantCalls(self._calls.log, request)
        session = calls.session(body.session_id)
        check_base(self._settings, body.base_model)
        model_id = model_name(body.session_id, body.model_seq_id)
        lora = lora_of(body.lora_config)
        check_optimizer(body.optimizer_config)
        content = body.model_dump(exclude={"type"})
        call = calls.new_call(
            "create_model",
            model_id,
            body.session_id,
            content,
            model=model_id,
            tenant=session.tenant,
            seq_id=body.model_seq_id,
            base_model=body.base_model,
            lora=lora,
            request=request_text({"user_metadata": body.user_metadata}),
        )
        return future_of(calls.submit(call))

    @TINKER.post("/get_info", may=TRAIN, ids=MODELS)
    def tinker_get_info(self, request: Request, body: ModelBody) -> InfoAnswer:
        """Look at a model."""
        model = TenantCalls(self._calls.log, request).model(body.model_id)
        return InfoAnswer(
            type="get_info",
            model_data=ModelData(model_name=model.base_model, tokenizer_id=base_names(self._settings)[0]),
            model_id=body.model_id,
            optimizer_config=OptimizerAnswer(type="adamw"),
            is_lora=True,
            lora_rank=model.lora.rank,
            model_name=model.base_model,
        )

    @TINKER.post("/unload_model", may=TRAIN, ids=MODELS)
    def tinker_unload_model(self, request: Request, body: ModelBody) -> FutureAnswer:
        """Let a model go: it takes no more calls, what was saved of it stays."""
        calls = TenantCalls(self._calls.log, request)
        model = calls.model(body.model_id)
        name = f"{body.model_id}:unload"
        call = calls.new_call("unload_model", name, model.session_id, {}, model=body.model_id, tenant=model.tenant)
        return future_of(calls.submit(call))

    @TINKER.post("/forward", may=TRAIN, ids=MODELS, sends=FORWARD, **PASS)
    async def tinker_forward(self, request: Request, raw: bytes) -> FutureAnswer:
        """Compute losses and logprobs."""
        return await self._pass(request, raw, forward_only=True)

    @TINKER.post("/forward_backward", may=TRAIN, ids=MODELS, sends=FORWARD_BACKWARD, **PASS)
    async def tinker_forward_backward(self, request: Request, raw: bytes) -> FutureAnswer:
        """Compute losses, and add their gradients to those since the last step."""
        return await self._pass(request, raw, forward_only=False)

    async def _pass(self, request: Request, raw: bytes, *, forward_only: bool) -> FutureAnswer:
        try:
            passed = await read_apart(lambda body: read_pass(request, body, forward_only=forward_only), raw)
        except RefusedPass as exc:
            await apart(self._keep_number, request, forward_only, exc)
            raise
        return await apart(self._submit_pass, request, passed)

    def _keep_number(self, request: Request, forward_only: bool, refused: RefusedPass) -> None:
        with TenantCalls(self._calls.log, request).line(pass_kind(forward_only), refused.model_id, refused.seq_id):
            raise refused

    def _submit_pass(self, request: Request, passed: PassCall) -> FutureAnswer:
        calls = TenantCalls(self._calls.log, request)
        with calls.line(pass_kind(passed.forward_only), passed.model_id, passed.seq_id) as model:
            return future_of(calls.submit(self._pass_call(calls, model, passed)))

    def _pass_call(self, calls: TenantCalls, model: TrainingRun, passed: PassCall) -> TrainingCall:
        """Return the call for a pass. Raises CallError that names what is wrong."""
        provenance = [example.provenance for example in passed.examples]
        content: dict[str, Any] = {"provenance": provenance} if any(provenance) else {}
        config = dict(passed.config)
        ranks = None
        if passed.loss == CUSTOM:
            custom_loss = calls.loss(custom_loss_id(config)).request
            content["custom_loss"] = custom_loss
            ranks = {each["name"]: each["rank"] for each in custom_loss["inputs"]}
        else:
            loss_config(passed.loss, config)
        check_examples(passed.loss, passed.shapes, ranks)
        return calls.new_call(
            pass_kind(passed.forward_only),
            numbered_call(passed.model_id, passed.seq_id),
            model.session_id,
            {**content, "loss": passed.loss, "config": config},
            model=passed.model_id,
            tenant=model.tenant,
            seq_id=passed.seq_id,
            loss=passed.loss,
            loss_config=request_text(config),
            request=request_text(content),
            examples=len(passed.examples),
            tokens=passed.tokens,
            tensors=passed.tensors,
        )

    @TINKER.post("/optim_step", may=TRAIN, ids=MODELS)
    def tinker_optim_step(self, request: Request, body: OptimStepBody) -> FutureAnswer:
        """Step with the gradients since the last step."""
        calls = TenantCalls(self._calls.log, request)
        with calls.line("optim_step", body.model_id, body.seq_id) as model:
            check_optimizer(body.optimizer_params, "optimizer_params")
            adam = adam_of(body.adam_params or {})
            call = calls.new_call(
                "optim_step",
                numbered_call(body.model_id, body.seq_id),
                model.session_id,
                asdict(adam),
                model=body.model_id,
                tenant=model.tenant,
                seq_id=body.seq_id,
                optimizer=adam,
            )
            return future_of(calls.submit(call))

    @TINKER.post("/create_custom_loss", may=TRAIN, max_bytes=None, max_values=100_000)
    def tinker_create_custom_loss(self, request: Request, body: CustomLossBody) -> FutureAnswer:
        """Store a loss of the caller's own, as torch.fx traced it."""
        calls = TenantCalls(self._calls.log, request)
        session = calls.session(body.session_id)
        loss_graph_of(body.name, body.inputs, body.graph)
        content = body.model_dump(exclude={"type", "session_id"})
        call = calls.new_call(
            "create_custom_loss",
            loss_name(body.session_id, body.custom_loss_seq_id),
            body.session_id,
            content,
            tenant=session.tenant,
            seq_id=body.custom_loss_seq_id,
            request=request_text(content),
        )
        return future_of(calls.submit(call))


def pass_kind(forward_only: bool) -> CallKind:
    """Return the kind of a call that passes examples through a model."""
    return "forward" if forward_only else "forward_backward"


def future_of(call: TrainingCall) -> FutureAnswer:
    """Return the answer to a call that is in the log."""
    return FutureAnswer(request_id=call.call_id, model_id=None if call.model == call.session_id else call.model)


def check_base(settings: Settings, name: str) -> None:
    """Raise CallError for a base model that this server has not."""
    names = base_names(settings)
    if name not in names:
        problem = f"base_model is {name[:200]!r}; this server has {' or '.join(names)}"
        raise CallError("invalid", problem, "base_model")
