"""What somebody decides on the page: about a version, about a dead letter. The functions are those of the commands.

    form ──► read_history ──► still the version that was expected? ──► decide ──► one event, read back
    form ──► Letters ──► redrive.decide ──► the record on its topic again, or closed

A page may be old by the time its form is sent. So a form says which version answered when it was shown, and if another
one does by now nothing is written.
"""

from __future__ import annotations

from gateway.page.forms import SentForm
from schemas.events import AdapterKind
from streams.adapters.decisions import ProposedDecision, decide, read_history, rollback_target
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError
from streams.settings.model import Settings
from streams.tools.dead_letters import letters as dead_letters, redrive
from streams.tools.dead_letters.letters import Verdict

KINDS: dict[str, AdapterKind] = {"promote": "promoted", "reject": "rejected", "rollback": "rolled_back"}
VERDICTS: dict[str, Verdict] = {"retry": "retried", "drop": "dropped"}
UNKNOWN = "Whether it was written is not known: look at the page again before you decide anew"


def decide_version(settings: Settings, policy: str, form: SentForm, actor: str) -> None:
    """Promote, reject or roll back to a version, once; return when it has taken effect.

    Raises SettingsError for a form that is not whole, NotFoundError for an unknown version, RefusedError if another
    version than the expected one answers, the rules forbid it, or somebody was faster; LogError.
    """
    kind = KINDS.get(form.word("kind"))
    if kind is None:
        raise SettingsError(f"kind: expected one of {', '.join(KINDS)}, got {form.word('kind')[:80]!r}")
    reason, expected = form.reason("reason"), form.number("expected")
    if kind != "rolled_back" and not form.word("version"):
        raise SettingsError(f"version: name the one to {form.word('kind')}")
    history = read_history(settings, policy)
    if form.word("version"):
        version = form.number("version")
    else:
        version = rollback_target(history, expected, actor=actor, reason=reason)
    proposed = ProposedDecision(kind=kind, version=version, actor=actor, reason=reason, expect=expected)
    try:
        decide(settings, history, proposed)
    except LogError as exc:
        raise LogError(f"{exc}. {UNKNOWN}") from exc


def decide_letter(settings: Settings, form: SentForm, actor: str) -> None:
    """Put the record of a dead letter back, or close it.

    Raises SettingsError for a form that is not whole, NotFoundError without such a letter, RefusedError and EventError
    for what may not be put back, LogError.
    """
    verdict = VERDICTS.get(form.word("what"))
    if verdict is None:
        raise SettingsError(f"what: expected one of {', '.join(VERDICTS)}, got {form.word('what')[:80]!r}")
    why = form.reason("reason")
    letters = dead_letters.load(settings)
    chosen = letters.find(form.word("letter"), prefix=settings.topics.prefix)
    order = redrive.RedriveOrder(verdict=verdict, actor=actor, why=why)
    try:
        outcomes = [*redrive.decide(settings, letters, chosen, order)]
    except LogError as exc:
        raise LogError(f"{exc}. {UNKNOWN}") from exc
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        if outcome.result == "already":
            raise RefusedError(f"{outcome.letter.source}: it was {verdict} already; look again")
    if not outcomes:
        raise NotFoundError("there is no such dead letter; look again")
