"""The topics of third-party training loops."""

from __future__ import annotations

from plugins.tinker.calls.call_names import policy_of
from schemas import events
from streams.output import Column
from streams.topics.shape import OF_TENANT, RecordCost, TopicShape, short


def _cost(result: events.TrainingResult) -> RecordCost:
    return RecordCost(
        work_id=result.call_id,
        created_at=result.created_at,
        tenant=result.tenant,
        policy="" if result.model == result.session_id else policy_of(result.model),
        session=result.session_id,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        trainer_s=result.trainer_s,
        cost_usd=result.cost_usd,
    )


# fmt: off
TOPICS = (
    TopicShape(
        label="training-calls", event=events.TrainingCall, key="model", kept=False,
        written_by="the server that training loops call", read_by="the worker of calls, the server",
        tenant=OF_TENANT, reader=None, is_about="a training call", audit="whole", causes=(),
        effects=("adapters",),
        line=lambda kind, model, seq_id, refusal: (
            f"{kind} {seq_id} of {model}{'' if refusal is None else f': {refusal}'}"
        ),
        columns=(
            Column("call", lambda e: short(e.call_id), 10),
            Column("model", lambda e: e.model, 24),
            Column("seq", lambda e: e.seq_id, 5, right=True),
            Column("kind", lambda e: e.kind, 24),
            Column("tokens", lambda e: e.tokens, 7, right=True),
            Column("path", lambda e: e.refusal or e.path),
        ),
    ),
    TopicShape(
        label="training-results", event=events.TrainingResult, key="model", kept=False,
        written_by="the worker of calls", read_by="the server, the controller of jobs",
        tenant=OF_TENANT, reader=None, is_about="the result of a training call", audit="whole",
        causes=("training-calls", "adapters"), cost=_cost,
        line=lambda kind, model, seq_id, error: f"{kind} {seq_id} of {model}: {error or 'done'}",
        columns=(
            Column("call", lambda e: short(e.call_id), 10),
            Column("model", lambda e: e.model, 24),
            Column("seq", lambda e: e.seq_id, 5, right=True),
            Column("kind", lambda e: e.kind, 24),
            Column("seconds", lambda e: f"{e.seconds:.2f}", 7, right=True),
            Column("path", lambda e: e.error or e.path),
        ),
    ),
)
# fmt: on
