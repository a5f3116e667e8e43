"""Keys in the log of a test. It is skipped where no plugin knows keys."""

from __future__ import annotations

from typing import Any

import pytest

from streams.settings.model import Settings


def open_keys(settings: Settings) -> Any:
    """Return the keys of a log, to create and revoke some. Use as a context manager."""
    return pytest.importorskip("plugins.people.access.access_log").AccessLog(settings)
