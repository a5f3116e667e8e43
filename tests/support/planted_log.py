"""One of each kind of thing on a log, all of them with a word in name and content, as a key of a server makes them.

word, key ──► a file, a prompt with an alias, a job, a task, a conversation; of plugins that are loaded, too
word      ──► a tool of the registry, a data set: what only the operator makes, and no server
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx

from gateway.rooms.routes import TABLE
from schemas.events import DatasetEvent, Tool, derive_id
from streams.access.tenants.tenant_names import named
from streams.kafka.topics import SHAPES
from streams.settings.model import Settings
from tests.support.factories import T0, tool_event
from tests.support.processes import write

QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]
DATASET = DatasetEvent(
    event_id="",
    dataset="",
    created_at=T0,
    kind="built",
    policy="p",
    actor="ann",
    reason="2 promoted runs",
    digest="d" * 64,
    folder="data",
    code_version="0.1.0",
    counts={"train": 2},
    manifest_sha256="e" * 64,
)


def plant(settings: Settings, url: str, key: str, word: str, tenant: str | None) -> None:
    """Make one of each; `key`: of an admin of the tenant."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=300) as client:

        def ask(method: str, path: str, **how: Any) -> None:
            answer = client.request(method, path, **how)
            assert answer.is_success, (path, answer.text)

        row = {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word}]}
        file = {"file": (f"{word}.jsonl", json.dumps(row).encode())}
        ask("POST", "/v1/files", files=file, data={"purpose": "fine-tune"})
        policy = settings.policy.name
        order = {"agent_id": policy, "training_queries": QUERIES, "config": {"n_iterations": 3}}
        for method, path, body in (
            ("POST", "/prompts/templates", {"name": word, "template": f"{word} {{{{x}}}}", "alias": word}),
            ("POST", "/finetune/jobs", order),
            ("POST", "/tasks", {"task_id": word, "input": f"{word}?"}),
            ("POST", "/acp/threads", {"metadata": {"about": word}}),
            ("PUT", "/acp/store/items", {"namespace": [word], "key": word, "value": {"text": word}}),
            ("POST", "/v1/chat/completions", {"model": policy, "messages": [{"role": "user", "content": f"{word}?"}]}),
            ("POST", "/api/v1/create_session", {"tags": [word], "user_metadata": {"about": word}, "sdk_version": "0"}),
        ):
            if TABLE.find(method, path) is not None:
                ask(method, path, json=body)
    if "tools" in SHAPES:
        tools, name = (Tool(name=word, description=word, parameters='{"type": "object"}'),), named(tenant, word)
        added = tool_event(event_id=derive_id(name, "added", 0), tool_id=name, endpoint="os:getcwd", tools=tools)
        write(settings, added)
    if "datasets" in SHAPES:
        write(settings, replace(DATASET, event_id=derive_id(word), dataset=word, tenant=tenant))
