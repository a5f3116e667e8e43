"""Calls that wait for a person, on the page: those that ask for consent, and questions of agents, each with a form.

    run_steps ──► calls that wait for a person, the oldest first ──► /run-trees/waiting
    form ──► the run as it is now ──► read_resumption, as of a request to resume it ──► run_resumed ──► its server

Not covered: many threads. Each answer reads the topic of threads from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gateway.http.principal import sees
from plugins.threads.acp.resumption import check_taken, read_resumption, resumption_event
from plugins.threads.log.thread_log import ThreadLog
from streams.errors import CallError, NotFoundError, RefusedError, SettingsError
from streams.tools.views.log_view import LogReader, Row
from streams.tools.views.view_section import PageForm, SentForm, ViewPage

MOST_CALLS = 100
"""Calls that the page has, the oldest."""
_WAITING = """
SELECT * FROM run_steps WHERE state IN ('waits for consent', 'waits for unfinished', 'waits for remote')
ORDER BY created_at, _offset, number
"""


@dataclass(frozen=True)
class WaitingCalls:
    """The calls that wait for a person."""

    calls: list[Row]
    """As the view `run_steps` has them."""
    as_of: datetime


def list_waiting(log: LogReader) -> WaitingCalls:
    """Return the calls that wait, of agents that the visitor may see. Raises LogError if the log cannot be read."""
    with log.snapshot() as snapshot:
        calls = [call for call in snapshot.rows(_WAITING, MOST_CALLS) if sees(log.principal, call["agent_id"])]
        return WaitingCalls(calls, snapshot.as_of)


def answer_call(log: LogReader, form: SentForm) -> None:
    """Write the answer in a form.

    Raises SettingsError for an answer that the call does not take, NotFoundError for a run that its sender may not see,
    RefusedError if the call waits no longer, LogError.
    """
    run_id, call_id = form.word("run"), form.word("call")
    with ThreadLog(log.view.settings) as threads:
        run = threads.find(run_id)
        if run is None or not sees(log.principal, run.agent_id):
            raise NotFoundError(f"there is no run {run_id[:80]}")
        try:
            answered = read_resumption(run, {call_id: form.word("answer")})
            check_taken(threads.append(resumption_event(run, answered, log.actor)))
        except CallError as exc:
            raise (RefusedError if exc.kind == "conflict" else SettingsError)(exc.message) from exc


WAITING_PAGE = ViewPage("/waiting", "waiting.html", list_waiting, form=PageForm("chat.call", answer_call))
