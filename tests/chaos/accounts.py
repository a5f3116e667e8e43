"""What became of the records of somebody hostile.

    world.bad: coordinates, shape ──► dead letter? finding of the audit? group of its task? ──► the rest

What the processes make of a made-up task or policy (answers, scores, groups, batches) is told by its name.

Not covered: whether the reason is the best one; tests/pipeline/test_hostile_records.py has reasons word for word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from schemas.events import AdvantagedGroup, Coordinates, DeadLetter, Task
from schemas.serde import Poison
from streams.kafka import admin
from streams.kafka.topics import LABELS, topics
from streams.settings.model import Settings
from streams.tools.audit.report import Report

HOSTILE = "hostile-"
"""How every id begins that was made up."""
UNREAD = ("experiments", "turns", "trajectories", "agents", "jobs", "access", "requests")
"""Topics that no process of the loop reads."""


class Accounts(NamedTuple):
    """The records of somebody hostile, and what the log says about them."""

    bad: Mapping[str, str]
    """The shape of each record, by its coordinates."""
    about: frozenset[str]
    """Coordinates of the bad records, and of every record about a task or a policy that they made up."""
    explained: frozenset[str]
    """Coordinates of the records about which the log itself says what is wrong."""

    @classmethod
    def read(cls, settings: Settings, bad: Mapping[str, str]) -> Self:
        """Read the log, if there are bad records."""
        about, explained = set(bad), set[str]()
        asked, grouped = dict[str, str](), set[str]()
        for label in LABELS if bad else ():
            for record in admin.read_topic(settings, label):
                at, event = str(record.at), record.decode(topics(settings.topics)[label].event)
                if isinstance(event, Poison):
                    if label in UNREAD:  # its readers say why
                        explained.add(at)
                elif isinstance(event, DeadLetter) and at not in bad:
                    source = (event.source_topic, event.source_partition, event.source_offset)
                    explained.add(str(Coordinates(*source)))
                elif any(getattr(event, name, "").startswith(HOSTILE) for name in ("task_id", "policy")):
                    about.add(at)
                    if isinstance(event, Task):
                        asked[event.task_id] = at
                    elif isinstance(event, AdvantagedGroup) and at not in bad:
                        grouped.add(event.task_id)
        explained |= {asked[task_id] for task_id in asked.keys() & grouped}  # its scores say why they have no value
        return cls(bad, frozenset(about), frozenset(explained))

    def unexplained(self, report: Report) -> list[str]:
        """Return the bad records about which neither the log nor the audit says anything, each with its shape."""
        named = self.explained | {str(found.at) for found in report.findings}
        return [f"{at} ({shape})" for at, shape in self.bad.items() if at not in named]
