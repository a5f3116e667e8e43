"""The hosts and addresses that a connection may be made to, checked on the address that is connected to.

    URL ──► egress.hosts has its host? ──► name looked up once ──► every address allowed? ──► connect to one of these

The origin of a URL decides (UrlOrigin). A name is looked up once, and the connection is made to the addresses that were
checked, so that a second look-up cannot lead elsewhere. The check reads an address as a number: its spelling (decimal,
octal, hexadecimal) does not matter, and an IPv4 address within an IPv6 address counts as itself.

Not covered: a URL of the settings that goes through a proxy of the environment; the proxy connects then.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import httpcore2
import httpx2

from streams.egress import current_rule
from streams.errors import SettingsError

Address = IPv4Address | IPv6Address

INTERNAL = tuple(
    ip_network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1", "fc00::/7")
)
"""Loopback and the private networks of hosts and clusters (RFC 1918, 6598, 4193)."""
METADATA = frozenset(map(ip_address, ("100.100.100.200", "fd00:ec2::254")))
"""Clouds' metadata servers within INTERNAL; 169.254.169.254 is link-local."""
EMBEDS_IPV4 = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
"""NAT64 (RFC 6052, 8215) and IPv4-compatible addresses: the last 32 bits are an IPv4 address."""


class UrlOrigin(Enum):
    """Where a URL comes from, and with that the addresses it may lead to."""

    SETTINGS = "settings"
    """An operator's URL: any address, through the environment's proxy if it names one."""
    LISTED = "listed"
    """A server of others that an operator lists by URL: public and internal addresses, no metadata servers."""
    DATA = "data"
    """From an answer or an event: public addresses, and the networks of egress.private."""


class EgressRefused(httpx2.ConnectError):
    """A connection that the settings do not allow; a retry does not help."""


def check_host(host: str) -> None:
    """Raise EgressRefused if egress.hosts does not list a host."""
    allowed, name = current_rule().allowed_hosts, host.lower().rstrip(".")
    if allowed and not any(fnmatchcase(name, pattern) for pattern in allowed):
        raise EgressRefused(f"{host[:200]} is not connected to: egress.hosts lists {', '.join(allowed)}; add this host")


def require_host(url: str, origin: str) -> None:
    """Check the host of a URL that a library connects to. Raises SettingsError, which names the setting."""
    try:
        check_host(urlsplit(url).hostname or "")
    except EgressRefused as exc:
        raise SettingsError(f"{origin}={url}: {exc}") from exc


def addresses_of(host: str, port: int, reach: UrlOrigin) -> list[str]:
    """Return the addresses of a host, each of them allowed. Raises EgressRefused, OSError if it has none."""
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(place[4][0]) for place in places))
    for address in addresses:
        if reach is not UrlOrigin.SETTINGS and not is_allowed(address, reach):
            raise EgressRefused(
                f"{host[:200]} is not connected to: its address {address} is not public; if it may be connected to, "
                "add its network to egress.private"
            )
    return addresses


def is_allowed(text: str, reach: UrlOrigin) -> bool:
    """Return whether an address, as the resolver writes it, may be connected to."""
    address = _plain(ip_address(text.partition("%")[0]))
    if any(address in network for network in current_rule().private_networks):
        return True
    if address in METADATA:
        return False
    is_public = address.is_global and not address.is_multicast and not getattr(address, "is_site_local", False)
    return is_public or (reach is UrlOrigin.LISTED and any(address in network for network in INTERNAL))


def _plain(address: Address) -> Address:
    """Return the IPv4 address within an IPv6 address; another address as it is."""
    if isinstance(address, IPv4Address):
        return address
    teredo = address.teredo
    embedded = address.ipv4_mapped or address.sixtofour or (teredo and teredo[1])
    if embedded is None and int(address) > 1 and any(address in network for network in EMBEDS_IPV4):
        embedded = IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or address


# --- connections ------------------------------------------------------------------------------------------------------


class _CheckedBackend(httpcore2.SyncBackend):
    """Connects to the addresses that were checked."""

    def __init__(self, reach: UrlOrigin) -> None:
        self._reach = reach

    def connect_tcp(self, host: str, port: int, *rest: Any, **options: Any) -> httpcore2.NetworkStream:
        """Return the first connection that is accepted. Raises EgressRefused, httpcore2.ConnectError."""
        with _as_connect_error():
            addresses = addresses_of(host, port, self._reach)
        for address in addresses[:-1]:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return super().connect_tcp(address, port, *rest, **options)
        return super().connect_tcp(addresses[-1], port, *rest, **options)


class _CheckedAsyncBackend(httpcore2.AnyIOBackend):
    """Connects to the addresses that were checked."""

    def __init__(self, reach: UrlOrigin) -> None:
        self._reach = reach

    async def connect_tcp(self, host: str, port: int, *rest: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Return the first connection that is accepted. Raises EgressRefused, httpcore2.ConnectError."""
        with _as_connect_error():
            addresses = await anyio.to_thread.run_sync(addresses_of, host, port, self._reach)
        for address in addresses[:-1]:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await super().connect_tcp(address, port, *rest, **options)
        return await super().connect_tcp(addresses[-1], port, *rest, **options)


@contextmanager
def _as_connect_error() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise httpcore2.ConnectError(str(exc)) from exc


class CheckedTransport(httpx2.HTTPTransport):
    """httpx2's transport, which connects to checked addresses. It takes no proxy."""

    def __init__(self, reach: UrlOrigin, **options: Any) -> None:
        super().__init__(**options)
        self._pool._network_backend = _CheckedBackend(reach)


class CheckedAsyncTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport for coroutines, which connects to checked addresses. It takes no proxy."""

    def __init__(self, reach: UrlOrigin, **options: Any) -> None:
        super().__init__(**options)
        self._pool._network_backend = _CheckedAsyncBackend(reach)


def open_socket(url: str, reach: UrlOrigin, limit_s: float) -> socket.socket:
    """Return a connection to the host of a URL, for a WebSocket. Raises EgressRefused, OSError."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"ws": 80, "wss": 443}[parts.scheme]
    check_host(host)
    addresses = addresses_of(host, port, reach)
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), timeout=limit_s)
    return socket.create_connection((addresses[-1], port), timeout=limit_s)
