"""Comma separated lists of names, as settings have them. Imports nothing, for processes without the other settings."""

from __future__ import annotations


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
