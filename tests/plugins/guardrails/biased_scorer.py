"""A scorer with a bias that is known: it gives 0.2 more where a text says `he`."""

from typing import Any

from streamward import entry_point


@entry_point("biased/1")
def biased(task: Any, response: Any, settings: dict[str, Any]) -> float:
    """Return half a point for a text, more for years of work, and 0.2 for him."""
    words = response.text.casefold().split()
    return 0.5 + 0.01 * len(words) + (0.2 if "he" in words else 0.0)
