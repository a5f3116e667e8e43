"""What a training loop of somebody else's calls for, call by call, and the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from schemas.event_types import SHA256, Int, Millis
from schemas.job_events import JobPrices
from schemas.tokens import Octets

CallKind = Literal[
    "create_session",
    "finish_session",
    "create_model",
    "create_sampling_session",
    "join_sampling_session",
    "create_custom_loss",
    "forward",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
    "copy_weights",
    "sample",
    "cancel",
    "unload_model",
    "delete_checkpoint",
    "set_expiry",
    "refused",
]
CallFault = Literal["user", "server", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLora:
    """The adapter of a model that others train, as it was ordered."""

    rank: Int
    seed: Annotated[int | None, "null: one derived from the model's number in its session"] = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAdam:
    """One step of AdamW, as it was ordered."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: Annotated[float, "0: no clipping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCall:
    """A call of somebody's own training loop, acknowledged before it is answered. A model is the fold of its calls."""

    call_id: Annotated[str, "derived from what it is about and its number there; clients wait for its result by it"]
    model: Annotated[str, "key of the record: the model; the session, if it is about no model's weights"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: CallKind
    session_id: str
    seq_id: Annotated[
        int | None, "number among the calls of its model or sampling session; create_*: of what it makes in its session"
    ] = None
    subject_id: Annotated[str | None, "the key or the person; null: this server asks for none"] = None
    tenant: str | None = None
    request_digest: Annotated[str, "sha256 over the canonical request: the same call sent again has the same"]
    base_model: str | None = None
    lora: Annotated[CallLora | None, "create_model; load, copy: of the saved weights"] = None
    loss: Annotated[str | None, "forward, forward_backward: name of the loss"] = None
    loss_config: Annotated[str, "JSON object: its settings"] = "{}"
    optimizer: Annotated[CallAdam | None, "optim_step"] = None
    sampling_session: Annotated[str | None, "sample: which it is of; saves without a name: which they make"] = None
    path: Annotated[str | None, "saves: the name of the checkpoint; others: the checkpoint, as tinker://…"] = None
    source: Annotated[str | None, "load, copy, create_sampling_session: folder of that checkpoint in the store"] = None
    ttl_s: Annotated[int | None, "seconds until what it saves expires; null: never"] = None
    prices: Annotated[JobPrices | None, "create_session: what its calls cost; null: no prices"] = None
    max_budget_usd: Annotated[float | None, "create_session: what its calls may cost; null: no limit"] = None
    refusal: Annotated[
        str | None, "refused: why, as its client read it; the call keeps its number, and request.kind says what it was"
    ] = None
    request: Annotated[str, "JSON object: what of the request no other field has"] = "{}"
    examples: Annotated[Int, "forward, forward_backward: how many there are"] = 0
    tokens: Annotated[int, "of all examples, or of the prompt"] = 0
    data_uri: Annotated[str | None, "where the data are if they are too large for a record"] = None
    data_sha256: Annotated[str | None, "of the data there"] = None
    data: Annotated[Octets, "N.tokens and N.INPUT of example N; sample: prompt"] = Octets()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What became of a training call. The first result of a call counts; a second one is equal, or is not the first."""

    call_id: str
    model: Annotated[str, "key of the record, as of the call"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: CallKind
    session_id: str
    seq_id: int | None = None
    subject_id: str | None = None
    tenant: str | None = None
    source_partition: Annotated[Int, "of training-calls, where its call is"]
    source_offset: int
    category: Annotated[CallFault | None, "whose fault it is that it failed; null: it did not"] = None
    error: str | None = None
    version: Annotated[Int | None, "that the call saved, of the policy that is called as the model"] = None
    path: Annotated[str | None, "of the checkpoint that the call saved, as tinker://…"] = None
    uri: Annotated[str | None, "its folder in the store"] = None
    state_sha256: Annotated[str | None, "over the model's weights after the call, if it changed them"] = None
    prompt_tokens: Annotated[int, "that were run; those of training included"] = 0
    completion_tokens: Annotated[int, "that were sampled"] = 0
    seconds: Annotated[float, "that the call took"] = 0.0
    trainer_s: Annotated[float, "of these, of training: what has a price by the hour"] = 0.0
    cost_usd: Annotated[float | None, "null: no prices"] = None
    response: Annotated[str, "JSON object: what of the answer no other field has"] = "{}"
    metrics: dict[str, float] = field(default_factory=dict)
    outputs_uri: Annotated[str | None, "where the outputs are if they are too large for a record"] = None
    outputs_sha256: Annotated[str | None, "of the outputs there"] = None
    outputs: Annotated[Octets, "N.OUTPUT of example N; sample: N.tokens, N.logprobs of sample N, and of the prompt"] = (
        Octets()
    )


_CALL_FIELDS = {
    "create_model": "lora",
    "optim_step": "optimizer",
    "forward": "loss",
    "forward_backward": "loss",
    "refused": "refusal",
}
"""The field that calls of a kind have, and others have not."""
_CALL_MAY = (("load_weights", "lora"), ("copy_weights", "lora"))
"""The kinds that may have another kind's field."""


def call_problems(call: TrainingCall) -> Iterator[str]:
    """Return one sentence for each rule that a call breaks."""
    for name in set(_CALL_FIELDS.values()):
        is_needed, may = _CALL_FIELDS.get(call.kind) == name, (call.kind, name) in _CALL_MAY
        if not may and is_needed != (getattr(call, name) is not None):
            kinds = " and ".join(kind for kind, needed in _CALL_FIELDS.items() if needed == name)
            yield f"kind is {call.kind} and {name} is {'missing' if is_needed else 'set'}; {kinds} alone need it"
    if call.kind == "create_model" and call.call_id != call.model:
        names = f"call_id {call.call_id} and model {call.model}"
        yield f"kind is create_model, {names}; a model is named by the call that makes it"
    if call.lora is not None and call.lora.rank < 1:
        yield f"lora.rank is {call.lora.rank}; expected 1 or more"
    if call.examples < 0 or call.tokens < 0:
        yield f"examples is {call.examples} and tokens {call.tokens}; expected 0 or more"
    yield from _reference_problems("data", call.data_uri, call.data_sha256, call.data)


def result_problems(result: TrainingResult) -> Iterator[str]:
    """Return one sentence for each rule that a result breaks."""
    if (result.category is None) != (result.error is None):
        yield f"category is {result.category} and error {result.error!r}; set both or neither"
    for name in ("prompt_tokens", "completion_tokens", "seconds", "trainer_s", "cost_usd"):
        if (getattr(result, name) or 0) < 0:
            yield f"{name} is {getattr(result, name)}; expected 0 or more"
    yield from _reference_problems("outputs", result.outputs_uri, result.outputs_sha256, result.outputs)


def _reference_problems(name: str, uri: str | None, sha256: str | None, content: Octets) -> Iterator[str]:
    """Yield what is wrong with tensors that are in the record, or in a file with a digest."""
    if (uri is None) != (sha256 is None) or (uri is not None and len(content)):
        yield f"{name} has {len(content)} bytes, uri {uri} and sha256 {sha256}; expected bytes, or the other two"
    if sha256 is not None and not SHA256.fullmatch(sha256):
        yield f"{name}_sha256 is no SHA-256; expected 64 hexadecimal digits in lower case"
