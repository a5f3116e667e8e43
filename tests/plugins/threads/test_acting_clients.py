"""Agents that act, as other people's clients meet them, and as a key that may not call them does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.authentication import Authentication
from gateway.http.principal import decide_at_door
from gateway.log.run_tools import rights_of
from schemas.events import ThreadEvent
from streams.access.roles import ROLES, allowed_to
from streams.kafka import admin
from tests.plugins.threads.strangers import suite
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import AGENTS, ToolServer, register_agents, with_tools
from tests.strangers import exchanges
from tests.strangers.replay import differences
from tests.support.agent_server import audited
from tests.support.callers import Known
from tests.support.commands import invoke
from tests.support.log.keys import open_keys
from tests.support.processes import read
from tests.unit.test_denied_everywhere import REVISION, Principal, each_principal

QUESTION = "weather in Ulm?"
Asks = Callable[[ToolServer, Client], str]
"""Returns all that a caller reads who asks the agent `host` for the weather."""


@pytest.mark.kafka
def test_clients_of_three_protocols_get_the_answers_that_they_got_when_their_requests_were_recorded(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    recorded = exchanges.recorded(suite.ACTING_FILE)
    with with_tools(kafka_bootstrap, tmp_path, AGENTS) as tools, audited(tools.settings) as url:
        register_agents(Client(url, {}))
        with httpx.Client(base_url=url, timeout=300) as client:
            assert differences(client, recorded, settled=_first) == []
        assert tools.made().count("book Lamb") == 6, "each consent was one call"
    paths = {each["path"].split("/")[1] for each in recorded}
    assert paths == {"acp", "a2a", "mcp"} and len(recorded) > 40


def _first(shape: Any) -> Any:
    """Return the shape of an answer; of a task's stream, the kind of its first event: the others depend on the time."""
    frame = shape[0][1] if isinstance(shape, list) and shape and isinstance(shape[0], list) else None
    return list(frame["result"]) if isinstance(frame, dict) and "task" in frame.get("result", {}) else shape


# --- a key that may not call a model calls no tool --------------------------------------------------------------------


@each_principal
def test_a_run_is_denied_its_tools_in_the_words_in_which_its_caller_is_denied_a_call(principal: Principal) -> None:
    auth, key = Authentication(principals=principal.known), principal.known.key
    for agent in ("calc", "other"):
        decision = decide_at_door(key, "chat.call", agent)
        assert rights_of(auth, key.who, agent).denied == (None if decision.allowed else decision.why)


def test_a_run_of_a_caller_who_is_gone_is_denied_its_tools() -> None:
    denied = rights_of(Authentication(principals=Known("admin")), "key 0000", "host").denied
    assert denied == "key 0000 is no key and no user"


def by_acp(_: ToolServer, client: Client) -> str:
    return client.ask("POST", "/acp/runs/wait", {"agent_id": "host", "input": QUESTION}).text


def by_acp_stream(_: ToolServer, client: Client) -> str:
    return client.ask("POST", "/acp/runs/stream", {"agent_id": "host", "input": QUESTION}).text


def by_a2a(_: ToolServer, client: Client) -> str:
    message = {"messageId": client.headers["x-api-key"], "role": "ROLE_USER", "parts": [{"text": QUESTION}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    versioned = Client(client.url, {**client.headers, "A2A-Version": "1.0"})
    return versioned.ask("POST", "/a2a/host", body).text


def by_tool(_: ToolServer, client: Client) -> str:
    call = {"name": "run_agent", "arguments": {"agent_id": "host", "input": QUESTION}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {**client.headers, "accept": "application/json", "mcp-protocol-version": REVISION}
    return Client(client.url, headers).ask("POST", "/mcp/policy", body).text


def by_chat(server: ToolServer, client: Client) -> str:
    key = client.headers["x-api-key"]
    return invoke(server.settings, "agents", "chat", "host", "--key", key, input=QUESTION).output


def test_a_role_that_may_not_call_a_model_calls_no_tool_by_whichever_entrance(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, AGENTS, auth="keys") as tools:
        admin.apply_topics(tools.settings)
        with open_keys(tools.settings) as person, audited(tools.settings) as url:
            keys = {role: person.create(role=role, actor="ann").text for role in ROLES}
            clients = {role: Client(url, {"x-api-key": key}) for role, key in keys.items()}
            register_agents(clients["admin"])
            for role, client in clients.items():
                for ask in (by_acp, by_acp_stream, by_a2a, by_tool, by_chat):
                    before, may = len(tools.made()), "chat.call" in allowed_to(role)
                    said = ask(tools, client)
                    assert ("Hot." in said, f"has role {role}, and chat.call is for" in said) == (may, not may), said
                    assert len(tools.made()) - before == may, (role, ask)
        requested = [event.actor for _, event in read(tools.settings, ThreadEvent) if event.kind == "run_requested"]
    assert len(requested) == len(tools.made()) > 0
