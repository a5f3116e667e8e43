"""The principal of a request: the API key or the logged-in user, as routes see it.

    door.py ──► the request's scope ──► principal_of ──► tenant_of: of jobs and files; sees: of conversations

A server without keys has no principals: every caller sees everything, as does a key without a tenant.
"""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from streams.access.roles import Action, Decision, Principal, decide
from streams.access.tenants.tenant_names import is_of, may_know, named

PRINCIPAL = "streamward.principal"
"""Where it is in a scope of ASGI."""
WITHOUT_KEYS = "api"
"""The actor of events on a server without keys."""
ACTOR = "streamward.actor"
"""In a scope: the actor, of a request without a principal."""
DEFAULT_AGENT = "default"
"""The agent of a call that names none."""
OF_ALL_TENANTS: frozenset[Action] = frozenset({"runs.write", "agents.write", "log.query", "code.run"})
"""Actions on data that tenants share, or that all of them wrote."""
AS_AN_AGENT: frozenset[Action] = frozenset({"chat.call", "feedback.give", "runs.write"})
"""Actions of an agent; default: DEFAULT_AGENT."""
AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""Valid names of agents and trajectories: they are in keys of the log, in paths and in file names."""


def set_principal(scope: Scope, principal: Principal) -> None:
    """Store the principal of a request for its routes."""
    scope[PRINCIPAL] = principal


def request_of_user(name: str) -> Request:
    """Return a request of a user of this machine's command line, who sees and may do everything."""
    return Request({"type": "http", "headers": [], ACTOR: name})


def request_of(principal: Principal | None) -> Request:
    """Return a request of a principal, for what the server does on its behalf; None: the server asks for no keys."""
    return Request({"type": "http", "headers": [], **({} if principal is None else {PRINCIPAL: principal})})


def principal_of(request: HTTPConnection) -> Principal | None:
    """Return the principal of a request; None if the server asks for no keys."""
    principal: Principal | None = request.scope.get(PRINCIPAL)
    return principal


def tenant_of(request: HTTPConnection) -> str | None:
    """Return the tenant of a request; None: of all tenants."""
    principal = principal_of(request)
    return None if principal is None else principal.tenant


def actor_of(request: HTTPConnection) -> str:
    """Return the actor of the events that a request writes."""
    principal = principal_of(request)
    return str(request.scope.get(ACTOR, WITHOUT_KEYS)) if principal is None else principal.who


def decide_at_door(principal: Principal, action: Action, named_agent: str | None) -> Decision:
    """Return whether a principal may do something as the agent that path or header name, if any, and why."""
    agent_id = named_agent or (DEFAULT_AGENT if action in AS_AN_AGENT else None)
    decision = decide(principal, action, agent_id=agent_id)
    if decision.allowed and principal.tenant is not None and action in OF_ALL_TENANTS:
        scope = f"{action} is for keys and people without one: it is about all of them"
        return Decision(False, f"{principal.who} is of a tenant, and {scope}")
    return decision


def may_ask(request: HTTPConnection, model: str, shared: str) -> bool:
    """Return whether a request may see a model: one that begins with a tenant's name is that tenant's.

    `shared` is the policy of the server, visible to all even if its name has a dot.
    """
    policy = model.partition("@")[0]
    return policy == shared or may_know(tenant_of(request), policy)


def sees(principal: Principal | None, agent_id: str) -> bool:
    """Return whether a principal may see the conversations of an agent, by its name in the log."""
    if principal is None:
        return True
    if principal.agent_id is not None and agent_id != named(principal.tenant, principal.agent_id):
        return False
    return is_of(principal.tenant, agent_id)


def sees_task(principal: Principal | None, tenant: str | None, agent: str | None) -> bool:
    """Return whether a principal may see a task of this tenant, which this agent works on."""
    if principal is None:
        return True
    if principal.tenant is not None and tenant != principal.tenant:
        return False
    return principal.agent_id is None or agent == named(principal.tenant, principal.agent_id)


def task_names(principal: Principal | None, task_id: str) -> list[str]:
    """Return the possible names of a task in the log: with the tenant's name before it, and without."""
    tenant = None if principal is None else principal.tenant
    return list(dict.fromkeys((named(tenant, task_id), task_id)))


TASKS_LISTED = 'POST /query with {"sql": "SELECT task_id FROM tasks"} lists tasks'
"""Where the ids of tasks are found."""


def no_task(task_id: str) -> str:
    """Return the message about a task that does not exist, or belongs to another tenant."""
    return f"there is no task {task_id[:80]!r}"
