"""Runs of self-play that are asked for: a catalogue of questions, asked once.

    POST /run {"catalogue": {"name": …, "scenarios": […]}} ──► Catalogue ──► a crossing in triggers ──► its tasks

A tenant's catalogue has the tenant's name before its own, and its tasks are the tenant's, as those of POST /tasks.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import IDEMPOTENCY_KEY, LARGE_BODY, REST, idempotency_key
from gateway.log.named_code import check_named
from gateway.log.open_log import AT_ONCE
from plugins.improve.selfplay.catalogue import Catalogue, catalogue_of
from plugins.improve.selfplay.selfplay_runner import SelfPlayRunner
from plugins.improve.triggers.trigger_log import TriggerLog
from schemas.events import TriggerEvent
from streams.access.tenants.tenant_names import is_of
from streams.errors import CallError, EventError, NotFoundError, SettingsError
from streams.kafka.followed import FollowedOnDemand
from streams.output import moment
from streams.settings.model import Settings


class SelfPlayBody(Body):
    """A catalogue of questions, as `streamward improve selfplay run` reads it from a file."""

    catalogue: dict[str, Any] = Field(description="`name`, `scenarios` and how they are asked (docs/improve.md)")


class SelfPlayRunAnswer(Answer):
    """A run of a catalogue."""

    object: Literal["selfplay_run"]
    run_id: str = Field(description="id of its event in the topic triggers; also of the same run that was asked before")
    catalogue: str
    policy: str
    questions: int
    task_ids: list[str]
    created_at: str


class SelfPlayRuns:
    """The route that starts a run. It waits for the broker."""

    def __init__(self, settings: Settings, triggers: FollowedOnDemand[TriggerLog]) -> None:
        self._settings, self._triggers = settings, triggers

    @REST.post(
        "/run",
        may="tasks.submit",  # a scorer that is executed code takes code.run, too
        **LARGE_BODY,
        status=201,
        ids="GET /adapters lists policies",
        at_once=AT_ONCE,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "catalogue": {
                "name": "arithmetic",
                "scenarios": [
                    {"name": "sums", "category": "easy", "questions": [{"question": "4 + 7 =", "expected": 11}]}
                ],
            }
        },
        example=SelfPlayRunAnswer(
            object="selfplay_run",
            run_id="0d3f4c52-8f0e-5c59-9a3f-3f1f5a6d1c11",
            catalogue="arithmetic",
            policy="sums",
            questions=1,
            task_ids=["7b0c1f6e-0d55-5b6e-8d77-1a0f7b1d0c55"],
            created_at="2026-01-01T00:00:00.000Z",
        ),
    )
    def start_selfplay(self, request: Request, body: SelfPlayBody) -> SelfPlayRunAnswer:
        """Ask a policy the questions of a catalogue."""
        catalogue = self._catalogue(request, body)
        key = idempotency_key(request)
        runner = SelfPlayRunner(self._settings, catalogue, self._triggers.open())
        try:
            for task in runner.preview():
                check_named(request, self._settings.serve, task, "catalogue.reward_sources")
            started = runner.ask_once(actor_of(request), key)
        except (SettingsError, NotFoundError, EventError) as exc:
            raise CallError("invalid", str(exc), "catalogue") from exc
        return _answer(started.crossing, catalogue, [task.task_id for task in started.tasks])

    def _catalogue(self, request: Request, body: SelfPlayBody) -> Catalogue:
        """Return the catalogue, as one of the tenant of the request. Raises CallError."""
        tenant = tenant_of(request)
        fields = {name: value for name, value in body.catalogue.items() if value is not None}
        if tenant is not None and fields.setdefault("tenant", tenant) != tenant:
            problem = f"tenant is {str(fields['tenant'])[:80]!r}, and the key is of {tenant}: leave it out"
            raise CallError("invalid", problem, "catalogue.tenant")
        try:
            catalogue = catalogue_of(fields)
        except SettingsError as exc:
            raise CallError("invalid", f"catalogue: {exc}", "catalogue") from exc
        policy = catalogue.policy or self._settings.policy.name
        if policy != self._settings.policy.name and not is_of(tenant, policy):
            raise CallError(
                "not_found", f"there is no policy {policy[:80]!r} that {tenant} may ask", "catalogue.policy"
            )
        if tenant is not None and catalogue.agent is not None and not is_of(tenant, catalogue.agent):
            raise CallError(
                "not_found",
                f"agent {catalogue.agent[:80]!r} is not of {tenant}; name {tenant}.AGENT",
                "catalogue.agent",
            )
        return catalogue


def _answer(crossing: TriggerEvent, catalogue: Catalogue, task_ids: list[str]) -> SelfPlayRunAnswer:
    return SelfPlayRunAnswer(
        object="selfplay_run",
        run_id=crossing.event_id,
        catalogue=catalogue.key,
        policy=crossing.policy,
        questions=len(task_ids),
        task_ids=task_ids,
        created_at=moment(crossing.created_at),
    )
