"""Agents and clients of others, unchanged but for address and model: what they say, and what the log has of them.

    program ──► OPENAI_BASE_URL = proxy ──► server ──► turns
                                    └──► frameworks.jsonl.xz ──► asked again in `make test`, in order

What a framework sends back has ids of earlier answers, of tool calls and responses. When it is asked again, today's ids
take their places: the n-th of an answer then is the n-th of the answer now. Long texts, such as the system prompts of
command line agents, are kept without their middle: their words are others', and change no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from schemas.events import Turn, derive_id
from streams.kafka.node import jvm
from streams.settings.model import Settings
from tests.strangers.exchanges import shape_of
from tests.strangers.proxy import Exchange
from tests.strangers.replay import UUID
from tests.support import java
from tests.support.agent_server import CALCULATOR, settings_of

HERE = Path(__file__).parent
FILE, FINDINGS = HERE / "frameworks.jsonl.xz", HERE / "findings.json"
OPENAI_JAVA = java.Jar("com.openai", "openai-java", "4.101.0")
HOME = "/home/ann"
"""In bodies, in the place of the folder of a run."""
ALONE = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
}
"""Nothing of this is part of a call; without it, a program tries to reach hosts of its maker."""
LONG, KEPT = 400, 100
"""Characters of a text that is shortened, and of its beginning and its end, which are kept."""


def calls(tool: str, **arguments: Any) -> str:
    """Return the answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


REPLIES = {
    "Hand me over:": calls("transfer_to_calculator"),
    'tool: {"assistant": "Calculator"}': calls("calc", a=47, b=83),
    "Ask somebody:": calls("ask_calculator", question="What is 47 * 83?"),
    "tool: It is 3901.": "I asked: it is 3901.",
    # smolagents
    "Compute 47 * 83.": "<code>\nprint(calc(a=47, b=83))\n</code>",
    "Execution logs:\n3901": "<code>\nfinal_answer('It is 3901.')\n</code>",
    "Say it again.": "<code>\nfinal_answer('It was 3901.')\n</code>",
    "Multiply 47 by 83.": calls("calc", a=47, b=83),
    "Observation:\n3901": calls("final_answer", answer="It is 3901."),
    "Answer again.": calls("final_answer", answer="It was 3901."),
    # Claude Code, Codex and Aider
    "Run: echo 3901": calls("Bash", command="echo 3901", description="Print a number"),
    "Write the title in the language": '{"title": "Print a number"}',
    "Execute: echo 3901": calls("exec_command", cmd="echo 3901"),
    "Output:\n3901": "It is 3901.",
    "Write 47 * 83 into sum.txt.": "sum.txt\n```\n3901\n```",
    "+3901": "Write the product",
    # promptfoo
    "Answer in a sentence.": "It is 3901.",
    "Answer with a number alone.": "3901",
}
"""What the model says to what comes last of these in a conversation; besides the replies of the calculator."""


def settings(bootstrap: str, folder: Path) -> Settings:
    """Return settings of a server that these programs can use as they are."""
    replies = [*CALCULATOR["replies"], *({"when": when, "reply": reply} for when, reply in REPLIES.items())]
    script = {"context_tokens": 1_000_000, "replies": replies}
    return settings_of(bootstrap, folder, script, model_names="claude-*")


def programs(home: Path) -> dict[str, list[str]]:
    """Return the command of each run, with what `make test-strangers` installed at `home`."""
    python, node = str(home / "bin" / "python"), str(home / "node")
    older = str(home / "openai2" / "bin" / "python")

    def program(name: str, *arguments: str, python: str = python) -> list[str]:
        return [python, str(HERE / "frameworks" / name), *arguments]

    def script(name: str, *arguments: str, runner: str) -> list[str]:
        return [runner, str(HERE / "frameworks" / name), node, *arguments]

    return {
        "openai-agents": program("openai_agents.py", "responses"),
        "openai-agents-chat": program("openai_agents.py", "chat_completions"),
        "pydantic-ai": program("pydantic_ai_delegation.py"),
        "openai-node": script("openai_node.mjs", runner="node"),
        "openai-go": [str(home / "openai-go")],
        "openai-java": java_program(home / "java"),
        "codex": script("codex_cli.sh", runner="sh"),
        "claude-code": script("claude_code.sh", runner="sh"),
        "aider": program("aider_edit.py", python=str(home / "aider" / "bin" / "python")),
        "smolagents-code": program("smolagents_agent.py", "code"),
        "smolagents-calls": program("smolagents_agent.py", "calls"),
        **{f"langgraph-{api}": program("langgraph_react.py", api) for api in ("chat", "responses", "messages")},
        "autogen": program("autogen_chat.py"),
        "crewai": program("crewai_crew.py", python=older),
        **{f"litellm-{api}": program("litellm_sdk.py", api) for api in ("openai", "anthropic")},
        "llama-index": program("llama_index_agent.py", python=older),
        **{
            f"vercel-{provider}": script("vercel_ai.mjs", provider, runner="node")
            for provider in ("default", "chat", "compatible", "anthropic")
        },
        "promptfoo": script("promptfoo_eval.mjs", runner="node"),
    }


def java_program(folder: Path) -> list[str]:
    """Compile the program of the Java SDK in a folder, and return its command."""
    folder.mkdir(exist_ok=True)
    jars = map(str, java.fetched_with_dependencies(OPENAI_JAVA))
    source = (HERE / "frameworks" / "openai_java" / "OpenaiJava.java").read_text(encoding="utf-8")
    return [str(jvm.java()), "-cp", java.compiled_with(list(jars), source, "OpenaiJava", folder), "OpenaiJava"]


def path_of(name: str) -> str:
    """Return where the calls of a run go."""
    return f"/agents/{name}/trajectories/{derive_id(name)}/v1"


def said_by(command: list[str], base: str, model: str, folder: Path) -> list[str]:
    """Return what a program prints, in a folder of its own. Raises CalledProcessError if it fails."""
    folder.mkdir()
    addresses = {"OPENAI_BASE_URL": base, "OPENAI_API_BASE": base, "ANTHROPIC_BASE_URL": base.removesuffix("/v1")}
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
    models = {"OPENAI_DEFAULT_MODEL": model, "OPENAI_MODEL_NAME": model}
    env = {**os.environ, **addresses, **keys, **models, **ALONE, "HOME": str(folder)}
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
    return list(dict.fromkeys(UUID.findall(answer)))


def in_order(exchanges: Iterable[Exchange], folder: Path) -> list[dict[str, Any]]:
    """Return what is kept of the exchanges in a folder: all requests, in order, and the shapes of the answers."""
    return [
        {
            "method": each.method,
            "path": urlsplit(each.path).path,
            "body": json.dumps(shortened(json.loads(each.body.replace(str(folder), HOME)))) if each.body else "",
            "ids": ids(each.answer),
            "status": each.status,
            "shape": shape_of(each.kind, each.answer),
        }
        for each in exchanges
    ]


def shortened(body: Any) -> Any:
    """Return JSON without the middle of its long texts."""
    if isinstance(body, dict):
        return {name: shortened(value) for name, value in body.items()}
    if isinstance(body, list):
        return [shortened(value) for value in body]
    if isinstance(body, str) and len(body) > LONG:
        return f"{body[:KEPT]} … {body[-KEPT:]}"
    return body
