"""Export the page of a task or a policy as one self-contained HTML file.

TASK or POLICY ──► its view ──► the same templates, without links and scripts ──► FILE.html
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from markupsafe import Markup

from plugins.page.app import STATIC, find_task_page
from plugins.page.render import environment
from plugins.page.token_texts import texts_of
from plugins.page.views.policy_versions import PolicyChoice, find_policy
from streams.errors import NotFoundError, SettingsError
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.views.log_view import LogSnapshot, LogView


def write(settings: Settings, source: Source, name: str, out: Path) -> str:
    """Write the page of a task or a policy; return which of the two it was.

    Raises NotFoundError if the log has neither, SettingsError if the file cannot be written, LogError.
    """
    with closing(LogView(settings, source)) as log, log.snapshot() as snapshot:
        kind, view = _find(snapshot, name)
        style = Markup((STATIC / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - a file of ours
        template = environment().get_template(f"{kind}.html")
        html = template.render(base="", alone=True, stylesheet=style, as_of=snapshot.as_of, **vars(view))
    try:
        out.write_bytes(html.encode("utf-8", "replace"))
    except OSError as exc:
        raise SettingsError(f"--out {out}: {exc}. Name a file in a folder that can be written") from exc
    return kind


def _find(log: LogSnapshot, name: str) -> tuple[str, object]:
    """Return whether a name is a task or a policy, and its view. Tasks are searched first."""
    try:
        return "task", find_task_page(log, name, texts_of(log.view.settings))
    except NotFoundError:
        pass
    try:
        return "policy", find_policy(log, name, PolicyChoice(at_once=True))
    except NotFoundError as exc:
        raise NotFoundError(f"the log knows no task {name[:80]!r}, and {exc}") from exc
