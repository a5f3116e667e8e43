"""A scorer of the plants: whether an answer is in another language."""

from __future__ import annotations

from typing import Any

import streamward


@streamward.entry_point("german/1")
def german(task: Any, response: Any, settings: dict[str, Any]) -> float:
    """Return 1 if a word of the answer is German."""
    return float("der" in response.text)
