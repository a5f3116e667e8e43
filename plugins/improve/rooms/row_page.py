"""Rows of files that wait for a person, on the page: one at a time, and a form to decide.

    annotations ──► rows that wait ──► the first, or the one in the address ──► what a judge of it reads
    form ──► still the label that was shown? ──► AnnotationLog.decide ──► the next row

What a machine said of a row is not on it: people who know it tend to repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plugins.data.cleaning.steps import DataRow
from plugins.improve.annotation.annotation_log import AnnotationLog
from plugins.improve.annotation.annotation_state import PlacedLabel
from plugins.improve.annotation.labelled_row import LabelledRow, recorded_fields
from plugins.improve.rooms.review_form import decision_in, shown_and_following
from plugins.improve.rooms.run_verdicts import JUDGE
from streams.tools.views.log_view import LogReader, LogView
from streams.tools.views.view_section import PageForm, SentForm, ViewPage


@dataclass(frozen=True)
class RowReview:
    """The row to decide about."""

    waiting: int
    """How many rows wait."""
    placed: PlacedLabel | None
    """Its newest label; None: none waits."""
    lines: list[dict[str, Any]]
    """Its columns and messages, as a judge reads them."""
    following: str | None
    """The row after it."""


class RowQueuePage:
    """The queue of one application."""

    def __init__(self, view: LogView) -> None:
        self._log = AnnotationLog(view.settings, view.source)

    def read(self, log: LogReader, *, row: str) -> RowReview:
        """Return the page of a visitor: the row in the address, if it waits, else the first."""
        queue = self._log.queue(log.rights.tenant)
        if not queue:
            return RowReview(0, None, [], None)
        place, following = shown_and_following([placed.event.row_id for placed in queue], row)
        lines = LabelledRow.of(DataRow("", recorded_fields(queue[place].event))).transcript.lines
        return RowReview(len(queue), queue[place], lines, following)

    def decide(self, log: LogReader, form: SentForm) -> None:
        """Write the label in a form.

        Raises SettingsError for an incomplete form, NotFoundError for a row that its sender may not see, RefusedError
        if another label came first, LogError.
        """
        self._log.decide(form.word("row"), log.rights.tenant, decision_in(form, log.actor))


def row_page(view: LogView) -> ViewPage:
    """Return the page of the queue of one log."""
    queue = RowQueuePage(view)
    return ViewPage("/rows", "review_rows.html", queue.read, query=("row",), form=PageForm(JUDGE, queue.decide))
