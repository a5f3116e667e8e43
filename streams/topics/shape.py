"""Every fact about a topic, declared once.

    TopicShape ──► topics, rights, SQL views, record lines, `events tail`, audit, spending of tenants, chart,
                   docs/architecture.md

A declaration without one of the facts, or with one that contradicts its event, is refused when it is made.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from schemas.events import Event
from streams.output import Column

AuditReading = Literal["groups", "since", "whole", "place", "nothing"]
"""What the audit reads of a topic: from --since on, where records deleted by retention limit which groups are
recounted; the same without that limit; all of it, however late the recount begins; all of it, only to check each
record's partition; nothing."""

OWN_TASK = "task_id IN (FROM own_tasks)"
OWN_RUN = f"({OWN_TASK} OR starts_with(agent_id, {{prefix}}))"
OWN_POLICY = "starts_with(policy, {prefix})"
OF_TENANT = "tenant = {tenant}"
NO_TENANT = "false"
"""Rows that no principal of a tenant sees."""
ADMINS_ONLY = ""
"""Keys, people and their requests, with hashes of passwords: rows that only admins see."""

EVERY_TOPIC = "*"
_LABEL = re.compile(r"[a-z]+(-[a-z]+)*")


class LetterStage(NamedTuple):
    """A stage that writes a dead letter about each record that it cannot use."""

    group: str
    """Its consumer group, or the prefix of the group's name."""
    stage: str


class RecordCost(NamedTuple):
    """The cost of the work that a record reports. It counts in the month of `created_at`, for the tenant."""

    work_id: str
    """Of several records about the same work, the first counts."""
    created_at: int
    tenant: str | None
    policy: str
    """Empty: no policy."""
    session: str
    """What a tenant's user began, with all its work: a column of its costs."""
    prompt_tokens: int
    completion_tokens: int
    trainer_s: float
    cost_usd: float | None
    """None: no prices were agreed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicShape:
    """One topic of every deployment."""

    label: str
    """Its name, without the prefix, e.g. `group-control`."""
    event: type[Event]
    key: str
    """The field that is the record key; `` for dead letters, which keep the key of their source."""
    kept: bool
    """Whether records are kept for ever: decisions and provenance, which are small and needed long after the rest is
    gone, and what agents are to remember. If not, they go after topics.retention_days."""
    written_by: str
    read_by: str
    tenant: str
    """Which rows of the topic's view are a tenant's: a condition in SQL with {tenant} and {prefix}, or ADMINS_ONLY."""
    reader: LetterStage | None
    """The stage that writes a dead letter about a record that is no event of this topic. None: no stage."""
    is_about: str
    """A record's name in a finding: `a verdict`, `about a job`."""
    audit: AuditReading
    causes: tuple[str, ...]
    """Topics with the causes of this one's records, or EVERY_TOPIC: the audit finds the cause of each record
    that it finds here."""
    effects: tuple[str, ...] = ()
    """Topics of others with effects of this one's records, which do not name it as a cause."""
    line: Callable[..., str]
    """A record in one line. Its arguments are fields of the event, and columns of the topic's view."""
    columns: tuple[Column, ...]
    """Columns of a table of its events."""
    cost: Callable[[Any], RecordCost] | None = None
    """The cost of an event of this topic, for the monthly spending of tenants; None: its records cost nothing, or the
    events of jobs report it."""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys that its writer may add to the copied metadata, with their meaning."""

    def __post_init__(self) -> None:
        """Raise ValueError where a fact is missing or contradicts the event."""
        if not is_label(self.label):
            raise ValueError(f"topic {self.label!r}: expected small letters with dashes between words, as dead-letters")
        for fact in ("written_by", "read_by", "is_about", "columns"):
            if not getattr(self, fact):
                raise ValueError(f"topic {self.label}: {fact} is empty")
        if self.audit not in get_args(AuditReading):
            raise ValueError(f"topic {self.label}: audit is {self.audit!r}, expected one of {get_args(AuditReading)}")
        names = [field.name for field in dataclasses.fields(self.event)]
        if wrong := sorted({self.key or names[0], *self.fields}.difference(names)):
            raise ValueError(
                f"topic {self.label}: its key or its line reads {', '.join(wrong)}, and a {self.event.__name__} has "
                f"{', '.join(names)}"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that `line` reads."""
        return self.line.__code__.co_varnames[: self.line.__code__.co_argcount]

    @property
    def is_keyed_by_task(self) -> bool:
        """Whether it is partitioned like tasks, so that one worker sees everything about a task."""
        return self.key == "task_id"


def is_label(name: str) -> bool:
    """Return whether a topic may have this label."""
    return _LABEL.fullmatch(name) is not None


def short(identity: str | None) -> str:
    """Return the beginning of an id, for a table."""
    return (identity or "")[:8]


def words(kind: str) -> str:
    """Return a kind of event in words.

    >>> words("canary_started")
    'canary started'
    """
    return kind.replace("_", " ")
