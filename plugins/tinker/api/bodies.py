"""The bodies of requests of the Tinker API, as the SDK sends them in JSON.

A field that is not offered is Refused with the reason; one that no class here has is refused by its name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.http.body import Body, PathQuery, Whole
from plugins.tinker.calls.call_rules import LEAST_TTL_S, MOST_TTL_S, NAME
from schemas.faults import Ignored, Refused

Seq = Annotated[Whole, Field(ge=0, lt=2**63)]
Count = Annotated[Whole, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Metadata = dict[str, Any]
TextMetadata = dict[str, str]
Ttl = Annotated[Whole, Field(ge=LEAST_TTL_S, le=MOST_TTL_S, description="seconds until it expires")]
CheckpointName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
NO_TOKENS_OF_OTHERS = Refused("weights of another account cannot be read here: keys of one tenant see the same weights")
MOST_EXAMPLES = 1024
"""Of one pass."""
Counts = Annotated[list[Count], Field(fail_fast=True)]
NO_PROJECTS = Refused("there are no projects: a key's tenant says whose it is")


class ConfigBody(Body):
    """Which SDK asks."""

    sdk_version: str


class SessionBody(Body):
    """A new session."""

    tags: list[str]
    user_metadata: Metadata | None = None
    sdk_version: str
    project_id: Annotated[str | None, NO_PROJECTS] = None
    display_name: str | None = None
    type: Literal["create_session"] = "create_session"


class HeartbeatBody(Body):
    """A session whose program runs."""

    session_id: Name
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(Body):
    """How a session ended."""

    type: Literal["success", "errored", "interrupted"]


class FinishBody(Body):
    """The end of a session."""

    reason: FinishReason
    detail: str | None = None


class CreateModelBody(Body):
    """A new model on a base model."""

    session_id: Name
    model_seq_id: Count
    base_model: Name
    user_metadata: Metadata | None = None
    lora_config: Metadata | None = None
    optimizer_config: Metadata | None = None
    type: Literal["create_model"] = "create_model"


class ModelBody(Body):
    """A model."""

    model_id: Name
    type: Literal["get_info", "unload_model"] | None = None


class TensorBody(Body):
    """A tensor: its values in a row, or those of a sparse one (CSR)."""

    data: Annotated[list[int], Field(fail_fast=True)] | Annotated[list[float], Field(fail_fast=True)]
    dtype: Literal["int64", "float32"]
    shape: Counts | None = None
    sparse_crow_indices: Counts | None = None
    sparse_col_indices: Counts | None = None


class ChunkBody(Body):
    """A piece of an input."""

    model_config = ConfigDict(extra="ignore")

    type: str = "encoded_text"
    tokens: Counts = Field(default_factory=list)


class ModelInputBody(Body):
    """An input of tokens, in pieces."""

    chunks: list[ChunkBody] = Field(fail_fast=True)


class DatumBody(Body):
    """An example, and what its loss is given."""

    model_input: ModelInputBody
    loss_fn_inputs: dict[str, TensorBody]


class PassInput(Body):
    """Examples, and their loss."""

    data: list[DatumBody] = Field(max_length=MOST_EXAMPLES, fail_fast=True)
    loss_fn: Name
    loss_fn_config: dict[str, float | str] | None = None


class ForwardBody(Body):
    """A forward pass."""

    forward_input: PassInput
    model_id: Name
    seq_id: Seq


class ForwardBackwardBody(Body):
    """A forward pass, and a backward one."""

    forward_backward_input: PassInput
    model_id: Name
    seq_id: Seq


class OptimStepBody(Body):
    """A step of the optimizer."""

    adam_params: Metadata | None = None
    optimizer_params: Metadata | None = None
    model_id: Name
    seq_id: Seq
    type: Literal["optim_step"] = "optim_step"


class NumberedBody(Body):
    """A call of a model, whatever else it says."""

    model_config = ConfigDict(extra="ignore")

    model_id: Name
    seq_id: Seq


class SaveWeightsBody(Body):
    """Weights and optimizer under a name."""

    model_id: Name
    path: CheckpointName | None = None
    seq_id: Seq
    ttl_seconds: Ttl | None = None
    overwrite: bool = False
    user_metadata: TextMetadata | None = None
    type: Literal["save_weights"] = "save_weights"


class SaveForSamplerBody(Body):
    """Weights to sample with: under a name, or of one sampling session."""

    model_id: Name
    path: CheckpointName | None = None
    sampling_session_seq_id: Count | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    seq_id: Seq
    ttl_seconds: Ttl | None = None
    user_metadata: TextMetadata | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class LoadWeightsBody(Body):
    """Weights to begin with: of a model that was just created, or of one that is created thereby."""

    model_id: Name | None = None
    seq_id: Seq | None = None
    session_id: Name | None = None
    model_seq_id: Count | None = None
    base_model: Name | None = None
    user_metadata: Metadata | None = None
    path: Name
    optimizer: bool
    optimizer_config: Metadata | None = None
    weights_access_token: Annotated[str | None, NO_TOKENS_OF_OTHERS] = None
    type: Literal["load_weights"] = "load_weights"


class CopyWeightsBody(Body):
    """A copy of saved weights."""

    session_id: Name | None = None
    model_seq_id: Count | None = None
    destination_project_id: Annotated[str | None, Ignored("a copy belongs to the tenant of the key")] = None
    source_path: Name
    ttl_seconds: Ttl | None = None
    weights_access_token: Annotated[str | None, NO_TOKENS_OF_OTHERS] = None


class PathBody(Body):
    """The path of saved weights."""

    tinker_path: Name


class TtlBody(Body):
    """When saved weights expire."""

    ttl_seconds: Ttl | None


class SamplingSessionBody(Body):
    """A new sampling session."""

    session_id: Name
    sampling_session_seq_id: Count
    base_model: Name | None = None
    model_path: Name | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class JoinBody(Body):
    """One more client of a sampling session."""

    sampling_session_id: Name
    type: Literal["join_sampling_session"] = "join_sampling_session"


class SamplingParams(Body):
    """How to sample."""

    max_tokens: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: str | list[str] | list[Count] | None = None
    temperature: Annotated[float, Field(ge=0)] = 1
    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1


class SampleBody(Body):
    """A prompt to answer."""

    num_samples: Annotated[Whole, Field(ge=1, le=1024)] = 1
    prompt: ModelInputBody
    sampling_params: SamplingParams
    base_model: Annotated[str | None, Refused("a sampling session says what is sampled with")] = None
    model_path: Annotated[str | None, Refused("a sampling session says what is sampled with")] = None
    sampling_session_id: Name
    seq_id: Seq
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Annotated[Whole, Field(ge=0, le=100)] = 0
    topk_sample_logprobs: Annotated[Whole, Field(ge=0, le=100)] = 0
    target_prompt_logprobs: Annotated[
        TensorBody | None, Refused("logprobs of tokens that are not in the prompt; ask for topk_prompt_logprobs")
    ] = None
    prompt_alt_tokens_k: Annotated[Whole, Refused("draws at places of the prompt; sample from its beginnings", 0)] = 0
    prompt_logprobs_last_n: Annotated[Whole, Field(ge=1)] | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


class FutureBody(Body):
    """A request whose result is asked for, or that is cancelled."""

    request_id: Name
    allow_metadata_only: bool = False


class FuturesTarget(Body):
    """The requests of one client of a sampling session."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: Name
    cloned_sampler_id: Seq = 0


class FuturesBody(Body):
    """Requests that have ended since the last time."""

    target: FuturesTarget
    prev_cursor: Seq = 0
    timeout: Annotated[float, Field(ge=0)] | None = None
    retrieved_request_ids: list[str] = Field(default_factory=list)


class CustomLossBody(Body):
    """A loss of the caller's own."""

    session_id: Name
    custom_loss_seq_id: Count
    name: Name
    inputs: list[Metadata]
    graph: Metadata
    type: Literal["create_custom_loss"] = "create_custom_loss"


class PageQuery(PathQuery):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    access_scope: Literal["owned", "accessible"] = "owned"
    project_id: Annotated[str | None, NO_PROJECTS] = None


class ScopeQuery(PathQuery):
    """Of whom; a key sees the same in either."""

    access_scope: Literal["owned", "accessible"] = "owned"
