"""Which hosts and addresses a connection may be made to, and that no other address is connected to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx2
import pytest

from plugins.environments.adapters.openenv_env import OpenEnvEnvironment
from plugins.environments.adapters.single_tool_env import UrlTool
from plugins.environments.episodes.environment import EpisodeError
from streams import egress
from streams.egress.address_guard import EgressRefused, UrlOrigin, addresses_of, is_allowed, open_socket, require_host
from streams.egress.http_client import fetch, new_async_client, new_client
from streams.errors import SettingsError
from streams.settings.model import Egress
from tests.support.doubles.loopback_http import serving

PLACES = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd00::1", "::ffff:10.0.0.1")
NEVER = (
    "169.254.169.254", "0.0.0.1", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "fe80::1", "fe80::1%lo",
    "fec0::1", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe", "::ffff:0:0", "2002:a9fe:a9fe::1", "::a9fe:a9fe",
)  # fmt: skip
EMBEDDED = ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "::7f00:1")


@pytest.fixture(autouse=True)
def no_rule() -> Iterator[None]:
    yield
    egress.use_egress(Egress())


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback, and the hosts of the requests that it gets; /away redirects to itself by another name."""
    hosts: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["Host"])
            self.send_response(302 if self.path == "/away" else 200)
            self.send_header("Location", "http://169.254.169.254/")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with serving(Answers) as address:
        yield address, hosts


def name_of(monkeypatch: pytest.MonkeyPatch, *addresses: list[str]) -> list[str]:
    """Let `tool.test` have other addresses at each look-up; return the list of its look-ups."""
    looked, real = [], socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **options: Any) -> list[Any]:
        if host not in ("tool.test", b"tool.test"):
            return real(host, port, *rest, **options)
        looked.append(host)
        now = addresses[min(len(looked), len(addresses)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in now]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return looked


def get(reach: UrlOrigin, url: str) -> tuple[int, bytes]:
    with new_client(reach) as client:
        return fetch(client, "GET", url, limit_s=5.0, most_bytes=1000)


def test_public_addresses_are_allowed_whoever_names_them() -> None:
    for address in ("1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"):
        assert is_allowed(address, UrlOrigin.DATA) and is_allowed(address, UrlOrigin.LISTED), address


def test_private_addresses_are_for_listed_urls_alone() -> None:
    for address in PLACES + EMBEDDED:
        assert is_allowed(address, UrlOrigin.LISTED), address
        assert not is_allowed(address, UrlOrigin.DATA), address


def test_metadata_servers_and_addresses_of_no_host_are_never_connected_to() -> None:
    for address in NEVER:
        assert not is_allowed(address, UrlOrigin.LISTED) and not is_allowed(address, UrlOrigin.DATA), address


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "::ffff:127.0.0.1", "localhost"]
)
def test_the_spelling_of_an_address_does_not_matter(host: str) -> None:
    with pytest.raises(EgressRefused, match=r"is not public; .* egress\.private"):
        addresses_of(host, 80, UrlOrigin.DATA)
    assert addresses_of(host, 80, UrlOrigin.LISTED)


def test_networks_of_egress_private_are_allowed() -> None:
    egress.use_egress(Egress(private="127.0.0.0/8, fd00::/8"))
    assert is_allowed("127.0.0.1", UrlOrigin.DATA) and is_allowed("::ffff:127.0.0.1", UrlOrigin.DATA)
    assert is_allowed("fd00::1", UrlOrigin.DATA) and not is_allowed("10.0.0.1", UrlOrigin.DATA)


def test_the_address_that_was_checked_is_connected_to(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look-up would lead to the metadata server."""
    port = server[0].rpartition(":")[2]
    looked = name_of(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
    assert get(UrlOrigin.LISTED, f"http://tool.test:{port}/")[0] == 200
    assert len(looked) == 1 and server[1] == [f"tool.test:{port}"]
    with pytest.raises(EgressRefused, match=r"169\.254\.169\.254 is not public"):
        get(UrlOrigin.LISTED, f"http://tool.test:{port}/")


def test_a_name_with_one_address_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name_of(monkeypatch, ["1.1.1.1", "169.254.169.254"])
    with pytest.raises(EgressRefused):
        get(UrlOrigin.DATA, "http://tool.test/")


def test_the_next_address_is_tried_if_one_does_not_answer(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name_of(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    assert get(UrlOrigin.LISTED, f"http://tool.test:{server[0].rpartition(':')[2]}/")[0] == 200


def test_coroutines_and_sockets_are_checked_alike(server: tuple[str, list[str]]) -> None:
    async def status(reach: UrlOrigin) -> int:
        async with new_async_client(reach, most_bytes=1000) as client:
            return (await client.get(f"http://{server[0]}/")).status_code

    assert asyncio.run(status(UrlOrigin.LISTED)) == 200
    with pytest.raises(EgressRefused):
        asyncio.run(status(UrlOrigin.DATA))
    open_socket(f"ws://{server[0]}/ws", UrlOrigin.LISTED, 5.0).close()
    with pytest.raises(EgressRefused):
        open_socket(f"ws://{server[0]}/ws", UrlOrigin.DATA, 5.0)


def test_a_redirect_is_not_followed(server: tuple[str, list[str]]) -> None:
    for reach in (UrlOrigin.SETTINGS, UrlOrigin.LISTED):
        assert get(reach, f"http://{server[0]}/away")[0] == 302
    assert len(server[1]) == 2


def test_hosts_that_are_not_listed_are_not_connected_to(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    egress.use_egress(Egress(hosts="127.0.0.1, *.example.com"))
    assert get(UrlOrigin.SETTINGS, f"http://{server[0]}/")[0] == 200
    for proxy in ("", f"http://{server[0]}"):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with pytest.raises(EgressRefused, match=r"egress\.hosts lists 127\.0\.0\.1, \*\.example\.com; add this host"):
            get(UrlOrigin.SETTINGS, "http://other.test/")
    assert len(server[1]) == 1
    require_host("https://a.EXAMPLE.com./x", "tracing.otlp_endpoint")
    for url in ("https://example.com.evil.test", "https://evilexample.com"):
        with pytest.raises(SettingsError, match=r"tracing\.otlp_endpoint=https.*egress\.hosts"):
            require_host(url, "tracing.otlp_endpoint")


@pytest.mark.parametrize("wrong", [{"hosts": "https://x.test"}, {"hosts": "x.test:80"}, {"private": "10.0.0.1/8"}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"expected|write it without"):
        Egress(**wrong)


def test_tools_and_environments_go_this_way_out(server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    name_of(monkeypatch, ["169.254.169.254"])
    tool = UrlTool("http://tool.test/", description="d")
    with contextlib.closing(tool), pytest.raises(EpisodeError, match="is not public"):
        tool._invoke("call", {})
    with pytest.raises(EpisodeError, match="is not public"):
        OpenEnvEnvironment("http://tool.test")
    with pytest.raises(httpx2.ConnectError, match="is not public"):
        get(UrlOrigin.LISTED, "http://tool.test/")
