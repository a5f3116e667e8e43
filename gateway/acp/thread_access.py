"""Names of threads and namespaces in the log, and which of them a request may know of.

    tenant red: thread 1f0c… ──► red.1f0c…        namespace ["people"] ──► red.people
    key of agent calc: its own threads            namespaces that begin with ["calc"]

What a key may not know of does not exist for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from starlette.requests import Request

from gateway.http.principal import principal_of, tenant_of
from streams.access.tenants.tenant_names import SEPARATOR, is_of, named
from streams.errors import CallError
from streams.knowledge.memory_state import Labels
from streams.knowledge.thread_state import ThreadState


def read_uuid(name: str, parameter: str) -> str:
    """Return an id as the log has it. Raises CallError for one that is no UUID."""
    try:
        return str(uuid.UUID(name))
    except ValueError as exc:
        raise CallError("invalid", f"{parameter} is {name[:80]!r}; expected a UUID", parameter) from exc


def thread_name(request: Request, thread_id: str) -> str:
    """Return what the log calls a thread. Raises CallError for an id that is no UUID."""
    return named(tenant_of(request), read_uuid(thread_id, "thread_id"))


def id_of(thread_name: str) -> str:
    """Return the id of a thread, without its tenant."""
    return thread_name.rpartition(SEPARATOR)[2]


def own_agent(request: Request) -> str | None:
    """Return the only agent that a key may be, by its name in the log; None: any."""
    principal = principal_of(request)
    if principal is None or principal.agent_id is None:
        return None
    return named(principal.tenant, principal.agent_id)


def sees_thread(request: Request, state: ThreadState) -> bool:
    """Return whether a request may know of a thread."""
    agent = own_agent(request)
    return is_of(tenant_of(request), state.thread_id) and agent in (None, state.agent_id)


def check_thread(request: Request, state: ThreadState | None, thread_id: str) -> ThreadState:
    """Return a thread that a request may know of. Raises CallError."""
    if state is None or state.stateless or not sees_thread(request, state):
        raise CallError("not_found", f"there is no thread {thread_id[:80]}", "thread_id")
    return state


def logged_namespace(request: Request, labels: Sequence[str]) -> Labels:
    """Return what the log calls a namespace, or the beginning of some.

    Raises CallError for labels that cannot be some, or that a key of an agent may not use.
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
    tenant = tenant_of(request)
    return tuple(labels) if tenant is None else (tenant, *labels)


def own_labels(request: Request, namespace: Labels) -> list[str]:
    """Return a namespace of the log as the caller names it."""
    return list(namespace if tenant_of(request) is None else namespace[1:])
