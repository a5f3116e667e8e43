"""One page as a file that opens from disk: a task or a policy, with its style inside and nothing to fetch.

TASK or POLICY ──► rows ──► the same templates, without links and scripts ──► FILE.html
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gateway.page.app import STATIC, environment
from streams.errors import NotFoundError, SettingsError
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.views import policy_versions as policies, task as tasks
from streams.tools.views.log_view import LogView, Look


def write(settings: Settings, source: Source, name: str, out: Path) -> str:
    """Write a task's page, or a policy's, and return which it was.

    Raises NotFoundError if the log knows neither, SettingsError if the file cannot be written, LogError.
    """
    with closing(LogView(settings, source)) as view, view.look() as look:
        what, template, data = _found(look, name)
        style = Markup(_stylesheet())  # noqa: S704 - a file of ours
        page = environment().get_template(template)
        html = page.render(base="", here="", alone=True, query={}, stylesheet=style, at=look.at, failed=None, **data)
    try:
        out.write_bytes(html.encode("utf-8", "replace"))
    except OSError as exc:
        raise SettingsError(f"--out {out}: {exc}. Name a file in a folder that can be written") from exc
    return what


def _found(look: Look, name: str) -> tuple[str, str, dict[str, Any]]:
    """Return what is called so: kind, template and data. A task is looked for first."""
    try:
        return "task", "task.html", tasks.as_shown(tasks.one(look, name))
    except NotFoundError:
        pass
    try:
        return "policy", "policy.html", policies.one(look, name)
    except NotFoundError as exc:
        raise NotFoundError(f"the log knows no task {name[:80]!r}, and {exc}") from exc


def _stylesheet() -> str:
    return (STATIC / "page.css").read_text(encoding="utf-8")
