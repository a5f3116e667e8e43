"""The answers of the Tinker API that are no results of calls: the SDK reads them into classes with these fields."""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.body import Answer


class ApiHealth(Answer):
    """The server answers."""

    status: Literal["ok"]


class ConfigAnswer(Answer):
    """How a client should behave; what is not here is as the SDK has it."""

    pjwt_auth_enabled: Literal[False]
    credential_default_source: Literal["api_key"]
    parallel_fwdbwd_chunks: bool
    proto_compress_fwdbwd: bool
    fwdbwd_max_chunk_bytes_count: int
    sample_use_retrieve_futures: bool
    sample_join_sampling_session: bool
    custom_loss_server_side: bool


class DynamicConfigAnswer(Answer):
    """What of a client's behavior may change while it runs."""

    refresh_interval_sec: int
    sample_cancel_enabled: bool
    sample_cancel_max_batch_size: int


class SupportedModel(Answer):
    """A base model."""

    model_name: str
    max_context_length: int | None
    trainable: bool
    sampleable: bool


class CapabilitiesAnswer(Answer):
    """What this server trains and samples with."""

    supported_models: list[SupportedModel]


class SessionCreated(Answer):
    """A session."""

    type: Literal["create_session"]
    session_id: str
    info_message: str | None = None


class HeartbeatAnswer(Answer):
    """The session continues."""

    type: Literal["session_heartbeat"]


class AcceptedAnswer(Answer):
    """Taken, and dropped: telemetry of the SDK."""

    status: Literal["accepted"]


class FutureAnswer(Answer):
    """A request that is in the log; its result is asked for by this id."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class PendingAnswer(Answer):
    """There is no result yet."""

    type: Literal["try_again"]
    request_id: str
    queue_state: Literal["active", "paused_capacity", "paused_rate_limit"]
    queue_state_reason: str | None = None


class EndedRequest(Answer):
    """A request that has ended."""

    state: Literal["finished", "failed"]
    request_id: str


class CompletionsAnswer(Answer):
    """The requests that have ended since a place, and the place from which to ask on."""

    completions: list[EndedRequest]
    cursor: int


class ModelData(Answer):
    """A base model."""

    model_name: str
    tokenizer_id: str


class OptimizerAnswer(Answer):
    """The optimizer of a model."""

    type: Literal["adamw"]


class InfoAnswer(Answer):
    """A model."""

    type: Literal["get_info"]
    model_data: ModelData
    model_id: str
    optimizer_config: OptimizerAnswer
    is_lora: Literal[True]
    lora_rank: int
    model_name: str


class SamplingSessionAnswer(Answer):
    """A sampling session."""

    type: Literal["create_sampling_session"]
    sampling_session_id: str


class JoinAnswer(Answer):
    """The number of a client in its sampling session."""

    type: Literal["join_sampling_session"]
    client_counter: int


class SamplerAnswer(Answer):
    """What a sampling session samples with."""

    sampler_id: str
    base_model: str
    model_path: str | None


class CursorAnswer(Answer):
    """Which part of a list this is."""

    offset: int
    limit: int
    total_count: int


class CheckpointAnswer(Answer):
    """Saved weights."""

    checkpoint_id: str
    checkpoint_type: Literal["training", "sampler"]
    time: str
    tinker_path: str
    size_bytes: int | None
    public: Literal[False]
    user_metadata: dict[str, Any] | None
    expires_at: str | None


class CheckpointList(Answer):
    """Saved weights of one model, or of all."""

    checkpoints: list[CheckpointAnswer]
    cursor: CursorAnswer | None = None


class TrainingRunAnswer(Answer):
    """A model, and what was saved of it last."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: Literal[True]
    corrupted: bool
    lora_rank: int
    last_request_time: str
    last_checkpoint: CheckpointAnswer | None
    last_sampler_checkpoint: CheckpointAnswer | None
    user_metadata: dict[str, Any] | None


class TrainingRunList(Answer):
    """Models."""

    training_runs: list[TrainingRunAnswer]
    cursor: CursorAnswer


class SessionAnswer(Answer):
    """What a session made."""

    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, Any] | None
    display_name: str | None


class SessionList(Answer):
    """Sessions, the newest first."""

    sessions: list[str]


class WeightsInfo(Answer):
    """The base model and the adapter's shape of saved weights."""

    base_model: str
    optimizer_config: OptimizerAnswer
    is_lora: Literal[True]
    lora_rank: int
    train_unembed: bool
    train_mlp: bool
    train_attn: bool


class CopyAnswer(Answer):
    """Where a copy is."""

    tinker_path: str
