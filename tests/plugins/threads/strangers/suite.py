"""What langgraph-sdk, a2a-sdk, MCP's client and schemathesis make of threads and runs, and requests for `make test`.

    langgraph_program.py ──► proxy ──► /acp ──► what it read
                               └─► requests, answers, ids by number ──► exchanges.jsonl.xz
    a2a_program.py ──► proxy ──► /a2a/default ──► the same, in a2a.jsonl.xz
    acting_program.py ──► proxy ──► agents with tools, by /acp, /a2a and /mcp/policy ──► the same, in acting.jsonl.xz
    openapi.json, the protocol's own (MIT, LICENSE) ──► schemathesis ──► checks that failed

Two kinds of those are to stay, and findings.json has them: null is absent here as at every entrance, where the document
has no null, and the document says that a stream that is joined is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import AGENTS, register_agents, with_tools
from tests.strangers import exchanges
from tests.strangers.described import TRUE, Failed, read_by, schemathesis
from tests.strangers.proxy import Exchange, between
from tests.strangers.replay import UUID
from tests.strangers.stage import Findings, Stage, Suite
from tests.support.agent_server import serving

FOLDER = Path(__file__).parent
FINDINGS = FOLDER / "findings.json"
DOCUMENT, FILE, A2A_FILE = FOLDER / "openapi.json", FOLDER / "exchanges.jsonl.xz", FOLDER / "a2a.jsonl.xz"
ACTING_FILE = FOLDER / "acting.jsonl.xz"
SENT_AGAIN = ("a2a-version", "accept", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name")
"""Headers that a recorded request keeps."""
ANOTHER = re.compile(r"(Test Case ID: \w+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z)")
"""What is another one in each run."""


def threads(stage: Stage) -> Findings:
    """Walk through threads, runs and the store with langgraph-sdk, then by the document with schemathesis."""
    with stage.server() as server:
        with between(server) as (url, exchanged):
            walked = read_by(FOLDER / "langgraph_program.py", f"{url}/acp")
        checked = described(server, stage.folder)
    stage.recordings[FILE] = in_order(exchanged)
    return {"langgraph-sdk": walked, "agent protocol": checked}


def a2a(stage: Stage) -> Findings:
    """Call an agent with a2a-sdk."""
    with stage.server() as server, between(server) as (url, exchanged):
        found = read_by(FOLDER / "a2a_program.py", url)
    stage.recordings[A2A_FILE] = in_order(exchanged)
    return {"a2a-sdk": found}


def acting(stage: Stage) -> Findings:
    """Run agents with tools and child agents, by the clients of three protocols."""
    with with_tools(stage.bootstrap, stage.folder, AGENTS) as tools, serving(tools.settings) as server:
        register_agents(Client(server, {}))
        with between(server) as (url, exchanged):
            found = read_by(FOLDER / "acting_program.py", url)
    stage.recordings[ACTING_FILE] = in_order(exchanged)
    return {"agents that act": found}


def described(url: str, folder: Path) -> Failed:
    """Return which checks of the protocol's document fail, by operation, each once."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    failed = schemathesis(f"{url}/acp", folder, document, "--checks", ",".join((*TRUE, "negative_data_rejection")))
    return {name: sorted({_rule(text) for text in texts}) for name, texts in failed.items()}


def _rule(text: str) -> str:
    """Return which rule a check says is broken, and where."""
    found = re.search(r"ST\d+|Undocumented Content-Type|Schema-violating request accepted", text)
    component = re.search(r"Invalid component: ([\w -]+)", text)
    return " ".join(
        part for part in (found[0] if found else ANOTHER.sub("…", text)[:80], component[1] if component else "") if part
    ).strip()


def in_order(said: Iterable[Exchange]) -> list[dict[str, Any]]:
    """Return requests in their order; an id that an answer gave is there as the number of its first place."""
    numbers: dict[str, str] = {}
    recorded = []
    for each in said:
        path, body = (_numbered(text, numbers) for text in (each.path, each.body))
        recorded.append(
            {
                "method": each.method,
                "path": path,
                "headers": {name: value for name, value in each.headers.items() if name in SENT_AGAIN},
                "body": body,
                "status": each.status,
                "shape": exchanges.shape_of(each.kind, each.answer),
            }
        )
        _number(each.answer, numbers)
    return recorded


def _numbered(text: str, numbers: dict[str, str]) -> str:
    """Return a text with the numbers of ids in their places."""
    return UUID.sub(lambda match: numbers.get(match[0], match[0]), text)


def _number(answer: str, numbers: dict[str, str]) -> None:
    for uuid in UUID.findall(answer):
        numbers.setdefault(uuid, f"{{id {len(numbers)}}}")


SUITES = {name: Suite(run, FINDINGS) for name, run in (("threads", threads), ("a2a", a2a), ("acting", acting))}
