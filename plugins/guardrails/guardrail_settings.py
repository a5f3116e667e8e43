"""The settings of guardrails. By default nothing is looked at."""

from __future__ import annotations

from streams.settings.model import Section


class Guardrails(Section):
    """Which texts are looked at, for what, and what follows."""
