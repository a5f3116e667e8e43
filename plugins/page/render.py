"""Render views as HTML: templates, number and time formats, and the head of every page.

view ──► its fields by name ──► template; each value cut and made visible, then escaped ──► HTML
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.http.principal import principal_of
from plugins.page import chart
from plugins.page.views.curves import OVER, suite_title
from plugins.page.views.id_links import id_link
from streams.access.roles import Action, Principal
from streams.output import cell, moment as as_moment
from streams.plugins.installed import extensions
from streams.tools.query.view_list import view_lists
from streams.tools.views import rights
from streams.tools.views.places import PLACE_NOTES
from streams.tools.views.view_section import ViewSection
from streams.tools.views.visible_text import cut, visible

SECTIONS = (
    ("", "Overview"),
    ("groups", "Groups"),
    ("policies", "Policies"),
    ("runs", "Runs"),
    ("dead-letters", "Dead letters"),
    ("live", "Live"),
    ("sql", "SQL"),
)
"""Path and name of each link in the head of every page."""
LAST_BEFORE_PLUGINS = "runs"
"""The section after which the links of plugins' sections are."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
WHOLE_LOG_SECTIONS = ("live", "sql")
"""Sections with the records of all tenants."""


@cache
def sections() -> tuple[ViewSection, ...]:
    """Return the sections that plugins add. Raises SettingsError if one cannot be loaded."""
    return extensions("page")


@dataclass(frozen=True, slots=True)
class Visitor:
    """The principal of a request, as templates see it."""

    principal: Principal | None = None

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Path and name of the sections that this visitor may see."""
        is_whole = self.principal is None or self.principal.tenant is None
        ours = [(path, name) for path, name in SECTIONS if is_whole or path not in WHOLE_LOG_SECTIONS]
        place = 1 + [path for path, _ in ours].index(LAST_BEFORE_PLUGINS)
        ours[place:place] = [(section.path, section.title) for section in sections()]
        return ours

    @property
    def lists(self) -> list[tuple[str, str]]:
        """Path and name of the lists of plugins, by name."""
        return sorted(((f"lists/{entry.name}", entry.title) for entry in view_lists().values()), key=lambda row: row[1])

    def may(self, action: Action) -> bool:
        """Return whether the form of an action is shown."""
        return rights.may(self.principal, action).allowed


class Renderer:
    """Renders the pages of one application."""

    def __init__(self, *, decides: bool, asks_login: bool) -> None:
        """`decides`: whether pages have forms that change something. `asks_login`: whether visitors log in."""
        self._templates = environment()
        self._templates.globals |= {"decides": decides, "asks_login": asks_login}

    def html(
        self, request: Request, template: str, view: object = None, status: HTTPStatus = HTTPStatus.OK, **fields: Any
    ) -> Response:
        """Return a page made from a view's fields and others."""
        base = str(request.scope.get("root_path", ""))
        path = request.url.path.removeprefix(base).strip("/")
        context = {
            "base": base,
            "path": path,
            "section": path.partition("/")[0],
            "alone": False,
            "status": status,
            "visitor": Visitor(principal_of(request)),
            "sent": {},
            "failed": None,
            "view": view,
        }
        if view is not None:
            context |= vars(view)
        html = self._templates.get_template(template).render(context | fields)
        return HTMLResponse(html.encode("utf-8", "replace"), status)


def environment() -> Environment:
    """Return the template environment: every printed value goes through `as_text`, and is then escaped."""
    env = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in ("plugins.page", *(each.package for each in sections()))]),
        autoescape=True,
        finalize=as_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "cut": cut,
        "number": number,
        "moment": moment,
        "usd": usd,
        "plain": plain,
        "clock": clock,
        "cell": partial(cell, as_sql=True),
        "path": path,
    }
    env.filters |= {"suite": suite_title, "commands": commands, "id_link": id_link}
    env.globals |= {"bar": chart.bar_width, "svg": chart.svg, "legend": chart.legend, "place_notes": PLACE_NOTES}
    env.globals["overs"] = OVER
    return env


def as_text(value: Any) -> Any:
    """Return a value as a template prints it; our own markup is kept."""
    if value is None:
        return ""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # which Markup has
        return visible(cut(value))
    return value


def number(value: Any, digits: int = 3) -> str:
    """Return a number as people read it; a dash for none.

    >>> number(1234567), number(0.123456), number(None)
    ('1,234,567', '0.123', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def plain(value: Any) -> str:
    """Return a value of a list as people read it: times to the second, names and figures without brackets.

    >>> plain("2026-11-21T14:30:21.524Z"), plain(["a", "b"]), plain({"train": 2}), plain(False)
    ('2026-11-21 14:30:21', 'a, b', 'train: 2', 'no')
    """
    match value:
        case str():
            return moment(value) if _TIME.fullmatch(value) else value
        case bool():
            return "yes" if value else "no"
        case float():
            return number(value)
        case list() if not any(isinstance(item, list | dict) for item in value):
            return ", ".join(map(plain, value))
        case dict() if not any(isinstance(item, list | dict) for item in value.values()):
            return ", ".join(f"{name}: {plain(item)}" for name, item in value.items() if item is not None)
        case _:
            return cell(value, as_sql=True)


def usd(value: float | None) -> str:
    """Return money in US dollars, and less than a cent in cents; a dash for none.

    >>> usd(2.5), usd(0.0000264), usd(0.0), usd(1234.5)
    ('2.50 USD', '0.0026 cents', '0 USD', '1,234.50 USD')
    """
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 0.01:
        return f"{value:,.2f} USD" if value else "0 USD"
    return f"{float(f'{100 * value:.2g}'):f}".rstrip("0") + " cents"


def moment(value: Any) -> str:
    """Return a time of the log to the second; a dash for none.

    >>> moment("2026-11-21T14:30:21.524Z")
    '2026-11-21 14:30:21'
    """
    return "–" if value is None else str(value).replace("T", " ")[:19]


def clock(value: int | None) -> str:
    """Return milliseconds since the epoch as `moment` does.

    >>> clock(1795271421524)
    '2026-11-21 14:30:21'
    """
    return moment(None if value is None else as_moment(value))


def commands(value: Any) -> Any:
    """Return a sentence with the parts in backticks as code.

    >>> commands("start `streamward train` & wait")
    Markup('start <code>streamward train</code> &amp; wait')
    """
    if value is None:
        return None
    parts = enumerate(as_text(str(value)).split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in parts)


def path(value: Any) -> str:
    """Return a value quoted for use in a URL path.

    >>> path("a/b&c")
    'a%2Fb%26c'
    """
    return quote(str(value), safe="")
