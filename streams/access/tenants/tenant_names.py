"""Names of tenants, and of objects that belong to one.

    red, calc ──► red.calc        an agent, a trajectory or a policy as the log has it

A tenant's name has no dot, so the part before the first dot is the owner of a name, and names of two tenants never
collide.

If it has its own log, the names of its topics, groups and transactional ids begin with the same name and dot:

    streamward., red ──► streamward.red.tasks, streamward.red.streams …      divided by the broker (tenant_rights.py)

Not covered: a key without a tenant may act for every tenant, and does so by giving a name with a dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from streams.errors import SettingsError
from streams.kafka.group_names import BEGINNINGS
from streams.plugins.installed import load_plugins

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SEPARATOR = "."
EXPERIMENT = "experiment"
"""The logs of experiments begin with topics.prefix and this (streams/tools/replay/experiments.py)."""


def why_no_name(tenant: str) -> str | None:
    """Return why a tenant cannot be called so; None if it can."""
    if NAME.fullmatch(tenant) is None:
        allowed = "1 to 63 of A-Z, a-z, 0-9, - and _, the first of them neither - nor _"
        return f"{tenant[:80]!r} is no name of a tenant; expected {allowed}"
    return None


def why_no_log(tenant: str) -> str | None:
    """Return why a tenant of this name can have no log of its own; None if it can.

    Every name that begins with the tenant's and a dot has to be the tenant's alone.
    """
    if (problem := why_no_name(tenant)) is not None:
        return problem
    if "_" in tenant:
        return (
            f"{tenant!r} has an underscore, and Kafka refuses a topic that differs from another by a dot for an "
            "underscore: tenants could keep each other from creating theirs. Use a dash"
        )
    if tenant == EXPERIMENT:
        return f"{tenant!r} is where the logs of experiments begin; use another name"
    if (begins := next((group for group in group_beginnings() if tenant.startswith(group)), None)) is not None:
        return f"{tenant!r} begins with {begins!r}, as consumer groups of this deployment do; use another name"
    return None


def group_beginnings() -> tuple[str, ...]:
    """Return what names of consumer groups begin with, of the core and of the loaded plugins."""
    return (*BEGINNINGS, *(group for plugin, _, _ in load_plugins() for group in plugin.groups))


def own_prefix(topics_prefix: str, tenant: str) -> str:
    """Return what the names of a tenant's topics, groups and transactional ids begin with.

    It ends with a dot, and no tenant's name has one, so none is the beginning of another: acme. and acme2. differ.
    Raises SettingsError for a name that can have no log, or a topics.prefix that does not end with a dot.
    """
    if not topics_prefix.endswith(SEPARATOR):
        raise SettingsError(
            f"topics.prefix is {topics_prefix!r}, and tenants with logs of their own need one that ends with a dot, as "
            "'streamward.': otherwise their topics could be another deployment's"
        )
    if (problem := why_no_log(tenant)) is not None:
        raise SettingsError(problem)
    return f"{topics_prefix}{tenant}{SEPARATOR}"


def named(tenant: str | None, name: str) -> str:
    """Return what a tenant's `name` is called in the log; a name that is the tenant's already stays as it is.

    >>> named("red", "calc"), named("red", "red.calc"), named("red", "blue.calc"), named(None, "calc")
    ('red.calc', 'red.calc', 'red.blue.calc', 'calc')
    """
    return name if tenant is None or is_of(tenant, name) else f"{tenant}{SEPARATOR}{name}"


def without_tenant(tenant: str | None, name: str) -> str:
    """Return what a tenant itself calls something of this name in the log; what is not its own stays as it is.

    >>> without_tenant("red", "red.calc"), without_tenant("red", "calc"), without_tenant(None, "red.calc")
    ('calc', 'calc', 'red.calc')
    """
    return name if tenant is None else name.removeprefix(tenant + SEPARATOR)


def is_of(tenant: str | None, name: str) -> bool:
    """Return whether something of this name is the tenant's; without a tenant everything is."""
    return tenant is None or name.startswith(tenant + SEPARATOR)


def may_know(tenant: str | None, name: str) -> bool:
    """Return whether something of this name is the tenant's, or no tenant's: policies and agents that all share."""
    return SEPARATOR not in name or is_of(tenant, name)


def own_of(tenant: str | None, by_name: Mapping[str, T]) -> dict[str, T]:
    """Return the tenant's own entries, by name in the log: all that a lookup for a request may see."""
    return {name: value for name, value in by_name.items() if is_of(tenant, name)}


def tenant_in(name: str | None) -> str | None:
    """Return the tenant that a name in the log begins with; None if it begins with none.

    >>> tenant_in("red.calc"), tenant_in("calc")
    ('red', None)
    """
    tenant, separator, _ = (name or "").partition(SEPARATOR)
    return tenant if separator else None
