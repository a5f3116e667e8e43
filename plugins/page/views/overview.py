"""The overview: whether anything is stuck, the place of every group, what was learnt, and the rate of records.

tasks, responses, rewards, groups, batches, adapters ──► the place of each train task, counted by policy
the list of groups                                     ──► how many taught nothing
consumer groups, and the rest of `streamward status` ──► which processes are alive, what each waits for
every topic                                          ──► records, and how many a minute
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plugins.page.views.curves import read_trend
from plugins.page.views.group_list import TAUGHT_NOTHING_SQL
from streams.errors import StreamwardError
from streams.evaluation.diagnosis import Diagnosis
from streams.kafka import times
from streams.kafka.topics import LABELS
from streams.tools import status
from streams.tools.query.views import identifier, name_of
from streams.tools.standstill import Standstill, standstills
from streams.tools.status import LoopStatus
from streams.tools.views.log_view import LogSnapshot, LogView, Row
from streams.tools.views.places import PLACES, PLACES_SQL

RATE_S = 30
"""Over how long rates are taken."""


@dataclass(frozen=True)
class WholeLogView:
    """The processes, and the records of all tenants."""

    records: list[Row]
    left_out: list[str]
    status: LoopStatus | None
    no_status: str | None
    """Why the status is missing."""
    diagnoses: dict[str, Diagnosis]
    """By policy, why it learns nothing."""
    is_archive: bool
    standstills: list[Standstill] = field(default_factory=list)
    """Whether each policy moves, the stuck ones first."""
    rate_s: int = RATE_S


@dataclass(frozen=True)
class Overview:
    """The whole loop on one page."""

    places: dict[str, dict[str, int]]
    """By policy, how many train tasks are at each place."""
    taught_nothing: dict[str, Row]
    """By policy, how many groups taught nothing, and how many of them were trained on all the same."""
    whole: WholeLogView | None
    """None for a tenant."""
    trends: dict[str, str]
    """By policy, how its held-out scores went."""


def read_overview(log: LogSnapshot) -> Overview:
    """Return the overview, read once a look at the log: its page is renewed every few seconds, in every browser.

    Raises LogError if the log cannot be read.
    """
    return log.recall("overview", lambda: _read(log))


def _read(log: LogSnapshot) -> Overview:
    places: dict[str, dict[str, int]] = {}
    for row in log.rows(PLACES_SQL):
        places.setdefault(row["policy"], dict.fromkeys(PLACES, 0))[row["place"]] = row["tasks"]
    taught_nothing = {row["policy"]: row for row in log.rows(TAUGHT_NOTHING_SQL)}
    trends = {policy: read_trend(log, policy) for policy in places}
    if log.rights.tenant is not None:
        return Overview(places, taught_nothing, None, trends)
    records = log.rows(records_sql([label for label in LABELS if label not in log.rights.hidden]))
    now_ms = times.now_ms()
    state, diagnoses, no_status = _read_status(log.view, now_ms)
    is_archive = log.view.source == "archive"
    rows = [] if state is None else standstills(log.view.settings, state, now_ms)
    whole = WholeLogView(records, log.left_out(), state, no_status, diagnoses, is_archive, rows)
    return Overview(places, taught_nothing, whole, trends)


def records_sql(labels: Sequence[str]) -> str:
    """Return the statement that counts the records of topics: all, and those of the last minutes."""
    recent = f"_timestamp > now() - INTERVAL {RATE_S} SECOND"
    return " UNION ALL ".join(
        f"SELECT '{label}' AS topic, count(*) AS records, 60.0 * count(*) FILTER ({recent}) / {RATE_S} AS per_minute, "  # noqa: S608
        f"max(_timestamp) AS newest FROM {identifier(name_of(label))}"
        for label in labels
    )


def _read_status(view: LogView, now_ms: int) -> tuple[LoopStatus | None, dict[str, Diagnosis], str | None]:
    """Return what `streamward status` shows, or why it cannot be read."""
    if view.source == "archive":
        return None, {}, "This is an archive: it says nothing of processes."
    try:
        state = status.look(view.settings, now_ms=now_ms)
        return state, status.diagnoses(view.settings, state), None
    except StreamwardError as exc:
        return None, {}, str(exc)
