"""Whose a request is: the key or the person that the door let in, as routes see it.

    door.py ──► the request's scope ──► principal_of ──► tenant_of: whose jobs and files; sees: whose conversations

A server that asks for no keys has nobody here, and whoever calls sees everything, as does a key without a tenant.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import Scope

from streams.access.roles import Principal
from streams.access.tenants.tenant_names import SEPARATOR, is_of, named

PRINCIPAL = "streamward.principal"
"""Where it is in a scope of ASGI."""
NOBODY_ASKED = "api"
"""Who did it, where nobody is asked for a key."""


def opened_by(scope: Scope, principal: Principal) -> None:
    """Note whose a request is."""
    scope[PRINCIPAL] = principal


def principal_of(request: HTTPConnection) -> Principal | None:
    """Return the key or the person of a request; None if the server asks for none."""
    found: Principal | None = request.scope.get(PRINCIPAL)
    return found


def tenant_of(request: HTTPConnection) -> str | None:
    """Return whose jobs and files a request is about; None: everyone's."""
    found = principal_of(request)
    return None if found is None else found.tenant


def actor_of(request: HTTPConnection) -> str:
    """Return who is named in the events that a request writes."""
    found = principal_of(request)
    return NOBODY_ASKED if found is None else found.who


def may_ask(request: HTTPConnection, model: str, shared: str) -> bool:
    """Return whether a request may know of a model: what a tenant's name begins is that tenant's.

    `shared` is the policy of the server, which is everyone's even if its name has a dot.
    """
    policy = model.partition("@")[0]
    return policy == shared or SEPARATOR not in policy or is_of(tenant_of(request), policy)


def sees(asks: Principal | None, agent_id: str) -> bool:
    """Return whether somebody may know of what an agent, by its name in the log, was asked and answered."""
    if asks is None:
        return True
    if asks.agent_id is not None and agent_id != named(asks.tenant, asks.agent_id):
        return False
    return is_of(asks.tenant, agent_id)


def sees_task(asks: Principal | None, tenant: str | None, agent: str | None) -> bool:
    """Return whether somebody may know of a task of this tenant, which this agent works on."""
    if asks is None:
        return True
    if asks.tenant is not None and tenant != asks.tenant:
        return False
    return asks.agent_id is None or agent == named(asks.tenant, asks.agent_id)


def task_names(asks: Principal | None, task_id: str) -> list[str]:
    """Return what a task of this id may be called in the log, with the tenant's name before it and without."""
    tenant = None if asks is None else asks.tenant
    return list(dict.fromkeys((named(tenant, task_id), task_id)))


def no_task(task_id: str) -> str:
    """Return what is said of a task that there is not, or that somebody else has."""
    return f"there is no task {task_id[:80]!r}"
