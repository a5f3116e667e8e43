"""The log itself as Streamward's own REST: tasks and rewards into it, groups, versions and rows out of it.

    POST /tasks            ──► TaskIndex ──► tasks         GET  /groups/TASK ◄── rows of the log
    POST /rewards          ──► rewards                     POST /query       ◄── a statement that reads
    POST /adapters/POLICY/promote, reject, rollback        GET  /adapters    ◄── the fold of adapters
                           ──► adapters                    POST /score       ◄── scorers, and nothing is written

The paths are also below /api/v1. Nothing is kept here but what is read from the log, and what reads rows of it is
imported with the first request for some. What a tenant's key may see and name is decided where it is read:
task_body.py, group_view.py, adapter_orders.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Self
from weakref import WeakValueDictionary

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.http.body import Body, read, read_as_json, read_query, sent
from gateway.http.errors import apart
from gateway.http.openapi import described, requested
from gateway.http.principal import actor_of, no_task, principal_of, sees_task, task_names, tenant_of
from gateway.http.request_record import denied
from gateway.log import adapters as adapter_orders, rewards as outside_rewards, tasks as task_body
from gateway.log.adapters import AdaptersQuery, PromoteBody, RejectBody, RollbackBody
from gateway.log.answers import (
    AdapterDecisionAnswer,
    AdapterList,
    GroupAnswer,
    QueryAnswer,
    RewardAnswer,
    TaskAnswer,
    TriedScores,
)
from gateway.log.query_body import QueryBody
from gateway.log.rewards import RewardBody
from gateway.log.tasks import TaskBody
from schemas import serde
from schemas.events import AdapterKind, Message, Response as Answer, RewardSource, Task, derive_id
from streams import output
from streams.access.roles import decide
from streams.access.tenants.tenant_names import is_of
from streams.errors import CallError, EventError, NotFoundError, SettingsError
from streams.jobs import job_log
from streams.kafka import times
from streams.kafka.admin import offsets, offsets_at
from streams.kafka.reader import read as read_log
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.observability.tracing import context
from streams.scorers import ScoreOutcome, source_problems
from streams.settings.model import Settings
from streams.stages.scoring.trial import try_texts
from streams.stages.tasks.task_index import SubmittedTask, TaskIndex
from streams.tools.asking import CLOCKS_MS, write_reward

if TYPE_CHECKING:
    from gateway.log.statements import LogOverHttp

MOST_TEXTS = 32
SCORED_AT_ONCE = 2
"""Requests; each may have a process of its own."""
AT_ONCE = 4
"""Requests of each other kind that wait for the broker in a thread; calls of agents need threads, too."""
READ_S = 5.0
"""How long a request waits for the ids of all tasks to be read."""
KINDS: dict[str, AdapterKind] = {"promote": "promoted", "reject": "rejected", "rollback": "rolled_back"}
DECISIONS: dict[str, type[PromoteBody | RejectBody | RollbackBody]] = {
    "promote": PromoteBody,
    "reject": RejectBody,
    "rollback": RollbackBody,
}

DESCRIBED = {
    "promote": "Make a version primary.",
    "reject": "Take a version out of service, or keep it out.",
    "rollback": "Return to an older version.",
}


class ScoreBody(Body):
    """Texts, and the scorer that judges them."""

    scorer: str = Field(min_length=1, max_length=500, description="a built-in one, or module:function")
    texts: Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS, description="answers to the same task")]
    settings: dict[str, Any] | None = Field(None, description="of the scorer")
    answer: str | int | float | list[str | int | float] | None = Field(None, description="the right answer")
    verifier: dict[str, Any] | None = Field(None, description="what is checked against, in the place of answer")
    prompt: str | None = Field(None, description="the question")


BODIES = (TaskBody, RewardBody, ScoreBody, QueryBody, PromoteBody, RejectBody, RollbackBody)


class OpenLog:
    """What the routes read of the log, opened when it is first asked for. Use as a context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack, self._lock = ExitStack(), threading.Lock()
        self._tasks: TaskIndex | None = None
        self._view: LogOverHttp | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def view(self) -> LogOverHttp:
        """Rows of the log. Raises CallError where DuckDB is not installed."""
        with self._lock:
            if self._view is None:
                try:
                    from gateway.log.statements import LogOverHttp
                except ImportError as exc:
                    what = f"this server reads no rows of the log: {exc}"
                    raise CallError("unsupported", what) from exc
                self._view = self._stack.enter_context(contextlib.closing(LogOverHttp(self._settings)))
            return self._view

    @property
    def tasks(self) -> TaskIndex:
        """Every task by its id. Raises as `TaskIndex`, and CallError while the topic is read for the first time."""
        with self._lock:
            if self._tasks is None or self._tasks.failed:
                self._tasks = self._stack.enter_context(TaskIndex(self._settings))
            found = self._tasks
        if not found.is_read(READ_S):
            raise CallError("busy", "the ids of the tasks in the log are being read; try again")
        return found


class LogApi:
    """What the routes do for one request. Methods wait for the broker."""

    def __init__(self, settings: Settings, log: OpenLog, request: Request) -> None:
        self._settings, self._log, self._request = settings, log, request
        self._asks, self._tenant = principal_of(request), tenant_of(request)

    def submit(self, body: TaskBody) -> dict[str, Any]:
        """Write a task. Raises CallError, and as TaskIndex.submit."""
        settings, tenant = self._settings, self._tenant
        agents = job_log.known_agents(settings) if tenant is not None and body.agent is not None else {}
        shared = [name for name, policy in agents.items() if self._may_train(policy)]
        task = task_body.task_of(
            body, settings, tenant=tenant, actor=actor_of(self._request), now_ms=times.now_ms(), agents=shared
        )
        if not self._may_train(task.policy):
            what = f"there is no policy {task.policy[:80]!r} that {tenant} may train"
            raise CallError("not_found", what, "policy")
        self._check_named(task)
        under = context.parse(self._request.headers.get("traceparent"))
        try:
            found = self._log.tasks.submit(task, under=under)
        except (serde.EncodeError, EventError) as exc:
            raise CallError("invalid", str(exc)) from exc
        return task_body.shown(found.task, found.at)

    def reward(self, body: RewardBody) -> dict[str, Any]:
        """Write a score of one answer. Raises CallError, NotFoundError, and as `write_reward`."""
        settings, found = self._settings, self._task(body.task_id)
        response = outside_rewards.chosen(self._responses(found), body)
        reward = outside_rewards.reward_of(body, found.task, response, settings, now_ms=times.now_ms())
        try:
            at = write_reward(settings, reward, since_ms=found.timestamp_ms)
        except (serde.EncodeError, EventError) as exc:
            raise CallError("invalid", str(exc)) from exc
        return outside_rewards.shown(reward, at)

    def score(self, body: ScoreBody) -> dict[str, Any]:
        """Score texts, and write nothing. Raises CallError."""
        if body.answer is not None and body.verifier is not None:
            raise CallError("invalid", "give either answer or verifier; answer is short for one", "verifier")
        verifier = body.verifier if body.answer is None else {"answer": body.answer}
        source = RewardSource(name=body.scorer, settings=json.dumps(body.settings or {}))
        task = Task(
            task_id=derive_id("trial", body.scorer),
            created_at=times.now_ms(),
            policy=self._settings.policy.name,
            purpose="serve",
            group_size=1,
            verifier=json.dumps(verifier or {}),
            reward_sources=(source,),
            messages=() if body.prompt is None else (Message(role="user", content=body.prompt),),
        )
        self._check_named(task, parameter="scorer")
        if wrong := "; ".join(source_problems(task)):
            raise CallError("invalid", wrong)
        try:
            tried = try_texts(self._settings.scoring, task, source, body.texts)
        except SettingsError as exc:  # no judge, or a module that is not listed
            raise CallError("unsupported", str(exc), "scorer") from exc
        return {"object": "list", "scorer": body.scorer, "data": [_outcome(one) for one in tried]}

    def group(self, task_id: str) -> dict[str, Any]:
        """Return a task's group. Raises NotFoundError."""
        view = self._log.view
        from gateway.log import groups as group_view

        with view.snapshot() as snapshot:
            return group_view.group(snapshot, self._settings, task_id, self._asks)

    def query(self, body: QueryBody) -> dict[str, Any]:
        """Return the rows of a statement. Raises CallError."""
        if self._asks is not None and self._asks.agent_id is not None:
            why = f"{self._asks.who} may only act as agent {self._asks.agent_id}, and a statement reads what all did"
            raise denied(self._request, "log.query", why)
        view = self._log.view
        from gateway.log import statements

        return statements.answer(view, body)

    def adapters(self, query: AdaptersQuery) -> dict[str, Any]:
        """Return versions of policies. Raises NotFoundError."""
        every = adapter_orders.states(self._settings)
        return adapter_orders.listed(every, self._tenant, self._settings.policy.name, query.policy)

    def decide(self, policy: str, name: str, body: PromoteBody | RejectBody | RollbackBody) -> dict[str, Any]:
        """Decide about a version. Raises CallError, NotFoundError."""
        tenant = self._tenant
        if not is_of(tenant, policy):
            if not adapter_orders.sees(tenant, policy, self._settings.policy.name):
                raise NotFoundError(adapter_orders.none_of(policy))
            why = f"policy {policy} is shared; {actor_of(self._request)} decides about those that begin with {tenant}."
            raise denied(self._request, "adapters.promote", why, "policy")
        return adapter_orders.decide(self._settings, policy, KINDS[name], body, actor_of(self._request))

    # --- what a request may see and name ------------------------------------------------------------------------------

    def _may_train(self, policy: str) -> bool:
        return policy == self._settings.policy.name or is_of(self._tenant, policy)

    def _check_named(self, task: Task, parameter: str = "reward_sources") -> None:
        """Raise CallError for a scorer or an environment that the sender may not name."""
        rule, request = self._settings.serve, self._request
        environment = task_body.code_of_environment(task.environment)
        if self._tenant is not None:
            if (why := task_body.why_not_of_tenant(task.reward_sources, rule)) is not None:
                raise denied(request, "code.run", why, parameter)
            if environment is not None:
                raise denied(request, "code.run", f"{environment}, which takes a key without a tenant", "environment")
            return
        scorer = task_body.code_of(task.reward_sources, rule)
        decision = None if self._asks is None else decide(self._asks, "code.run")
        if (code := scorer or environment) is not None and decision is not None and not decision.allowed:
            raise denied(request, "code.run", f"{code}; {decision.why}", parameter if scorer else "environment")

    def _task(self, task_id: str) -> SubmittedTask:
        for name in task_names(self._asks, task_id):
            found = self._log.tasks.find(name)
            if found is not None and sees_task(self._asks, found.task.tenant, found.task.agent):
                return found
        raise NotFoundError(no_task(task_id))

    def _responses(self, found: SubmittedTask) -> Iterator[Answer]:
        """Yield the responses to a task."""
        topic, task_id = topics(self._settings.topics)["responses"], found.task.task_id
        tp = (topic.name, partition_of(task_id, topic.partitions))
        low, high = offsets(self._settings, ["responses"])[tp]
        since = offsets_at(self._settings, ["responses"], max(0, found.timestamp_ms - CLOCKS_MS))[tp]
        for record in read_log(self._settings, {tp: max(low, since) if since >= 0 else high}, {tp: high}):
            response = record.decode(Answer) if record.key == task_id.encode() else None
            if isinstance(response, Answer):
                yield response


def routes(settings: Settings, log: OpenLog, *, max_body_bytes: int) -> APIRouter:
    """Return the routes; a request with a longer body is refused."""
    router, scoring = APIRouter(), asyncio.Semaphore(SCORED_AT_ONCE)
    submitting, rating, reading = (asyncio.Semaphore(AT_ONCE) for _ in range(3))
    looking = asyncio.Lock()  # the view answers one after the other
    of_task: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def api(request: Request) -> LogApi:
        return LogApi(settings, log, request)

    @router.post("/tasks", **requested(TaskBody, name="submit_task", answer=TaskAnswer, status=201, refuses=(404, 409)))
    async def task(request: Request) -> Response:
        """Write a task. The same task again is the same; another one of its id is refused."""
        body = read_as_json(TaskBody, await sent(request, max_body_bytes))
        async with submitting:
            return JSONResponse(await apart(api(request).submit, body), 201)

    @router.post(
        "/rewards", **requested(RewardBody, name="give_reward", answer=RewardAnswer, status=201, refuses=(404, 409))
    )
    async def reward(request: Request) -> Response:
        """Write a score of exactly one answer."""
        body = read(RewardBody, await sent(request, max_body_bytes))
        one = of_task.setdefault(body.task_id, asyncio.Lock())
        async with one, rating:  # of a task one after the other, so that the same one twice at once is written once
            return JSONResponse(await apart(api(request).reward, body), 201)

    @router.post("/score", **requested(ScoreBody, name="try_scorer", answer=TriedScores, refuses=()))
    async def score(request: Request) -> Response:
        """Say what a scorer gives texts, and write nothing."""
        body = read(ScoreBody, await sent(request, max_body_bytes))
        if scoring.locked():
            raise CallError("busy", "as many texts as may be scored at once are being scored; try again")
        async with scoring:
            return await _answered(api(request).score, body)

    @router.get("/groups/{task_id}", **described(name="get_group", answer=GroupAnswer, refuses=(404,)))
    async def group(request: Request, task_id: str) -> Response:
        """Look at the answers to a task beside each other."""
        async with looking:
            return await _answered(api(request).group, task_id)

    @router.post("/query", **requested(QueryBody, name="query_log", answer=QueryAnswer, refuses=()))
    async def query(request: Request) -> Response:
        """Read the log by SQL."""
        body = read(QueryBody, await sent(request, max_body_bytes))
        return await _answered(api(request).query, body)

    @router.get("/adapters", **described(query=AdaptersQuery, name="list_adapters", answer=AdapterList, refuses=(404,)))
    async def adapters(request: Request) -> Response:
        """List policies, their versions, and who serves."""
        asked = read_query(AdaptersQuery, request.query_params.multi_items())
        async with reading:
            return await _answered(api(request).adapters, asked)

    for name, kind in DECISIONS.items():
        _add_decision(router, name, kind, api, max_body_bytes)
    return router


def _add_decision(
    router: APIRouter,
    name: str,
    kind: type[PromoteBody | RejectBody | RollbackBody],
    api: Callable[[Request], LogApi],
    max_body_bytes: int,
) -> None:
    @router.post(
        f"/adapters/{{policy}}/{name}",
        description=DESCRIBED[name],
        **requested(kind, name=f"{name}_adapter", answer=AdapterDecisionAnswer),
    )
    async def decision(request: Request, policy: str) -> Response:
        body = read(kind, await sent(request, max_body_bytes))
        return await _answered(api(request).decide, policy, name, body)


async def _answered(call: Callable[..., dict[str, Any]], *given: Any) -> Response:
    """Return what a call returns, whose numbers may be none that JSON has."""
    return Response(output.json_line(await apart(call, *given)), media_type="application/json")


def _outcome(one: ScoreOutcome) -> dict[str, Any]:
    return {
        "value": one.value,
        "components": one.components,
        "rationale": one.rationale,
        "version": one.version,
        "error": one.error,
        "reason": one.reason,
    }
