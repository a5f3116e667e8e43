"""Whose a request is: the key that opened the door, as routes see it.

    door.py ──► the request's scope ──► key_of ──► tenant_of: whose jobs and files; sees: whose conversations

A server that asks for no keys has no key here, and whoever calls sees everything, as does a key without a tenant.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import Scope

from streams.access.keys import AccessKey
from streams.access.tenants import SEPARATOR, is_of, named

KEY = "streamward.key"
"""Where the key is in a scope of ASGI."""
NO_KEY = "api"
"""Who did it, where nobody is asked for a key."""


def opened_by(scope: Scope, key: AccessKey) -> None:
    """Note which key a request has."""
    scope[KEY] = key


def key_of(request: HTTPConnection) -> AccessKey | None:
    """Return the key of a request; None if the server asks for none."""
    key: AccessKey | None = request.scope.get(KEY)
    return key


def tenant_of(request: HTTPConnection) -> str | None:
    """Return whose jobs and files a request is about; None: everyone's."""
    key = key_of(request)
    return None if key is None else key.tenant


def actor_of(request: HTTPConnection) -> str:
    """Return who is named in the events that a request writes."""
    key = key_of(request)
    return NO_KEY if key is None else f"key {key.key_id}"


def may_ask(request: HTTPConnection, model: str, shared: str) -> bool:
    """Return whether a request may know of a model: what a tenant's name begins is that tenant's.

    `shared` is the policy of the server, which is everyone's even if its name has a dot.
    """
    policy = model.partition("@")[0]
    return policy == shared or SEPARATOR not in policy or is_of(tenant_of(request), policy)


def sees(key: AccessKey | None, agent_id: str) -> bool:
    """Return whether a key may know of what an agent, by its name in the log, was asked and answered."""
    if key is None:
        return True
    if key.agent_id is not None and agent_id != named(key.tenant, key.agent_id):
        return False
    return is_of(key.tenant, agent_id)
