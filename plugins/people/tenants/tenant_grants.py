"""Give a tenant its own log, and revoke its rights on it.

    create ──► tenant_created, tenant_changed ──► access, then rights ──► the broker
    remove ──► rights taken from the broker, then tenant_changed, tenant_removed ──► access

The broker never allows more than is recorded: a right is recorded before it is granted, and revoked before the
revocation is recorded. After an interruption the same command finishes. Topics and records are not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plugins.people.access import tenant_logs
from plugins.people.access.access_log import AccessLog
from plugins.people.access.tenant_logs import TenantLog
from plugins.people.tenants import acls, tenant_rights
from plugins.people.tenants.acls import AclRight
from plugins.people.tenants.tenant_rights import TenantState
from streams.access.tenants import tenant_names as tenants
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.settings.model import Settings


class GrantPlan(NamedTuple):
    """The changes of a command."""

    tenant: str
    recorded: TenantLog | None
    """The record that the plan is based on."""
    principals: tuple[str, ...]
    """The recorded principals afterwards."""
    gives: tuple[AclRight, ...]
    keeps: tuple[AclRight, ...]
    """Rights that are there already."""
    takes: tuple[AclRight, ...]
    left: tuple[AclRight, ...]
    """Other rights of the principals that lose these."""


def states(log: AccessLog, settings: Settings) -> list[TenantState]:
    """Return every tenant with a log of its own, as recorded and as the broker has it.

    Raises SettingsError, RefusedError, LogError as `acls.every_right`.
    """
    recorded = {name: tenant_log.principals for name, tenant_log in log.tenant_logs.items()}
    return tenant_rights.compare(settings.topics.prefix, recorded, acls.every_right(settings))


def plan_to_create(log: AccessLog, settings: Settings, tenant: str, principals: Iterable[str]) -> GrantPlan:
    """Return what gives more principals a tenant's log.

    Raises SettingsError for what can be no tenant or principal, RefusedError if one is another tenant's; and as
    `acls.every_right`.
    """
    prefix = tenants.own_prefix(settings.topics.prefix, tenant)
    added = [tenant_rights.checked_principal(name) for name in principals]
    for name in added:
        other = next(
            (tenant_log.tenant for tenant_log in log.tenant_logs.values() if name in tenant_log.principals), tenant
        )
        if other != tenant:
            raise RefusedError(
                f"{name} is a principal of tenant {other}, and would reach what both have. Give tenant {tenant} "
                f"another, or first `streamward admin access tenants remove {other} --principal {name}`"
            )
    current = log.tenant_logs.get(tenant)
    after = tuple(dict.fromkeys((*(() if current is None else current.principals), *added)))
    existing, rights = acls.every_right(settings), tenant_rights.rights_of(prefix, after)
    return GrantPlan(
        tenant=tenant,
        recorded=current,
        principals=after,
        gives=tuple(right for right in rights if right not in existing),
        keeps=tuple(right for right in rights if right in existing),
        takes=(),
        left=(),
    )


def plan_to_remove(log: AccessLog, settings: Settings, tenant: str, principals: Sequence[str] = ()) -> GrantPlan:
    """Return the plan to revoke a tenant's log from these principals, or from all, recorded or not.

    Raises NotFoundError if there is nothing to revoke; and as `plan_to_create`.
    """
    prefix = tenants.own_prefix(settings.topics.prefix, tenant)
    going = {tenant_rights.checked_principal(name) for name in principals}
    existing = sorted(acls.every_right(settings))
    takes = [
        right
        for right in existing
        if right.is_prefix and right.name == prefix and not right.denies and (not going or right.principal in going)
    ]
    current = log.tenant_logs.get(tenant)
    before = () if current is None else current.principals
    after = tuple(name for name in before if going and name not in going)
    if after == before and not takes:
        missing = f"no principal {', '.join(sorted(going))}" if going else "no principals, here or at the broker"
        raise NotFoundError(f"tenant {tenant} has {missing}; `streamward admin access tenants list` shows all")
    losing = {right.principal for right in takes} | (set(before) - set(after))
    return GrantPlan(
        tenant=tenant,
        recorded=current,
        principals=after,
        gives=(),
        keeps=(),
        takes=tuple(takes),
        left=tuple(
            right for right in existing if right.principal in losing and right not in takes and not right.denies
        ),
    )


def carry_out(log: AccessLog, settings: Settings, plan: GrantPlan, *, actor: str, reason: str) -> None:
    """Do what a plan says. Raises RefusedError if the tenant was changed meanwhile; and as `acls.every_right`."""
    _check_unchanged(log, plan.tenant, plan.recorded)
    acls.take(settings, plan.takes)
    if plan.principals != (() if plan.recorded is None else plan.recorded.principals):
        event = tenant_logs.change_event(
            plan.recorded, plan.tenant, plan.principals, actor=actor, reason=reason, now_ms=times.now_ms()
        )
        log.write(event)
        _check_unchanged(log, plan.tenant, tenant_logs.fold(plan.recorded, event))
    acls.give(settings, plan.gives)


def _check_unchanged(log: AccessLog, tenant: str, expected: TenantLog | None) -> None:
    if log.tenant_logs.get(tenant) != expected:
        raise RefusedError(f"tenant {tenant} was changed by another writer at the same time; look at it, and try again")
