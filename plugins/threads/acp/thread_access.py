"""Names of threads and namespaces in the log, and which of them a request may see.

    tenant red: thread 1f0c… ──► red.1f0c…        namespace ["people"] ──► red.people
    key of agent calc: its own threads            namespaces that begin with ["calc"]

What a key may not see is "not found" for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from starlette.requests import Request

from gateway.http.principal import principal_of, tenant_of
from plugins.threads.log.memory_state import Labels, namespace_of
from plugins.threads.log.thread_state import ThreadState
from streams.access.tenants.tenant_names import SEPARATOR, is_of, named
from streams.errors import CallError


def read_uuid(name: str, parameter: str) -> str:
    """Return an id in the log's form. Raises CallError unless it is a UUID."""
    try:
        return str(uuid.UUID(name))
    except ValueError as exc:
        raise CallError("invalid", f"{parameter} is {name[:80]!r}; expected a UUID", parameter) from exc


def thread_name(request: Request, thread_id: str) -> str:
    """Return the name of a thread in the log. Raises CallError for an id that is not a UUID."""
    return named(tenant_of(request), read_uuid(thread_id, "thread_id"))


def id_of(thread_name: str) -> str:
    """Return the id of a thread, without its tenant."""
    return thread_name.rpartition(SEPARATOR)[2]


def own_agent(request: Request) -> str | None:
    """Return the agent that a key is bound to, by its name in the log; None: any."""
    principal = principal_of(request)
    if principal is None or principal.agent_id is None:
        return None
    return named(principal.tenant, principal.agent_id)


def sees_thread(request: Request, state: ThreadState) -> bool:
    """Return whether a request may see a thread."""
    agent = own_agent(request)
    return is_of(tenant_of(request), state.thread_id) and agent in (None, state.agent_id)


def check_thread(request: Request, state: ThreadState | None, thread_id: str) -> ThreadState:
    """Return a thread that a request may see. Raises CallError."""
    if state is None or state.stateless or not sees_thread(request, state):
        raise CallError("not_found", f"there is no thread {thread_id[:80]}", "thread_id")
    return state


def logged_namespace(request: Request, labels: Sequence[str]) -> Labels:
    """Return the name of a namespace in the log, or a prefix of several.

    Raises CallError for invalid labels, or ones that an agent's key may not use.
    """
    for number, label in enumerate(labels):
        if SEPARATOR in label or not label:
            problem = f"namespace[{number}] is {label[:80]!r}; expected a name that is not empty and has no dot"
            raise CallError("invalid", problem, "namespace")
    principal = principal_of(request)
    agent = None if principal is None else principal.agent_id
    if agent is not None and (not labels or labels[0] != agent):
        problem = f"this key is of agent {agent}, and its namespaces begin with [{agent!r}]"
        raise CallError("permission_denied", problem, "namespace")
    return namespace_of(tenant_of(request), labels)


def own_labels(request: Request, namespace: Labels) -> list[str]:
    """Return a namespace of the log as the caller names it."""
    return list(namespace if tenant_of(request) is None else namespace[1:])
