"""Documents are decided about by name, as the fold of their events; their recount agrees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plugins.knowledge.log.document_log import DOCUMENTS, DocumentAuthor, DocumentDraft, DocumentLog, DocumentState
from schemas.events import DocumentEvent, derive_id, text_digest
from streams.errors import EventError, NotFoundError
from streams.settings.model import Settings
from tests.support.factories import document_event
from tests.support.log.registry_cases import Case, check_case, check_decisions, made as made
from tests.support.log.whole_run import recounted, wrong

ANN = DocumentAuthor("ann", "asked for")


def _text(text: str) -> dict[str, str]:
    return {"text": text, "digest": text_digest(text)}


CASE = Case(
    DOCUMENTS,
    document_event(),
    document_event(**_text("The wind makes the waves.")),
    lambda state: None if state.current is None else state.current.text,
    lambda event: event.text,
)


def test_of_two_events_at_once_the_first_counts(made: Settings, caplog: pytest.LogCaptureFixture) -> None:
    check_case(made, CASE, caplog)


def test_decisions_of_many_writers_all_take_effect(made: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(state: DocumentState) -> DocumentEvent:
        event_id = derive_id("sea/tides", "replaced", state.sequence)
        return document_event("replaced", state.sequence, event_id=event_id, **_text(f"Version {state.sequence}."))

    check_decisions(made, CASE, decide, monkeypatch)


def test_documents_are_put_at_once_and_the_same_text_is_not_written_again(made: Settings) -> None:
    drafts = [DocumentDraft(f"land/{number}", f"Hill number {number}.", "text/plain") for number in range(50)]
    with DocumentLog(made) as log, DocumentLog(made) as other:
        assert log.put(drafts, ANN) == ["added"] * 50
        assert other.put([drafts[0]._replace(text="A valley."), *drafts[1:]], ANN)[:2] == ["replaced", None]
        log.catch_up()
        assert log.get("land/0").text == "A valley."
        log.remove("land/1", ANN)
        with pytest.raises(NotFoundError, match="there is no document 'land/1'; GET /rag/documents"):
            log.get("land/1")


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        (DocumentDraft("a/b", " \n", "text/plain"), "text is blank"),
        (DocumentDraft("ab", "text", "text/plain"), "expected INDEX/NAME"),
        (DocumentDraft("a/b\n", "text", "text/plain"), "expected INDEX/NAME"),
    ],
)
def test_what_is_no_document_is_refused_before_any_is_written(
    made: Settings, draft: DocumentDraft, problem: str
) -> None:
    with DocumentLog(made) as log:
        with pytest.raises(EventError, match=problem):
            log.put([DocumentDraft("before/a", "text", "text/plain"), draft], ANN)
        with pytest.raises(EventError, match="document before/a is given twice"):
            log.put([DocumentDraft("before/a", text, "text/plain") for text in ("one", "two")], ANN)
        with pytest.raises(NotFoundError):
            log.get("before/a")


def test_a_digest_that_is_not_that_of_the_text_is_no_document() -> None:
    from schemas.events import problems

    assert [*problems(replace(document_event(), text="Another."))] == [
        f"digest is {text_digest('The moon makes the tides.')}, which is not that of its text"
    ]


def test_the_audit_counts_documents_and_names_an_event_of_one_that_is_not_there() -> None:
    events = [document_event(), document_event("replaced", 1, **_text("The sun, too.")), document_event("removed", 2)]
    assert wrong(*events) == []
    counts = recounted(*events[:2]).counts
    assert (counts["documents"], counts["documents added"], counts["documents replaced"]) == (1, 1, 1)
    assert wrong(events[0], document_event("added", 1)) == [
        ("contradictory", 1, "it is added, and there is one already")
    ]
    assert wrong(*events, document_event("replaced", 3)) == [
        ("contradictory", 3, "it is replaced, and there is no such document")
    ]
    assert wrong(events[0], events[2]) == [("lost", 1, "it follows event 1 of its document, which is not before it")]
