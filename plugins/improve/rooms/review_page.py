"""The review queue on the page: one run at a time, as its judge saw it, and a form to decide.

    curation ──► runs that wait for a person ──► the first, or the one in the address ──► transcript, gates
    form ──► still the verdict that was shown? ──► CurationLog.decide ──► the next run

A section of the page, if that is loaded. It does not contain the judge's verdict until its reader has decided: people
who know it tend to repeat it, and agreement would measure that. Afterwards it is shown next to the reader's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plugins.improve.curation import curation_view
from plugins.improve.curation.curation_log import CurationLog
from plugins.improve.curation.run_lookup import find_newest_run, find_run
from plugins.improve.curation.verdicts import PlacedVerdict
from plugins.improve.datasets import dataset_log
from plugins.improve.datasets.dataset_log import DatasetLog
from plugins.improve.datasets.dataset_view import newest_builds
from plugins.improve.rooms.review_form import decision_in, shown_and_following
from plugins.improve.rooms.row_page import row_page
from plugins.improve.rooms.run_verdicts import JUDGE
from streams.errors import NotFoundError
from streams.tools.archive import history
from streams.tools.views.log_view import LogReader, LogSnapshot, LogView
from streams.tools.views.view_section import PageForm, SentForm, ViewPage, ViewSection


@dataclass(frozen=True)
class ReviewPage:
    """The run to decide about, and the last decision."""

    waiting: int
    """How many runs wait."""
    run: dict[str, Any] | None
    """As `curation_view.queued_run`; None: none waits."""
    transcript: list[dict[str, Any]] | None
    """The transcript that the judge read; None: the log no longer has the run."""
    following: str | None
    """The run after it."""
    decided: dict[str, Any] | None
    """The visitor's newest verdict, as `curation_view.verdict`."""
    machine: dict[str, Any] | None
    """The machine's verdict on the same run."""
    datasets: list[dict[str, Any]]
    """The newest build of each data set, as `dataset_view.newest_builds`."""
    as_of: datetime
    """Of the log that the transcript is from."""


class ReviewQueuePage:
    """The queue of one application."""

    def __init__(self, view: LogView) -> None:
        self._log = CurationLog(view.settings, view.source)

    def read(self, log: LogReader, *, run: str) -> ReviewPage:
        """Return the page of a visitor: the run in the address, if it waits, else the first."""
        with log.snapshot() as snapshot:
            return self._read(snapshot, log.actor, run)

    def _read(self, log: LogSnapshot, actor: str, wanted: str) -> ReviewPage:
        tenant = log.rights.tenant
        queue = self._log.review_queue(tenant)
        place, following = shown_and_following([placed.event.answer_id for placed in queue], wanted)
        decided, machine = self._log.newest_of(actor)
        return ReviewPage(
            waiting=len(queue),
            run=curation_view.queued_run(queue[place]) if queue else None,
            transcript=_transcript(log, queue[place]) if queue else None,
            following=following,
            decided=None if decided is None else curation_view.verdict(decided),
            machine=None if machine is None else curation_view.verdict(machine),
            datasets=newest_builds(self._datasets(log), None if tenant is None else (tenant,)),
            as_of=log.as_of,
        )

    def _datasets(self, log: LogSnapshot) -> DatasetLog:
        settings = log.view.settings
        return dataset_log.read_history(settings, history.of(settings, log.view.source))

    def decide(self, log: LogReader, form: SentForm) -> None:
        """Write the verdict in a form.

        Raises SettingsError for an incomplete form, NotFoundError for a run that its sender may not see, RefusedError
        if another verdict came first, LogError.
        """
        decision = decision_in(form, log.actor)
        case = find_newest_run(log, history.of(log.view.settings, log.view.source), form.word("run"))
        self._log.decide(case, decision)


def _transcript(log: LogSnapshot, placed: PlacedVerdict) -> list[dict[str, Any]] | None:
    settings = log.view.settings
    try:
        return find_run(log, history.of(settings, log.view.source), placed.event.answer_id).transcript.lines
    except NotFoundError:  # retention has deleted it, or the snapshot is older than its end
        log.view.outdate()
        return None


def review_pages(view: LogView) -> tuple[ViewPage, ...]:
    """Return the pages of the queues of one log: of runs, and of rows of files."""
    queue = ReviewQueuePage(view)
    runs = ViewPage("", "review.html", queue.read, query=("run",), form=PageForm(JUDGE, queue.decide))
    return runs, row_page(view)


SECTIONS = (ViewSection("curation/queue", "Review", "plugins.improve", review_pages),)
