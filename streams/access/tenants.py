"""Names of tenants, and of what is a tenant's own.

    red, calc ──► red.calc        an agent, a trajectory or a policy as the log has it

A tenant's name has no dot, so what stands before the first dot says whose a name is, and no two tenants can mean the
same one.

Not covered: a name with a dot that a key without a tenant gives: it may act for every tenant, and does so thereby.
"""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SEPARATOR = "."


def why_no_name(tenant: str) -> str | None:
    """Return why a tenant cannot be called so; None if it can."""
    if NAME.fullmatch(tenant) is None:
        allowed = "1 to 63 of A-Z, a-z, 0-9, - and _, the first of them neither - nor _"
        return f"{tenant[:80]!r} is no name of a tenant; expected {allowed}"
    return None


def named(tenant: str | None, name: str) -> str:
    """Return what a tenant's `name` is called in the log; a name that is the tenant's already stays as it is.

    >>> named("red", "calc"), named("red", "red.calc"), named("red", "blue.calc"), named(None, "calc")
    ('red.calc', 'red.calc', 'red.blue.calc', 'calc')
    """
    return name if tenant is None or is_of(tenant, name) else f"{tenant}{SEPARATOR}{name}"


def is_of(tenant: str | None, name: str) -> bool:
    """Return whether something of this name is the tenant's; without a tenant everything is."""
    return tenant is None or name.startswith(tenant + SEPARATOR)
