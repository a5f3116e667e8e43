"""Agents in frameworks of others, unchanged but for environment variables: what they say, and what the log has of them.

    program ──► OPENAI_BASE_URL = proxy ──► server ──► turns
                                    └──► frameworks.jsonl.xz ──► asked again in `make test`, in order

What a framework sends back has ids of earlier answers, of tool calls and responses. When it is asked again, today's ids
take their places: the n-th of an answer then is the n-th of the answer now.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from schemas.events import Turn, derive_id
from tests.strangers.exchanges import shape_of
from tests.strangers.proxy import Exchange

HERE = Path(__file__).parent
FILE, FINDINGS = HERE / "frameworks.jsonl.xz", HERE / "findings.json"
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def programs(home: Path) -> dict[str, list[str]]:
    """Return the command of each run, with what `make test-strangers` installed at `home`."""
    python, source = str(home / "bin" / "python"), HERE / "frameworks"
    return {
        "openai-agents": [python, str(source / "openai_agents.py"), "responses"],
        "openai-agents-chat": [python, str(source / "openai_agents.py"), "chat_completions"],
        "pydantic-ai": [python, str(source / "pydantic_ai_delegation.py")],
        "openai-node": ["node", str(source / "openai_node.mjs"), str(home / "node")],
    }


def path_of(name: str) -> str:
    """Return where the calls of a run go."""
    return f"/agents/{name}/trajectories/{derive_id(name)}/v1"


def said_by(command: list[str], base: str, model: str, folder: Path) -> list[str]:
    """Return what a program prints. Raises CalledProcessError if it fails."""
    told = {"OPENAI_BASE_URL": base, "OPENAI_API_KEY": "none", "OPENAI_DEFAULT_MODEL": model}
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "HOME": str(folder)}
    env = {**os.environ, **told, **quiet}
    ended = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
    )
    return ended.stdout.splitlines()


def tree(turns: Iterable[Turn]) -> list[str]:
    """Return what each call of a run is, and which one it continues: "1 extends 0"."""
    found = list(turns)
    numbers = {turn.turn_id: turn.number for turn in found}
    return [
        f"{turn.number} {turn.continuity}" + ("" if turn.parent_id is None else f" {numbers[turn.parent_id]}")
        for turn in found
    ]


def ids(answer: str) -> list[str]:
    """Return the ids in an answer, each once."""
    return list(dict.fromkeys(ID.findall(answer)))


def in_order(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """Return what is kept of the exchanges: all requests, in their order, and the shapes of the answers."""
    return [
        {
            "method": each.method,
            "path": urlsplit(each.path).path,
            "body": each.body,
            "ids": ids(each.answer),
            "status": each.status,
            "shape": shape_of(each.kind, each.answer),
        }
        for each in exchanges
    ]
