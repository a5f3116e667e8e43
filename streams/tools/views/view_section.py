"""Pages that a plugin adds to the page of the log, from views of its own, and forms on them.

PLUGIN.extends["page"] ──► ViewSection ──► its link in the head, its paths ──► LogReader ──► a view ──► a template
form sent ──► may its sender? ──► PageForm.decide ──► the page again, with the decision or the reason against it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streams.access.roles import Action
from streams.errors import SettingsError
from streams.tools.views.log_view import LogView

LONGEST_REASON = 2_000
"""Characters of a reason."""


class SentForm(dict[str, str]):
    """The fields of a form, by name."""

    def word(self, name: str) -> str:
        """Return a field without surrounding space; empty if it was not sent."""
        return self.get(name, "").strip()

    def number(self, name: str) -> int:
        """Return a whole number. Raises SettingsError."""
        text = self.word(name)
        if not text.isdecimal() or len(text) > 9:
            raise SettingsError(f"{name}: expected a whole number, got {text[:80]!r}")
        return int(text)

    def reason(self, name: str) -> str:
        """Return the reason of a decision. Raises SettingsError if it is missing or too long."""
        text = self.word(name)
        if not text:
            raise SettingsError("there is no reason; say why, since it is recorded in the log")
        if len(text) > LONGEST_REASON:
            raise SettingsError(f"the reason has {len(text):,} characters; give {LONGEST_REASON:,} at most")
        return text


class PageForm(NamedTuple):
    """A form that changes something, on a page with an element `decisions`."""

    action: Action
    """What the role of its sender has to allow."""
    decide: Callable[..., None]
    """Writes the decision, given a LogReader, the SentForm and the parameters of the path. Raises StreamwardError."""


class ViewPage(NamedTuple):
    """One kind of page."""

    path: str
    """Below that of its section, as Starlette has it: `/{job_id:path}`; empty: that of the section."""
    template: str
    """The name of its template, which has the fields of its view."""
    read: Callable[..., object]
    """Returns its view, given a LogReader, the parameters of the path and those of `query`. Raises StreamwardError."""
    query: tuple[str, ...] = ()
    """The parameters of the query that it reads; empty where the address lacks one."""
    form: PageForm | None = None


@dataclass(frozen=True)
class ViewSection:
    """A section of the page."""

    path: str
    """Its part of an address: `jobs`."""
    title: str
    package: str
    """The package with a folder `templates`."""
    pages: Callable[[LogView], tuple[ViewPage, ...]]
    """Returns its pages of one log."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Columns of any list whose values lead to its pages, and what an address has before them: {"job_id": "jobs"}."""
