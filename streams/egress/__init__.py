"""Connections to servers outside of the loop, the rule that bounds them, and the trace that they are made in.

    section egress of the settings ──► EgressRule, read once ──► address_guard.py checks each connection
    within_trace ──► trace_headers ──► each request of http_client.py, the handshake of a WebSocket

Importing this package does not import the settings: workers of environments start without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING

from streams.settings.name_lists import split_names

if TYPE_CHECKING:
    from streams.settings.model import Egress


@dataclass(frozen=True)
class EgressRule:
    """Hosts and networks that may be connected to, as the section egress has them."""

    hosts: str = ""
    private: str = ""

    @cached_property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Patterns of the hosts that may be connected to; none: all may."""
        return tuple(host.lower().strip("[]") for host in split_names(self.hosts))

    @cached_property
    def private_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks that may be connected to although they are not public."""
        return tuple(map(ip_network, split_names(self.private)))


_rule = EgressRule()
_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


def use_egress(rule: Egress | EgressRule) -> None:
    """Apply this section to all later connections of this process."""
    global _rule
    _rule = EgressRule(rule.hosts, rule.private)


def current_rule() -> EgressRule:
    """Return the rule that applies."""
    return _rule


@contextmanager
def within_trace(traceparent: str | None) -> Iterator[None]:
    """Send this W3C trace context with each request that the block makes; None: send none.

    Coroutines and `asyncio.to_thread` inherit it; other threads do not.
    """
    token = _traceparent.set(traceparent)
    try:
        yield
    finally:
        _traceparent.reset(token)


def trace_headers() -> dict[str, str]:
    """Return the header of the trace that this code runs in; none without one."""
    traceparent = _traceparent.get()
    return {} if traceparent is None else {"traceparent": traceparent}
