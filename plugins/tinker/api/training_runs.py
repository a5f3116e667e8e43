"""Models and what was saved of them: lists, one by one, as an archive; deleted, and given a time to expire.

training_runs, checkpoints ──► the fold of the calls, of the key's tenant
DELETE …/checkpoints/KIND/NAME, PUT …/ttl ──► an event ──► 204          GET …/archive ──► the files, as tar
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from plugins.tinker.api.api_answers import (
    CheckpointAnswer,
    CheckpointList,
    CursorAnswer,
    TrainingRunAnswer,
    TrainingRunList,
)
from plugins.tinker.api.bodies import PageQuery, ScopeQuery, TtlBody
from plugins.tinker.api.call_log import OpenCalls
from plugins.tinker.api.interface import TINKER, TRAIN
from plugins.tinker.api.tenant_calls import TenantCalls, request_text
from plugins.tinker.api.training import MODELS
from plugins.tinker.api.weights import CHECKPOINTS
from plugins.tinker.api.weights_archive import TAR, archive
from plugins.tinker.calls.call_names import checkpoint_path
from plugins.tinker.calls.call_state import Checkpoint, TrainingRun
from streams.adapters.store import size_of
from streams.kafka import times
from streams.output import moment
from streams.settings.model import Settings

T = TypeVar("T")
KINDS: dict[str, Literal["training", "sampler"]] = {"weights": "training", "sampler_weights": "sampler"}
OF_NO_TENANT = "streamward"
"""The owner of models that are no tenant's."""
ONE = "/training_runs/{model_id}/checkpoints/{kind}/{name}"


class TinkerRuns:
    """The routes that list, and delete."""

    def __init__(self, settings: Settings, calls: OpenCalls) -> None:
        self._settings, self._calls = settings, calls

    @TINKER.get("/training_runs", may=TRAIN, ids=MODELS)
    def tinker_list_training_runs(self, request: Request, query: PageQuery) -> TrainingRunList:
        """List models, those that were called last first."""
        calls = TenantCalls(self._calls.log, request)
        with calls.log.state() as state:
            models = [model for model in state.models.values() if calls.sees(model.tenant)]
        models.sort(key=lambda model: (model.last_call_at, model.model_id), reverse=True)
        part, cursor = page(models, query)
        return TrainingRunList(training_runs=[self._run(calls, model) for model in part], cursor=cursor)

    @TINKER.get("/training_runs/{model_id}", may=TRAIN, ids=MODELS)
    def tinker_get_training_run(self, request: Request, model_id: str, query: ScopeQuery) -> TrainingRunAnswer:
        """Look at a model."""
        calls = TenantCalls(self._calls.log, request)
        return self._run(calls, calls.model(model_id))

    @TINKER.get("/training_runs/{model_id}/checkpoints", may=TRAIN, ids=MODELS)
    def tinker_list_checkpoints(self, request: Request, model_id: str) -> CheckpointList:
        """List what was saved of a model, the newest first."""
        calls = TenantCalls(self._calls.log, request)
        calls.model(model_id)
        return CheckpointList(checkpoints=[*map(self._answer, checkpoints_of(calls, model_id))])

    @TINKER.get("/checkpoints", may=TRAIN, ids=MODELS)
    def tinker_list_all_checkpoints(self, request: Request, query: PageQuery) -> CheckpointList:
        """List what was saved of all models, the newest first."""
        part, cursor = page(checkpoints_of(TenantCalls(self._calls.log, request)), query)
        return CheckpointList(checkpoints=[*map(self._answer, part)], cursor=cursor)

    @TINKER.delete(ONE, may=TRAIN, ids=CHECKPOINTS, answers={})
    def tinker_delete_checkpoint(self, request: Request, model_id: str, kind: str, name: str) -> Response:
        """Delete saved weights. Sampling sessions that were made of them end."""
        calls = TenantCalls(self._calls.log, request)
        checkpoint = calls.checkpoint(checkpoint_path(model_id, kind, name))
        call_id = f"{checkpoint.path}:delete:{checkpoint.created_at}"
        calls.submit(
            calls.new_call(
                "delete_checkpoint",
                call_id,
                calls.model(model_id).session_id,
                {},
                model=model_id,
                tenant=checkpoint.tenant,
                path=checkpoint.path,
            )
        )
        return Response(status_code=204)

    @TINKER.put(f"{ONE}/ttl", may=TRAIN, ids=CHECKPOINTS, answers={})
    def tinker_set_ttl(self, request: Request, model_id: str, kind: str, name: str, body: TtlBody) -> Response:
        """Say when saved weights expire; null: never."""
        calls = TenantCalls(self._calls.log, request)
        checkpoint = calls.checkpoint(checkpoint_path(model_id, kind, name))
        content = body.model_dump()
        calls.submit(
            calls.new_call(
                "set_expiry",
                f"{checkpoint.path}:expiry:{uuid.uuid4()}",
                calls.model(model_id).session_id,
                content,
                model=model_id,
                tenant=checkpoint.tenant,
                path=checkpoint.path,
                ttl_s=body.ttl_seconds,
                request=request_text(content),
            )
        )
        return Response(status_code=204)

    @TINKER.get(f"{ONE}/archive", may=TRAIN, ids=CHECKPOINTS, answers={TAR: {}}, at_once=2)
    def tinker_get_archive(self, request: Request, model_id: str, kind: str, name: str) -> Response:
        """Return the files of saved weights, as tar."""
        checkpoint = TenantCalls(self._calls.log, request).checkpoint(checkpoint_path(model_id, kind, name))
        headers = {"Content-Disposition": f'attachment; filename="{name}.tar"'}
        return Response(archive(self._settings.adapters.store, checkpoint.uri), media_type=TAR, headers=headers)

    def _answer(self, checkpoint: Checkpoint) -> CheckpointAnswer:
        return checkpoint_answer(checkpoint, self._settings.adapters.store)

    def _run(self, calls: TenantCalls, model: TrainingRun) -> TrainingRunAnswer:
        newest = [self._answer(checkpoint) for checkpoint in checkpoints_of(calls, model.model_id)]
        return TrainingRunAnswer(
            training_run_id=model.model_id,
            base_model=model.base_model,
            model_owner=model.tenant or OF_NO_TENANT,
            is_lora=True,
            corrupted=False,
            lora_rank=model.lora.rank,
            last_request_time=moment(model.last_call_at),
            last_checkpoint=newest_of(newest, "training"),
            last_sampler_checkpoint=newest_of(newest, "sampler"),
            user_metadata=model.request.get("user_metadata"),
        )


def checkpoints_of(calls: TenantCalls, model_id: str | None = None) -> list[Checkpoint]:
    """Return what was saved, of one model or of all that a request sees, the newest first."""
    now_ms = times.now_ms()
    with calls.log.state() as state:
        checkpoints = [
            checkpoint
            for checkpoint in state.checkpoints.values()
            if model_id in (None, checkpoint.model_id)
            and calls.sees(checkpoint.tenant)
            and not checkpoint.is_gone(now_ms)
        ]
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.created_at, checkpoint.path), reverse=True)


def checkpoint_answer(checkpoint: Checkpoint, store: str) -> CheckpointAnswer:
    """Return saved weights in the store, as the SDK reads them."""
    kind, name = checkpoint.path.split("/")[-2:]
    return CheckpointAnswer(
        checkpoint_id=f"{kind}/{name}",
        checkpoint_type=KINDS[kind],
        time=moment(checkpoint.created_at),
        tinker_path=checkpoint.path,
        size_bytes=size_of(store, checkpoint.uri),
        public=False,
        user_metadata=None if checkpoint.user_metadata is None else dict(checkpoint.user_metadata),
        expires_at=None if checkpoint.expires_at is None else moment(checkpoint.expires_at),
    )


def newest_of(checkpoints: Iterable[CheckpointAnswer], kind: str) -> CheckpointAnswer | None:
    """Return the first of a kind."""
    return next((checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_type == kind), None)


def page(items: Sequence[T], query: PageQuery) -> tuple[Sequence[T], CursorAnswer]:
    """Return a part of a list, and which it is."""
    cursor = CursorAnswer(offset=query.offset, limit=query.limit, total_count=len(items))
    return items[query.offset : query.offset + query.limit], cursor
