"""Tools of our MCP server: what a list and a call take over the work, the same request to the route that answers it.

    POST /mcp tools/list ──► the tools that the caller may call       over: GET /auth/permissions, which decides that
    POST /mcp tools/call ──► the tool's route, with the caller's key  over: the same body to that route

Requests of both ways alternate, each over a connection that is kept; the tool scores two texts with `exact`. Server
and broker are those of `streamward serve` on the scripted engine, without keys: /auth/permissions is 404 there, and the
list has every tool.

Not covered: many callers at once, and a client's own time.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.mcp.log_toolbox import PERMISSIONS
from streams.processes.child import free_port
from streams.settings.model import Serve
from tests.benchmarks import local_http
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import LEAST_S, line, say
from tests.support.processes import until

CALLS, WARM_UP = 300, 100
AIM_S = 0.002
SCORE = {"scorer": "exact", "texts": ["11", "12"], "answer": 11}
ACCEPT = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
}


def run() -> Iterator[dict[str, Any]]:
    """Yield what a list of the tools and a call of one add to the work, in seconds."""
    say(f"tools: {CALLS} lists and calls, each in turn with the request that it stands for")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as made:
        settings = made.model_copy(
            update={
                "policy": made.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "adapters": made.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
                "serve": Serve(port=free_port()),
            }
        )
        with process("streams.cli", "serve", settings=settings):
            port = settings.serve.port
            until(lambda: local_http.answers(port), f"an answer at port {port}")
            with closing(local_http.connection(port)) as tools, closing(local_http.connection(port)) as routes:
                seconds = _seconds(tools, routes)
    for name, route in (("list", "GET /auth/permissions"), ("call", "POST /score")):
        bare, ours = (statistics.median(seconds[f"{name} by {way}"]) for way in ("route", "tool"))
        added = max(ours - bare, LEAST_S)
        yield line(
            "tools", f"p50 of tools/{name}, over {route}", ours=added, peer=AIM_S, unit="s", ratio=AIM_S / added,
            target=1.0, peer_is="the aim", route_s=round(bare, 5), tool_s=round(ours, 5), calls=CALLS,
        )  # fmt: skip


def _seconds(tools: http.client.HTTPConnection, routes: http.client.HTTPConnection) -> dict[str, list[float]]:
    """Return how long each request took, seconds."""
    call = {"name": "score", "arguments": SCORE}
    requests = {
        "list by route": (routes, "GET", PERMISSIONS, None),
        "list by tool": (tools, "POST", "/mcp", _message("tools/list", {})),
        "call by route": (routes, "POST", "/score", SCORE),
        "call by tool": (tools, "POST", "/mcp", _message("tools/call", call)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in requests}
    for number in range(WARM_UP + CALLS):
        for name, (connection, method, path, body) in requests.items():
            mark = time.perf_counter()
            status = 404 if path == PERMISSIONS else 200  # without keys
            answer = local_http.send(connection, method, path, body, headers=ACCEPT, status=status)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - mark)
            if path == "/mcp" and ("error" in answer or answer["result"].get("isError")):
                raise ValueError(f"{name}: {json.dumps(answer)[:500]}")
    return seconds


def _message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
