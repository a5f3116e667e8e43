"""Pages that a plugin adds to the page of the log, from views of its own.

PLUGIN.extends["page"] ──► ViewSection ──► its link in the head, its paths ──► LogReader ──► a view ──► a template
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class ViewPage(NamedTuple):
    """One kind of page."""

    path: str
    """Below that of its section, as Starlette has it: `/{job_id:path}`; empty: that of the section."""
    template: str
    """The name of its template, which has the fields of its view."""
    read: Callable[..., object]
    """Returns its view, given a LogReader and the parameters of the path. Raises StreamwardError."""


@dataclass(frozen=True)
class ViewSection:
    """A section of the page."""

    path: str
    """Its part of an address: `jobs`."""
    title: str
    package: str
    """The package with a folder `templates`."""
    pages: tuple[ViewPage, ...]
