"""Sample with weights that do not change: sampling sessions, and the prompts that they answer.

    saved weights, or the base model ──► create_sampling_session ──► SESSION:sample:N ──► asample ──► futures.py
    a client in another process ──► join_sampling_session ──► its number, which its seq_ids begin with

Each sample of a prompt has an id from the start, so that a training example can say which tokens came from where.
"""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request

from gateway.http.route import CONVERSATION
from plugins.tinker.api.api_answers import FutureAnswer, JoinAnswer, SamplerAnswer, SamplingSessionAnswer
from plugins.tinker.api.base_names import base_names
from plugins.tinker.api.bodies import JoinBody, SampleBody, SamplingSessionBody
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.pass_calls import Array, input_tokens
from plugins.tinker.api.tenant_calls import TenantCalls, request_text
from plugins.tinker.api.training import check_base
from plugins.tinker.calls.call_names import numbered_call, sampler_name
from streams.errors import CallError
from streams.settings.model import Settings

SESSIONS = "GET /api/v1/sessions/SESSION lists the sampling sessions of a session"
TYPED = {"type", "prompt", "sampling_session_id", "seq_id"}
"""Fields of a body that its call has elsewhere than in the rest of the request."""


class TinkerSampling:
    """The routes that sample."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.post("/create_sampling_session", may=TRAIN, ids="GET /api/v1/checkpoints lists saved weights")
    def tinker_create_sampling_session(self, request: Request, body: SamplingSessionBody) -> SamplingSessionAnswer:
        """Begin to sample with saved weights, or with the base model."""
        calls = TenantCalls(self._calls.log, request)
        session = calls.session(body.session_id)
        content = body.model_dump(exclude={"type"})
        fields: dict[str, Any] = {"base_model": body.base_model or base_names(self._settings)[0]}
        if body.base_model is not None:
            check_base(self._settings, body.base_model)
        elif body.model_path is None:
            raise CallError("invalid", "send model_path or base_model: one of them says what is sampled with")
        if body.model_path is not None:
            checkpoint = calls.checkpoint(body.model_path)
            fields |= {"path": body.model_path, "source": checkpoint.uri, "base_model": checkpoint.base_model}
        name = sampler_name(body.session_id, body.sampling_session_seq_id)
        call = calls.new_call(
            "create_sampling_session",
            name,
            body.session_id,
            content,
            tenant=session.tenant,
            seq_id=body.sampling_session_seq_id,
            sampling_session=name,
            **fields,
        )
        calls.submit(call)
        return SamplingSessionAnswer(type="create_sampling_session", sampling_session_id=name)

    @TINKER.post("/join_sampling_session", may=TRAIN, ids=SESSIONS)
    def tinker_join_sampling_session(self, request: Request, body: JoinBody) -> JoinAnswer:
        """Number one more client of a sampling session."""
        calls = TenantCalls(self._calls.log, request)
        sampler = calls.sampler(body.sampling_session_id)
        name = f"{body.sampling_session_id}:join:{uuid.uuid4()}"
        call = calls.new_call(
            "join_sampling_session",
            name,
            sampler.session_id,
            {},
            model=sampler.model,
            tenant=sampler.tenant,
            sampling_session=body.sampling_session_id,
        )
        calls.submit(call)
        with calls.log.state() as state:
            number = state.samplers[body.sampling_session_id].joined.index(name) + 1
        return JoinAnswer(type="join_sampling_session", client_counter=number)

    @TINKER.get("/samplers/{sampler_id}", may=TRAIN, ids=SESSIONS)
    def tinker_get_sampler(self, request: Request, sampler_id: str) -> SamplerAnswer:
        """Return what a sampling session samples with."""
        sampler = TenantCalls(self._calls.log, request).sampler(sampler_id)
        return SamplerAnswer(sampler_id=sampler_id, base_model=sampler.base_model, model_path=sampler.path)

    @TINKER.post("/asample", may=TRAIN, ids=SESSIONS, **CONVERSATION)
    def tinker_sample(self, request: Request, body: SampleBody) -> FutureAnswer:
        """Answer a prompt, several times if it is asked for."""
        calls = TenantCalls(self._calls.log, request)
        prompt = prompt_of(body)
        sampler = calls.sampler(body.sampling_session_id)
        content = body.model_dump(exclude=TYPED, exclude_defaults=True)
        call = calls.new_call(
            "sample",
            numbered_call(body.sampling_session_id, body.seq_id),
            sampler.session_id,
            content,
            model=sampler.model,
            tenant=sampler.tenant,
            seq_id=body.seq_id,
            sampling_session=body.sampling_session_id,
            request=request_text(content),
            tokens=len(prompt),
            tensors={"prompt": prompt},
        )
        call = calls.submit(call)
        ids = [f"{call.call_id}:{number}" for number in range(body.num_samples)]
        return FutureAnswer(request_id=call.call_id, model_id=sampler.model, sample_sequence_ids=ids)


def prompt_of(body: SampleBody) -> Array:
    """Return the tokens of a prompt. Raises CallError that names what is wrong."""
    prompt = input_tokens(body.prompt, "prompt")
    if not len(prompt):
        raise CallError("invalid", "prompt has no tokens", "prompt")
    if body.prompt_logprobs_last_n is not None:
        if not body.prompt_logprobs:
            problem = "prompt_logprobs_last_n is about prompt logprobs; set prompt_logprobs"
            raise CallError("invalid", problem, "prompt_logprobs_last_n")
        if body.prompt_logprobs_last_n >= len(prompt):
            problem = f"prompt_logprobs_last_n is {body.prompt_logprobs_last_n}, expected 1 to {len(prompt) - 1}"
            raise CallError("invalid", problem, "prompt_logprobs_last_n")
    return prompt
