"""A policy's versions over HTTP: what there is, and decisions about it.

    adapters, folded ──► policies that the key may see ──► versions, who serves, who is tried
    {version, reason, expected} ──► decisions.decide ──► it took effect, or 409 with what is there

A decision is written and read back as by `streamward adapters promote|reject|rollback`: the log orders what several
decide at once, and of two the second is told so. A tenant decides about policies of its own alone, and of those that
all share it sees no results of other tenants' questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.http.body import Body, PathQuery, Whole
from schemas.events import AdapterEvent, AdapterKind
from streams.access.tenants.tenant_names import SEPARATOR, is_of
from streams.adapters import decisions
from streams.adapters.decisions import AdapterDecision, ProposedDecision
from streams.adapters.versions import AdapterState, empty, fold
from streams.adapters.view import row_of
from streams.errors import CallError, NotFoundError, RefusedError
from streams.kafka.admin import read_topic
from streams.kafka.record import partition_of
from streams.settings.model import Settings

OF_OTHERS = ("held_out", "judged", "tuned_by", "uri")
"""What a tenant is not shown of a version that all share: others' suites and files are in it."""
Number = Annotated[Whole, Field(ge=0, lt=2**31)]
Reason = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S", description="why; it is recorded")]
Primary = Annotated[Number, Field(description="the version that is primary now")]


class PromoteBody(Body):
    """A version that is to be primary."""

    version: Number
    expected: Primary
    reason: Reason


class RejectBody(Body):
    """A version that is not to serve."""

    version: Number
    expected: Primary | None = Field(None, description="only if this version is primary; default: whichever is")
    reason: Reason


class RollbackBody(Body):
    """A return to an older version."""

    version: Number | None = Field(None, description="default: the primary before")
    expected: Annotated[Number, Field(description="the primary that is rolled back")]
    reason: Reason


class AdaptersQuery(PathQuery):
    """Which policies."""

    policy: str | None = Field(None, min_length=1, max_length=200, description="default: all of them")


def states(settings: Settings) -> dict[str, AdapterState]:
    """Return every policy that has adapters, and that of the settings. Raises LogError."""
    partitions = settings.topics.policy_partitions
    found = {settings.policy.name: empty(settings.policy.name)}
    for record in read_topic(settings, "adapters"):
        event = record.decode(AdapterEvent)
        if not isinstance(event, AdapterEvent):
            continue
        if partition_of(event.policy, partitions) == record.at.partition:  # elsewhere nobody looks
            found[event.policy] = fold(found.get(event.policy) or empty(event.policy), event)
    return found


def sees(tenant: str | None, policy: str, shared: str) -> bool:
    """Return whether a tenant may know of a policy; `shared` is the server's own, whatever its name."""
    return policy == shared or SEPARATOR not in policy or is_of(tenant, policy)


def listed(
    every: Mapping[str, AdapterState], tenant: str | None, shared: str, only: str | None = None
) -> dict[str, Any]:
    """Return what a tenant sees of all policies, or of one. Raises NotFoundError for one that it may not know of."""
    seen = {name: state for name, state in every.items() if sees(tenant, name, shared)}
    if only is not None:
        if only not in seen:
            raise NotFoundError(none_of(only))
        seen = {only: seen[only]}
    return {"object": "list", "data": [_policy(seen[name], tenant) for name in sorted(seen)]}


def decide(
    settings: Settings, policy: str, kind: AdapterKind, body: PromoteBody | RejectBody | RollbackBody, actor: str
) -> dict[str, Any]:
    """Write a decision, and return what it made of the policy. Raises CallError(conflict) with what is there instead,
    NotFoundError for an unknown policy or version, LogError."""
    history = decisions.read_history(settings, policy)
    if len(history.state.versions) == 1 and policy not in states(settings):
        raise NotFoundError(none_of(policy))
    try:
        version = body.version
        if version is None:
            version = decisions.rollback_target(history, body.expected or 0, actor=actor, reason=body.reason)
        proposed = ProposedDecision(kind=kind, version=version, actor=actor, reason=body.reason, expect=body.expected)
        made = decisions.decide(settings, history, proposed)
    except RefusedError as exc:
        now = decisions.read_history(settings, policy).state
        raise CallError("conflict", str(exc), "expected", found={"serving": _serving(now)}) from exc
    return _decision(made)


def none_of(policy: str) -> str:
    return f"there is no policy {policy[:80]!r}; GET /adapters lists those that there are"


def _policy(state: AdapterState, tenant: str | None) -> dict[str, Any]:
    rows = [row_of(state, number) for number in sorted(state.versions)]
    if not is_of(tenant, state.policy):
        rows = [{name: value for name, value in row.items() if name not in OF_OTHERS} for row in rows]
    return {"object": "adapters", "policy": state.policy, "serving": _serving(state), "versions": rows}


def _serving(state: AdapterState) -> dict[str, Any]:
    serving = state.serving
    return {
        "primary": state.primary,
        "candidate": serving.candidate,
        "share": serving.share,
        "newest": state.newest,
        "primaries": list(state.primaries),
    }


def _decision(made: AdapterDecision) -> dict[str, Any]:
    event = made.event
    return {
        "object": "adapter_decision",
        "policy": event.policy,
        "version": event.version,
        "kind": event.kind,
        "actor": event.actor,
        "reason": event.reason,
        "before": made.before,
        "serving": _serving(made.state),
        "recorded_at": str(made.at),
    }
