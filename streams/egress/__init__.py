"""Connections to servers outside of the loop, and the section of the settings that bounds them."""

from __future__ import annotations

from streams.settings.model import Egress

_rule = Egress()


def use_egress(rule: Egress) -> None:
    """Apply this section to all later connections of this process."""
    global _rule
    _rule = rule


def current_rule() -> Egress:
    """Return the section that applies."""
    return _rule
