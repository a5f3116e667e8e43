"""The form of a request: names and values, as browsers encode them.

request ──► application/x-www-form-urlencoded, MAX_BYTES at most ──► SentForm
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from gateway.http.intake import Intake
from streams.errors import SettingsError
from streams.tools.views.view_section import SentForm

MAX_BYTES = 64 * 1024
MAX_FIELDS = 20


async def read_form(request: Request) -> SentForm:
    """Return the fields of a form. Raises SettingsError if it cannot be parsed, CallError if it is too long or late."""
    raw = await Intake(max_bytes=MAX_BYTES).body(request)
    try:
        return SentForm(
            parse_qsl(
                raw.decode(),
                keep_blank_values=True,
                strict_parsing=bool(raw),
                max_num_fields=MAX_FIELDS,
                errors="strict",
            )
        )
    except ValueError as exc:
        raise SettingsError(f"this is not what a form of the page sends: {exc}") from exc
