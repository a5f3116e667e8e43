"""The form on an entry's page that accepts its changed description."""

from __future__ import annotations

from plugins.tools.registry.tool_log import RegistryDecision, ToolLog
from streams.access.tenants.tenant_names import is_of
from streams.errors import NotFoundError
from streams.tools.views.log_view import LogReader
from streams.tools.views.view_section import SentForm


def accept_shown_tool(log: LogReader, form: SentForm, *, key: str) -> None:
    """Trust the description that the form was shown with.

    Raises SettingsError without a reason, NotFoundError for an entry that its sender does not see, RefusedError if it
    is described otherwise by now, LogError.
    """
    decision = RegistryDecision(log.actor, form.reason("reason"))
    if not is_of(log.rights.tenant, key):
        raise NotFoundError(f"there is no entry {key[:140]!r}")
    with ToolLog(log.view.settings) as tools:
        tools.accept(key, form.word("expected"), decision)
