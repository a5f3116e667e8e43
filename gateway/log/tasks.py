"""A task that somebody sends, as the log gets it: whose it is, and whether they may name what it names.

    {task_id, input, metadata}, or a task's fields ──► TaskBody ──► as a line of `tasks submit` ──► Task
    Task ──► what of it runs code, which scorers it names ──► CallError(permission_denied), or it may be sent

A tenant's task has the tenant's name before the first dot of its id, its agent and its thread, so that no two tenants
can mean the same. An agent that is registered for all keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from gateway.http.body import Body
from schemas.events import EpisodeStart, RewardSource, Task
from streams.access.tenants.tenant_names import named
from streams.environments.listed import LISTED
from streams.errors import CallError
from streams.scorers import SCORERS, ScoreError, parts
from streams.settings.model import Serve, Settings
from streams.stages.tasks.lines import MessageLine, Reading, TaskLine, check_rows

ID_CHARACTERS = 200
OF_COMMANDS = re.compile(r" To take it as that: --map \S+=\S+")
"""What a message about an unknown field says to whoever typed a command."""
TENANTS_OWN = ("task_id", "agent", "thread")
"""Fields that name something of a tenant's own."""


class TaskBody(TaskLine, Body):
    """A task: the fields of a line of `streamward tasks submit`, or `input` in the place of its prompt."""

    input: str | tuple[MessageLine, ...] | None = Field(
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
        said = [name for name in ("input", "prompt", "messages") if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(f"give one of input, prompt and messages, not {' and '.join(said) or 'none'}")
        return self


def task_of(
    body: TaskBody, settings: Settings, *, tenant: str | None, actor: str, now_ms: int, agents: Collection[str] = ()
) -> Task:
    """Return the task as the log gets it; `agents` are those that every tenant may name.

    Raises CallError that says what is wrong with it.
    """
    sent = body.model_dump(mode="json", exclude_unset=True)
    given = {name: value for name, value in sent.items() if value is not None}
    if (asked := given.pop("input", None)) is not None:
        given["prompt" if isinstance(asked, str) else "messages"] = asked
        if not given.keys() & {"purpose", "answer", "reward_sources"}:  # nobody scores it, so it cannot train
            given |= {"purpose": "serve", "group_size": given.get("group_size", 1)}
    if not given.get("policy"):
        given["policy"] = settings.policy.name
    if tenant is not None:
        if given.get("tenant", tenant) != tenant:
            raise CallError(
                "invalid", f"tenant is {given['tenant'][:80]!r}, and the key is of {tenant}: leave it out", "tenant"
            )
        given["tenant"] = tenant
        kept = agents if "agent" in given else ()
        given |= {name: named(tenant, given[name]) for name in TENANTS_OWN if name in given and given[name] not in kept}
    checked = check_rows([(1, given)], actor, Reading(now_ms=now_ms, topic_settings=settings.topics, defaults={}))
    if checked.problems:
        raise CallError("invalid", OF_COMMANDS.sub("", checked.problems[0].error))
    [task] = checked.tasks
    return replace(task, task_id=named(tenant, task.task_id), metadata={"source": actor, **(body.metadata or {})})


# --- what it names ----------------------------------------------------------------------------------------------------


def scorers_of(sources: Collection[RewardSource]) -> Iterator[str]:
    """Yield every scorer that reward sources name, those in a mix too. Raises CallError for one that there is not."""
    for source in sources:
        try:
            mixed = parts(source)
        except ScoreError as exc:
            raise CallError("invalid", f"reward_sources: {exc}", "reward_sources") from exc
        yield source.name
        yield from (part.name for part in mixed if part.name != source.name)


def why_not_of_tenant(sources: Collection[RewardSource], rule: Serve) -> str | None:
    """Return why a tenant may not name these reward sources; None if it may."""
    allowed = rule.scorers_of_tenants
    for name in scorers_of(sources):
        if name not in allowed:
            return (
                f"scorer {name[:80]!r} is none that tenants may name; serve.tenant_scorers allows "
                f"{', '.join(allowed) or 'none'}"
            )
    return None


def code_of(sources: Collection[RewardSource], rule: Serve) -> str | None:
    """Return what reward sources name that is executed, in words; None if nothing is.

    A scorer of serve.outside_scorers is run by nobody here.
    """
    found = (name for name in scorers_of(sources) if name not in SCORERS and name not in rule.scorers_outside)
    name = next(found, None)
    return None if name is None else f"scorer {name[:80]!r} is a function that is run"


def code_of_environment(start: EpisodeStart | None) -> str | None:
    """Return why an environment is executed code, in words; None if it is built in, or there is none."""
    if start is None or start.name in LISTED:
        return None
    return f"environment {start.name[:80]!r} is none of those that are built in, and is run"


def shown(task: Task, at: Any) -> dict[str, Any]:
    """Return a task that was taken, as its sender is told."""
    return {
        "object": "task",
        "task_id": task.task_id,
        "policy": task.policy,
        "purpose": task.purpose,
        "tenant": task.tenant,
        "group_size": task.group_size,
        "reward_sources": [source.name for source in task.reward_sources],
        "created_at": task.created_at,
        "recorded_at": str(at),
    }
