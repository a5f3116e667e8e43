"""Tenants with their own log, and the principals of each, folded from `access`.

    created, changed, removed ──► AccessEvent ──► access ──► folded ──► TenantLog of each

Each change has the number after the last one that its writer knew; of two with the same number, the first counts. A
removed tenant has no principals, and may get some again. Invalid names are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from schemas.events import AccessEvent, AccessKind, derive_id
from streams.access.tenants.tenant_names import why_no_log


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLog:
    """A tenant with a log of its own."""

    tenant: str
    principals: tuple[str, ...]
    """Principals with rights on its topics, as the broker calls them; none once it was removed."""
    created_at: int
    changed_at: int
    sequence: int = 0
    """Of the last change."""


def change_event(
    before: TenantLog | None, tenant: str, principals: Iterable[str], *, actor: str, reason: str, now_ms: int
) -> AccessEvent:
    """Return the event after which a tenant has these principals; none of them: it is removed."""
    after, number = tuple(principals), 0 if before is None else before.sequence + 1
    kind: AccessKind = "tenant_created" if before is None else "tenant_changed" if after else "tenant_removed"
    return AccessEvent(
        event_id=derive_id(tenant, kind, number),
        subject_id=tenant,
        created_at=now_ms,
        kind=kind,
        actor=actor,
        reason=reason,
        sequence=number,
        principals=after,
    )


def fold(before: TenantLog | None, event: AccessEvent) -> TenantLog | None:
    """Return a tenant after one more event about it; one out of turn changes nothing."""
    if event.sequence is None or (before is None) != (event.kind == "tenant_created"):
        return before
    if before is None:
        if why_no_log(event.subject_id) is not None:
            return None
        return TenantLog(
            tenant=event.subject_id,
            principals=event.principals,
            created_at=event.created_at,
            changed_at=event.created_at,
        )
    if event.sequence != before.sequence + 1:
        return before
    return replace(before, principals=event.principals, changed_at=event.created_at, sequence=event.sequence)
