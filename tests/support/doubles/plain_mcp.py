"""An MCP server of the standard library alone, over stdin and stdout: the SDK's takes a second to start, this one none.

plain_mcp.py TOOL…         offers these of its tools; `search=FILE` is described as the file says
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def search(text: str) -> dict[str, Any]:
    """Find a text, and say what the process has of two variables."""
    return says(f"found {text} as {os.environ.get('SECRET', 'none')} with {os.environ.get('PASSED_ON', 'none')}")


def add(a: int, b: int) -> dict[str, Any]:
    """Add two numbers."""
    return says(str(a + b))


def pid() -> dict[str, Any]:
    """Say which process answers."""
    return says(str(os.getpid()))


def whereabouts() -> dict[str, Any]:
    """Give an object alone."""
    return {"content": [], "structuredContent": {"room": 3}}


def pour() -> dict[str, Any]:
    """Answer without an end."""
    while True:
        sys.stdout.write("x" * 65536)


def says(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (search, add, pid, whereabouts, pour)
}
KINDS = {"a": "integer", "b": "integer", "text": "string"}


def described(named: str) -> dict[str, Any]:
    """Return what is offered under `TOOL` or `TOOL=FILE`."""
    name, _, file = named.partition("=")
    function = FUNCTIONS[name]
    parameters = [parameter for parameter in KINDS if parameter in function.__annotations__]
    schema = {"type": "object", "properties": {each: {"type": KINDS[each]} for each in parameters}}
    about = Path(file).read_text() if file else function.__doc__
    return {"name": name, "description": about, "inputSchema": schema | {"required": parameters}}


def answer(method: str, parameters: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    match method:
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "plain", "version": "1"}}
            return {"result": {"protocolVersion": parameters["protocolVersion"], **about}}
        case "tools/list":
            return {"result": {"tools": tools}}
        case "tools/call":
            return {"result": FUNCTIONS[parameters["name"]](**parameters.get("arguments") or {})}
    return {"error": {"code": -32601, "message": "no"}}


if __name__ == "__main__":
    offered = list(map(described, sys.argv[1:]))
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            head = {"jsonrpc": "2.0", "id": request["id"]}
            print(json.dumps(head | answer(request["method"], request.get("params") or {}, offered)), flush=True)
