"""Access to the log by visitor: everything, everything but keys and requests, or one tenant's rows.

    principal ──► LogRights ──► a statement ──► the same statement over the rows that the principal may see

A tenant's rows are those of its tasks, of agents and policies whose names begin with its own, and of jobs that it
ordered. A statement is restricted by redefining each name that it reads; `whole.NAME` is for additional facts about
rows that the visitor may see anyway, such as the batch that a group went into.

A task belongs to the tenant of the first record with its id: a later one with the same id shows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from streams.access.roles import Action, Decision, Principal, decide
from streams.access.tenants.tenant_names import SEPARATOR
from streams.errors import RefusedError
from streams.kafka.topics import SHAPES
from streams.tools.query.views import literal, name_of, tenant_conditions
from streams.topics.loop_topics import IS_OWN
from streams.topics.shape import ADMINS_ONLY, NO_TENANT, OWN_RUN

ACCESS_TOPICS = tuple(label for label, shape in SHAPES.items() if shape.tenant == ADMINS_ONLY)
"""Keys, people and their requests, with hashes of passwords: for admins alone."""
WITHOUT_TENANT: frozenset[Action] = frozenset({"letters.decide"})
"""What no principal of a tenant does: a dead letter names its record, and not for certain its tenant."""


@dataclass(frozen=True)
class LogRights:
    """What one visitor may see."""

    tenant: str | None = None
    """None: the rows of all tenants."""
    access: bool = True
    """Whether ACCESS_TOPICS are among it."""
    who: str = ""
    """The name of the principal, for messages."""

    @classmethod
    def of(cls, principal: Principal | None) -> LogRights:
        """Return the rights of a principal; None: the server asks for no key or login."""
        if principal is None:
            return cls()
        return cls(principal.tenant, principal.tenant is None and "admin" in principal.roles, principal.who)

    @property
    def hidden(self) -> Collection[str]:
        """The topics that are not shown at all, by label."""
        return () if self.access else ACCESS_TOPICS

    def check_whole(self, subject: str) -> None:
        """Raise RefusedError if only a tenant's part of the log may be seen."""
        if self.tenant is not None:
            raise RefusedError(f"{self.who} is of a tenant, and {subject} what all tenants have written")

    def restrict(self, sql: str) -> str:
        """Return a statement that reads only what may be seen."""
        return f"{self._definitions} SELECT * FROM ({sql})" if self._definitions else sql  # noqa: S608 - ours

    @cached_property
    def _definitions(self) -> str:
        if self.tenant is not None:
            return _tenant_definitions(self.tenant)
        if self.access:
            return ""
        return f"WITH {_filters({name: 'false' for name, rows in tenant_conditions().items() if rows == ADMINS_ONLY})}"


def _tenant_definitions(tenant: str) -> str:
    """Return the definitions of what a tenant sees, by the names that statements use."""
    by_policy = [label for label, shape in SHAPES.items() if shape.key == "policy"]
    values = {
        "tenant": literal(tenant),
        "prefix": literal(tenant + SEPARATOR),
        "source_key": "TRY(decode(from_base64(key)))",
        "keyed_by_policy": " OR ".join(f"ends_with(source_topic, {literal(label)})" for label in by_policy),
    }
    is_own, own_run = IS_OWN.format(**values), OWN_RUN.format(**values)
    first = f"SELECT task_id, arg_min(coalesce({is_own}, false), _offset) AS own FROM whole.tasks GROUP BY task_id"  # noqa: S608
    conditions = {name: (rows or NO_TENANT).format(**values) for name, rows in tenant_conditions().items()}
    return (
        f"WITH own_tasks AS (SELECT task_id FROM ({first}) WHERE own), "  # noqa: S608
        f"own_runs AS (SELECT task_id FROM whole.trajectories WHERE {own_run}), {_filters(conditions)}"
    )


def _filters(conditions: Mapping[str, str]) -> str:
    """Return definitions of names by the condition that their rows meet."""
    topic_views = set(map(name_of, SHAPES))
    return ", ".join(
        f"{name} AS (SELECT * FROM {'whole' if name in topic_views else 'main'}.{name} WHERE {condition})"  # noqa: S608
        for name, condition in conditions.items()
    )


def may(principal: Principal | None, action: Action) -> Decision:
    """Return whether a principal may do something, and why."""
    if principal is None:
        return Decision(True, "this server asks for no key or login")
    decision = decide(principal, action)
    if decision.allowed and principal.tenant is not None and action in WITHOUT_TENANT:
        return Decision(False, f"{principal.who} is of a tenant, and {action} is for keys and people without one")
    return decision
