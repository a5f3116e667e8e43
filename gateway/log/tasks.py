"""Tasks that are sent, as the log gets them: of which tenant, and whether the sender may name what they name.

    {task_id, input, metadata}, or a task's fields ──► TaskBody ──► as a line of `tasks submit` ──► Task ──► tasks
    Task ──► named_code.py ──► CallError(permission_denied), or it may be sent

A tenant's task has the tenant's name before the first dot of its id, its agent and its thread, so that no two tenants
can mean the same. An agent that is registered for all keeps its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator
from starlette.requests import Request

from gateway.http.body import Answer, Body, read_fields, without_nulls
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import LARGE_BODY, REST
from gateway.log.named_code import check_named
from gateway.log.open_log import AT_ONCE, OpenLog
from schemas import serde
from schemas.conversation import Conversation
from schemas.events import Task
from streams.access.tenants.tenant_names import is_of, may_know, named
from streams.engines.prompt_check import unanswerable_prompts
from streams.errors import CallError, EventError
from streams.kafka import times
from streams.observability import trace_context
from streams.output import moment
from streams.scorers.scorer_check import unusable_scorer
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import KnownAgent, known_agents
from streams.stages.tasks.line_steps import LineSteps, Registries, names_of_tenant, no_log
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import check_rows
from streams.stages.tasks.task_index import SubmittedTask
from streams.stages.tasks.task_line import TaskLine

ID_CHARACTERS = 200
TENANTS_OWN = ("task_id", "agent", "thread")
"""Fields that name something of a tenant's own."""


class TaskBody(TaskLine, Body):
    """A task: the fields of a line of `streamward tasks submit`, or `input` in the place of its prompt."""

    input: str | Conversation | None = Field(
        None, description="the question: a text, or messages; without anybody who scores it, it is asked once (serve)"
    )
    policy: str = Field("", description="who answers; default: the policy of the server")
    task_id: str | None = Field(
        None,
        min_length=1,
        max_length=ID_CHARACTERS,
        pattern=r"^[^/\x00-\x20\x7f]+$",  # it is a part of a path
        description="default: derived from what the task says",
    )

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> TaskBody:
        questions = [name for name in ("input", "prompt", "messages") if getattr(self, name) is not None]
        if len(questions) != 1 and (questions or self.prompt_version is None):
            raise ValueError(f"give one of input, prompt and messages, not {' and '.join(questions) or 'none'}")
        return self


class LogNames(NamedTuple):
    """Names of the log that a task may use."""

    agents: Mapping[str, KnownAgent] = MappingProxyType({})
    """Those that are registered."""
    registries: Registries = no_log


NO_NAMES = LogNames()
NO_AGENT = KnownAgent("")


def task_of(
    sent: Mapping[str, Any],
    settings: Settings,
    *,
    tenant: str | None,
    actor: str,
    now_ms: int,
    names: LogNames = NO_NAMES,
) -> Task:
    """Return the task in a TaskBody as the log gets it.

    Raises CallError that says what is wrong with it.
    """
    fields = without_nulls(sent)
    if not fields.get("policy"):
        fields["policy"] = settings.policy.name
    if tenant is not None:
        if fields.get("tenant", tenant) != tenant:
            raise CallError(
                "invalid", f"tenant is {fields['tenant'][:80]!r}, and the key is of {tenant}: leave it out", "tenant"
            )
        fields["tenant"] = tenant
        agents = {name: agent for name, agent in names.agents.items() if may_know(tenant, name)}
        shared = {name for name, agent in agents.items() if may_train(settings, tenant, agent.policy)}
        for name in TENANTS_OWN:
            if name in fields and fields[name] not in (shared if name == "agent" else ()):
                fields[name] = named(tenant, fields[name])
        fields = names_of_tenant(tenant, fields)
    agent = names.agents.get(fields.get("agent", ""), NO_AGENT)
    if (question := fields.pop("input", None)) is not None:
        fields["prompt" if isinstance(question, str) else "messages"] = question
        is_scored = fields.keys() & {"purpose", "answer", "reward_sources"} or agent.reward_sources
        if not is_scored:  # then it cannot train
            fields |= {"purpose": "serve", "group_size": fields.get("group_size", 1)}
    reading = Reading(
        now_ms=now_ms,
        topic_settings=settings.topics,
        defaults={},
        min_group=settings.advantages.min_group,
        offers_map=False,
        caller=actor,
        agents=lambda _: agent,
        steps=LineSteps(names.registries, tenant),
    )
    checked = check_rows([(1, fields)], actor, reading)
    if checked.problems:
        raise CallError("invalid", checked.problems[0].error)
    [task] = checked.tasks
    for _, problem in unanswerable_prompts(settings, [task]):
        raise CallError("invalid", f"model.base {settings.model.base} cannot answer it: {problem}")
    source = {} if "source" in fields.get("metadata", {}) else {"source": actor}
    return replace(task, task_id=named(tenant, task.task_id), metadata={**task.metadata, **source})


class TaskAnswer(Answer):
    """A task that is in the log."""

    object: Literal["task"]
    task_id: str
    policy: str
    purpose: str
    tenant: str | None
    group_size: int
    reward_sources: list[str]
    created_at: str
    recorded_at: str


class SentTasks:
    """The route that tasks are sent to. It waits for the broker."""

    def __init__(self, settings: Settings, log: OpenLog) -> None:
        self._settings, self._log = settings, log

    @REST.post(
        "/tasks",
        may="tasks.submit",  # a scorer or an environment that is executed code takes code.run, too
        takes=TaskBody,
        **LARGE_BODY,
        status=201,
        ids="GET /adapters lists policies",
        at_once=AT_ONCE,
        sends={"task_id": "sum-1", "input": "4 + 7 =", "answer": 11, "metadata": {"topic": "sums"}},
        example=TaskAnswer(
            object="task",
            task_id="sum-1",
            policy="sums",
            purpose="train",
            tenant=None,
            group_size=8,
            reward_sources=["exact"],
            created_at="2026-01-01T00:00:00.000Z",
            recorded_at="streamward.tasks[1]@17",
        ),
        tools={
            "submit_tasks": "Submit tasks, for the policy to answer and scorers to judge; fields as of POST /tasks."
        },
    )
    def submit_task(self, request: Request, raw: bytes) -> TaskAnswer:
        """Write a task. The same task again is the same; another one of its id is refused."""
        sent = read_fields(TaskBody, raw)
        tenant, actor = tenant_of(request), actor_of(request)
        agents = known_agents(self._settings) if sent.get("agent") is not None else {}
        names = LogNames(agents, self._log.states)
        task = task_of(sent, self._settings, tenant=tenant, actor=actor, now_ms=times.now_ms(), names=names)
        if not may_train(self._settings, tenant, task.policy):
            problem = f"there is no policy {task.policy[:80]!r} that {tenant} may train"
            raise CallError("not_found", problem, "policy")
        check_named(request, self._settings.serve, task)
        if reason := unusable_scorer(self._settings.scoring, task.reward_sources):
            raise CallError("invalid", reason, "reward_sources")
        trace = trace_context.parse(request.headers.get("traceparent"))
        try:
            return _answer(self._log.tasks.submit(task, under=trace))
        except (serde.EncodeError, EventError) as exc:
            raise CallError("invalid", str(exc)) from exc


def may_train(settings: Settings, tenant: str | None, policy: str) -> bool:
    """Return whether a tenant may train a policy; None: a sender without a tenant."""
    return policy == settings.policy.name or is_of(tenant, policy)


def _answer(submitted: SubmittedTask) -> TaskAnswer:
    task = submitted.task
    return TaskAnswer(
        object="task",
        task_id=task.task_id,
        policy=task.policy,
        purpose=task.purpose,
        tenant=task.tenant,
        group_size=task.group_size,
        reward_sources=[source.name for source in task.reward_sources],
        created_at=moment(task.created_at),
        recorded_at=str(submitted.at),
    )
