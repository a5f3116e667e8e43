"""What a visitor may see of the log: everything, everything but keys and requests, or one tenant's rows.

    principal ──► LogRights ──► a statement ──► the same statement over the rows that the principal may see

A tenant's rows are those of its tasks, of agents and policies whose names begin with its own, and of jobs that it
ordered. A statement is restricted by defining each name that it reads in front of it; `whole.NAME` is for what only
says more of rows that are the visitor's already, such as the batch that a group went into.

A task is the tenant's if the first record with its id is: another one with the same id shows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from streams.access.roles import Action, Decision, Principal, decide
from streams.access.tenants.tenant_names import SEPARATOR
from streams.errors import RefusedError
from streams.kafka.topics import LABELS
from streams.tools.query.views import UNIQUE, literal, name_of

ACCESS_TOPICS = ("access", "requests")
"""Keys, people and their requests, with hashes of passwords: for admins alone."""
KEYED_BY_POLICY = ("adapters", "batches", "groups")
OF_TENANT = ("jobs", "curation", "datasets", "triggers", "training_calls", "training_results")
"""Views whose rows say whose they are."""
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
        return "" if self.access else f"WITH {_filters(dict.fromkeys((*ACCESS_TOPICS, 'key_use'), 'false'))}"


def _tenant_definitions(tenant: str) -> str:
    """Return the definitions of what a tenant sees, by the names that statements use."""
    name, prefix = literal(tenant), literal(tenant + SEPARATOR)
    own_policy, own_agent = f"starts_with(policy, {prefix})", f"starts_with(agent_id, {prefix})"
    own_task, own_run = "task_id IN (FROM own_tasks)", "task_id IN (SELECT task_id FROM trajectories)"
    is_own = f"tenant = {name} OR (tenant IS NULL AND (starts_with(policy, {prefix}) OR starts_with(agent, {prefix})))"
    first = f"SELECT task_id, arg_min(coalesce({is_own}, false), _offset) AS own FROM whole.tasks GROUP BY task_id"  # noqa: S608
    key = "TRY(decode(from_base64(key)))"
    keyed_by_policy = " OR ".join(f"ends_with(source_topic, {literal(label)})" for label in KEYED_BY_POLICY)
    run = f"{own_task} OR {own_agent}"
    conditions: dict[str, str] = {
        "tasks": f"{own_task} AND ({is_own})",
        "trajectories": run,
        "turns": run,
        "runs": run,
        "responses": run,
        "rewards": f"{own_task} OR {own_run}",
        "groups": f"coalesce(tenant, {name}) = {name} AND ({own_task} OR {own_run})",
        "batches": own_policy,
        "adapters": own_policy,
        "rollout": own_policy,
        "policy_checkpoints": own_policy,
        **dict.fromkeys((*OF_TENANT, "training_jobs", "training_runs"), f"tenant = {name}"),
        **dict.fromkeys(("prompts", "prompt_rewards"), f"starts_with(prompt, {prefix})"),
        "memory": f"starts_with(namespace, {prefix})",
        "threads": f"starts_with(thread_id, {prefix}) OR {own_agent}",
        "tools": f"starts_with(tool_id, {prefix})",
        "dead_letters": f"CASE WHEN {keyed_by_policy} THEN starts_with({key}, {prefix}) "
        f"ELSE {key} IN (FROM own_tasks) END",
    }
    invisible: tuple[str, ...] = (
        "agents",
        "experiments",
        "group_control",
        *ACCESS_TOPICS,
        "key_use",
        "lineage",
        "spans",
    )
    invisible += ("samples", "queues")
    conditions |= dict.fromkeys((*invisible, "group_responses"), "false")
    conditions |= {f"unique_{label}": conditions[label] for label in UNIQUE}
    return f"WITH own_tasks AS (SELECT task_id FROM ({first}) WHERE own), {_filters(conditions)}"  # noqa: S608


def _filters(conditions: Mapping[str, str]) -> str:
    """Return definitions of names by the condition that their rows meet."""
    topic_views = {name_of(label) for label in LABELS}
    return ", ".join(
        f"{name} AS (SELECT * FROM {'whole' if name in topic_views else 'main'}.{name} WHERE {condition})"  # noqa: S608
        for name, condition in conditions.items()
    )


def may(principal: Principal | None, action: Action) -> Decision:
    """Return whether a principal may do something on the page, and why."""
    if principal is None:
        return Decision(True, "this server asks for no key or login")
    decision = decide(principal, action)
    if decision.allowed and principal.tenant is not None and action in WITHOUT_TENANT:
        return Decision(False, f"{principal.who} is of a tenant, and {action} is for keys and people without one")
    return decision
