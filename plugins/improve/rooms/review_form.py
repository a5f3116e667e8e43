"""What the review queues of the page share: which of the waiting is shown, and the decision in the form below it."""

from __future__ import annotations

from collections.abc import Sequence

from plugins.improve.curation.curation_log import PersonDecision
from schemas.events import RunVerdict
from streams.errors import SettingsError
from streams.tools.views.view_section import SentForm

DECISIONS: dict[str, RunVerdict] = {"promote": "promote", "reject": "reject"}


def shown_and_following(ids: Sequence[str], wanted: str) -> tuple[int, str | None]:
    """Return the place of the id to show, the wanted one if it waits, else the first; and the id after it, if any.

    >>> shown_and_following(["a", "b", "c"], "b"), shown_and_following(["a", "b"], "b"), shown_and_following(["a"], "")
    ((1, 'c'), (1, 'a'), (0, None))
    """
    place = ids.index(wanted) if wanted in ids else 0
    rest = ids[place + 1 :] or ids[:place]
    return place, rest[0] if rest else None


def decision_in(form: SentForm, actor: str) -> PersonDecision:
    """Return the decision in a form about a run or a row. Raises SettingsError."""
    if (verdict := DECISIONS.get(form.word("verdict"))) is None:
        raise SettingsError(f"verdict: expected one of {', '.join(DECISIONS)}, got {form.word('verdict')[:80]!r}")
    reason, expected = form.reason("reason"), form.word("expected") or None
    return PersonDecision(verdict=verdict, actor=actor, reason=reason, expect=expected)
