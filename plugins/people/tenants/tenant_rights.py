"""The rights at the broker of a tenant with its own log, and how the broker's ACLs differ from them.

    topics.prefix, tenant, principals ──► rights_of ──► AclRight of each
    what is recorded, what the broker has ──► compared ──► a TenantState of each tenant: missing, more, reached by

A tenant reads, writes and creates its topics, and commits for its groups. It cannot delete or alter topics, and has no
rights on the cluster, so it cannot grant any.

Not covered: super users of the broker, which it does not list, and a broker with allow.everyone.if.no.acl.found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from plugins.people.tenants.acls import AclRight
from streams.access.tenants import tenant_names as tenants
from streams.errors import SettingsError

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "topic": ("CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE"),
    "group": ("READ",),
    "transactional-id": ("WRITE",),
}
"""By what they are about. READ and WRITE bring DESCRIBE."""
EVERYONE = "User:*"
MOST_PRINCIPAL = 200
_PRINCIPAL = re.compile(r"User:\S(?:.*\S)?")


class TenantState(NamedTuple):
    """One tenant: what is recorded, and what the broker enforces."""

    tenant: str
    prefix: str
    principals: tuple[str, ...]
    """As recorded; none: it is not recorded."""
    missing: tuple[AclRight, ...]
    """Recorded, and not on the broker."""
    unrecorded: tuple[AclRight, ...]
    """On the tenant's names alone, of principals that are not recorded for it; or of all."""
    beyond: tuple[AclRight, ...]
    """Of its principals, and not among what a tenant gets."""
    denied: tuple[AclRight, ...]
    """Denials for its principals, or for all, on its names."""
    reached_by: tuple[str, ...]
    """Other principals with rights on more than this tenant: the operator's."""

    @property
    def differences(self) -> list[str]:
        """The differences from the record, in words."""
        return [
            *(f"{describe(right)} is missing" for right in self.missing),
            *(f"{describe(right)} is not recorded" for right in self.unrecorded),
            *(f"{describe(right)} is more than a tenant gets" for right in self.beyond),
            *(describe(right) for right in self.denied),
        ]

    @property
    def status(self) -> str:
        """Its status in a table."""
        if not self.principals:
            return "not recorded"
        return "differs" if self.differences else "enforced"


def checked_principal(principal: str) -> str:
    """Return a principal as the broker calls it. Raises SettingsError."""
    is_plain = _PRINCIPAL.fullmatch(principal) and not any(unicodedata.category(sign) == "Cc" for sign in principal)
    if not is_plain or len(principal) > MOST_PRINCIPAL:
        raise SettingsError(
            f"--principal {principal[:80]!r}: expected User: and the name of a login to Kafka, e.g. "
            "User:acme, or User:CN=acme,O=Acme for a certificate"
        )
    if principal == EVERYONE:
        raise SettingsError(f"--principal {EVERYONE} is everyone; name one principal, e.g. User:acme")
    return principal


def rights_of(prefix: str, principals: Iterable[str]) -> list[AclRight]:
    """Return what principals get on the names that begin with a tenant's `prefix`."""
    return [
        AclRight(principal, kind, prefix, True, operation)
        for principal in principals
        for kind, operations in OPERATIONS.items()
        for operation in operations
    ]


def compare(
    topics_prefix: str, recorded: Mapping[str, tuple[str, ...]], rights_found: Iterable[AclRight]
) -> list[TenantState]:
    """Return every tenant that is recorded, or has rights on the broker; `recorded`: the principals of each."""
    rights = sorted(rights_found)
    unrecorded = {name for right in rights if (name := _tenant_of(topics_prefix, right)) is not None}
    return [
        _state(tenant, tenants.own_prefix(topics_prefix, tenant), recorded.get(tenant, ()), rights)
        for tenant in sorted({*unrecorded, *(name for name, principals in recorded.items() if principals)})
    ]


def _state(tenant: str, prefix: str, principals: tuple[str, ...], rights: list[AclRight]) -> TenantState:
    expected = set(rights_of(prefix, principals))
    foreign_rights = [
        right for right in rights if right.principal not in principals and not right.denies and reaches(right, prefix)
    ]
    own_rights = [right for right in rights if right.principal in principals]
    return TenantState(
        tenant=tenant,
        prefix=prefix,
        principals=principals,
        missing=tuple(sorted(expected.difference(rights))),
        unrecorded=tuple(
            right for right in foreign_rights if right.name.startswith(prefix) or right.principal == EVERYONE
        ),
        beyond=tuple(right for right in own_rights if not right.denies and right not in expected),
        denied=tuple(
            right
            for right in rights
            if right.denies and right.principal in (*principals, EVERYONE) and reaches(right, prefix)
        ),
        reached_by=tuple(
            sorted({right.principal for right in foreign_rights if not right.name.startswith(prefix)} - {EVERYONE})
        ),
    )


def reaches(right: AclRight, prefix: str) -> bool:
    """Return whether a right is about any name that begins with `prefix`.

    >>> reaches(AclRight("User:a", "topic", "red.", True, "READ"), "red."), reaches(
    ...     AclRight("User:a", "topic", "red", False, "READ"), "red."
    ... )
    (True, False)
    """
    if right.kind not in OPERATIONS:
        return False
    if right.is_prefix:
        return right.name.startswith(prefix) or prefix.startswith(right.name)
    return right.name == "*" or right.name.startswith(prefix)


def describe(right: AclRight) -> str:
    """Return a right in words."""
    names = f"{right.name}*" if right.is_prefix else right.name
    host = "" if right.host == "*" else f" from {right.host}"
    return f"{right.operation} on {right.kind} {names} {'denied to' if right.denies else 'for'} {right.principal}{host}"


def _tenant_of(topics_prefix: str, right: AclRight) -> str | None:
    """Return the tenant that owns all names of a right on topics, if there is one."""
    rest_of_name = right.name.removeprefix(topics_prefix)
    if right.denies or not right.is_prefix or right.kind != "topic" or rest_of_name == right.name:
        return None
    tenant, dot, rest = rest_of_name.partition(tenants.SEPARATOR)
    return tenant if dot and not rest and tenants.why_no_log(tenant) is None else None
