"""What of the log a visitor may see: everything, everything but who asks, or what is one tenant's.

    key or person ──► LogRights ──► a statement of a page ──► the same, over the rows that are theirs

A tenant's rows are those of its tasks, of agents and policies whose names begin with its own, and of jobs that it
ordered. A statement gets them because each name that it reads is defined in front of it; `whole.NAME` is for what only
says more of rows that are the visitor's already, such as the batch that a group went into.

A task is the tenant's if the first record with its id is: another one with the same id shows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from streams.access.roles import Action, Decision, Principal, decide
from streams.access.tenants.tenant_names import SEPARATOR
from streams.tools.query.views import literal

OF_ACCESS = ("access", "requests")
"""Topics about who may what, and who asked what: with hashes of passwords. They are an admin's."""
KEYED_BY_POLICY = ("adapters", "batches", "groups")
OF_ALL_TENANTS: frozenset[Action] = frozenset({"letters.decide"})
"""What nobody of a tenant does: a dead letter names its record, and not for certain whose it was."""


@dataclass(frozen=True)
class LogRights:
    """What one visitor may see."""

    tenant: str | None = None
    """None: everything of everybody."""
    access: bool = True
    """Whether topics about who may what are among it."""

    @classmethod
    def of(cls, asks: Principal | None) -> LogRights:
        """Return what somebody may see; None: the server asks nobody who they are."""
        if asks is None:
            return cls()
        return cls(asks.tenant, asks.tenant is None and "admin" in asks.roles)

    @property
    def hidden(self) -> Collection[str]:
        """The topics that are not shown at all, by label."""
        return () if self.access else OF_ACCESS

    def within(self, sql: str) -> str:
        """Return a statement that reads only what may be seen."""
        return f"{self._defined} SELECT * FROM ({sql})" if self._defined else sql  # noqa: S608 - a statement of ours

    @cached_property
    def _defined(self) -> str:
        if self.tenant is not None:
            return _of_tenant(self.tenant)
        return "" if self.access else f"WITH {_only({name: 'false' for name in (*OF_ACCESS, 'key_use')})}"


def _of_tenant(tenant: str) -> str:
    """Return the definitions of what a tenant sees, by the names that statements use."""
    name, begins = literal(tenant), literal(tenant + SEPARATOR)
    own_policy, own_agent = f"starts_with(policy, {begins})", f"starts_with(agent_id, {begins})"
    own_task, own_run = "task_id IN (FROM own_tasks)", "task_id IN (SELECT task_id FROM trajectories)"
    of_whom = f"tenant = {name} OR (tenant IS NULL AND (starts_with(policy, {begins}) OR starts_with(agent, {begins})))"
    first = f"SELECT task_id, arg_min(coalesce({of_whom}, false), _offset) AS own FROM whole.tasks GROUP BY task_id"  # noqa: S608
    key = "TRY(decode(from_base64(key)))"
    keyed_by_policy = " OR ".join(f"ends_with(source_topic, {literal(label)})" for label in KEYED_BY_POLICY)
    run = f"{own_task} OR {own_agent}"
    conditions: dict[str, str] = {
        "tasks": f"{own_task} AND ({of_whom})",
        "trajectories": run,
        "turns": run,
        "runs": run,
        "responses": run,
        "rewards": f"{own_task} OR {own_run}",
        "groups": f"coalesce(tenant, {name}) = {name} AND ({own_task} OR {own_run})",
        "batches": own_policy,
        "adapters": own_policy,
        "rollout": own_policy,
        "jobs": f"tenant = {name}",
        "dead_letters": f"CASE WHEN {keyed_by_policy} THEN starts_with({key}, {begins}) "
        f"ELSE {key} IN (FROM own_tasks) END",
    }
    nobodys = ("agents", "experiments", "group_control", *OF_ACCESS, "key_use", "lineage", "spans", "group_responses")
    return f"WITH own_tasks AS (SELECT task_id FROM ({first}) WHERE own), " + _only(  # noqa: S608
        conditions | dict.fromkeys(nobodys, "false")
    )


def _only(conditions: Mapping[str, str]) -> str:
    """Return definitions of names by the condition that their rows meet."""
    joins = ("runs", "rollout", "key_use", "lineage", "spans", "group_responses")
    return ", ".join(
        f"{name} AS (SELECT * FROM {'main' if name in joins else 'whole'}.{name} WHERE {condition})"  # noqa: S608
        for name, condition in conditions.items()
    )


def may(asks: Principal | None, action: Action) -> Decision:
    """Return whether somebody may do something on the page, and why."""
    if asks is None:
        return Decision(True, "this server asks nobody who they are")
    decision = decide(asks, action)
    if decision.allowed and asks.tenant is not None and action in OF_ALL_TENANTS:
        return Decision(False, f"{asks.who} is of a tenant, and {action} is for keys and people without one")
    return decision
