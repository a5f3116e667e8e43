"""The form of a request: names and values, as browsers encode them.

request ──► application/x-www-form-urlencoded, MAX_BYTES at most ──► SentForm
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from gateway.http.intake import Intake
from streams.errors import SettingsError

MAX_BYTES = 64 * 1024
MAX_FIELDS = 20
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
