"""A policy is trained through our own MCP server: it calls a registered tool over HTTP, and learns from the answers.

    episodes ──► HTTP, with a key ──► /mcp/registered ──► /mcp/tools/get/invoke ──► a process with the function

A tiny model that knows how to call takes two steps here; benchmarks/key_chain.py teaches SmolLM2.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from plugins.environments.settings import Environments
from schemas.events import AdapterEvent, RequestEvent, Response, Turn
from streams.cli.root import cli
from streams.kafka import admin
from streams.settings.load import to_env
from streams.settings.model import Advantages, Batches, Model, Policy, Serve, Settings
from streams.tools.audit.reading import Audit
from tests.support.agent_server import serving, settings_of
from tests.support.commands import invoke
from tests.support.log.keys import open_keys
from tests.support.log.shared_node import own_prefix
from tests.support.models.calling_tiny import KEYS, save_calling_tiny
from tests.support.processes import read, running, said, until

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

TOOL = '''
def get(key: str) -> str:
    """Return what is stored under a key."""
    if key[:1] != "k":
        raise ValueError(f"there is no key {key}")
    return f"n{key[1:]}"
'''
STEPS = GROUPS = SLOTS = 2


@pytest.fixture
def server_settings(kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a server with keys, whose registry may have the function."""
    (tmp_path / "registered_keys.py").write_text(TOOL)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    plain = settings_of(kafka_bootstrap, tmp_path, auth="keys")
    return plain.model_copy(update={"environments": Environments(modules="registered_keys, .", timeout_s=60)})


def trained_settings(settings: Settings, server: str, folder: Path) -> Settings:
    """Return settings of the loop, on a log of its own, whose episodes call the tools of `server`."""
    with open_keys(settings) as person:
        key = person.create(role="submitter", actor="ann").text
    credentials = folder / "credentials.json"
    credentials.write_text(json.dumps({server: key}))
    return settings.model_copy(
        update={
            "topics": settings.topics.model_copy(update={"prefix": own_prefix()}),
            "model": Model(base=str(save_calling_tiny(folder / "tiny"))),
            "policy": Policy(name=settings.policy.name),
            "serve": Serve(port=settings_of(settings.kafka.bootstrap, folder).serve.port),
            "environments": Environments(servers=server, credentials=credentials, timeout_s=60),
            "batches": Batches(groups=GROUPS, max_policy_lag=0, zero_variance="keep"),
            "advantages": Advantages(formula="dr_grpo"),
        }
    )


def lines(server: str) -> str:
    """Return tasks as `streamward tasks submit` reads them."""
    every = [
        {
            "prompt": f"key: k{number}",
            "answer": f"n{number}",
            "agent": "environment",
            "environment": {"name": server, "settings": {"prompt": f"key: k{number}"}, "seed": number},
            "max_turns": 3,
            "group_size": SLOTS,
            "sampling": {"max_tokens": 12},
        }
        for number in range(KEYS)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in every[: STEPS * GROUPS])


def promoted(settings: Settings) -> set[int]:
    """Return the versions that were promoted."""
    return {event.version for _, event in read(settings, AdapterEvent) if event.kind == "promoted"}


def invocations(settings: Settings) -> int:
    """Return how many calls of the tool came through /mcp/registered."""
    paths = Counter(event.resource for _, event in read(settings, RequestEvent) if event.status == 200)
    return min(paths["/mcp/registered"], paths["/mcp/tools/get/invoke"])


def test_two_steps_are_trained_on_calls_that_our_own_server_answered_and_come_out_equal_again(
    server_settings: Settings, tmp_path: Path
) -> None:
    environ = to_env(server_settings)
    with serving(server_settings) as url:
        server = f"mcp:{url}/mcp/registered"
        added = CliRunner().invoke(
            cli, ["agents", "tools", "add", "get", "registered_keys:get", "--reason", "it"], env=environ
        )
        assert added.exit_code == 0, added.output
        settings = trained_settings(server_settings, server, tmp_path)
        admin.apply_topics(settings)
        (tmp_path / "tasks.jsonl").write_text(lines(server))
        sent = invoke(settings, "tasks", "submit", str(tmp_path / "tasks.jsonl"))
        assert sent.exit_code == 0, sent.output
        players = ("serve", f"agents run --environments --server {settings.serve.url}")
        with running(settings, tmp_path, "streams", "scoring", "train", *players):
            until(lambda: STEPS in promoted(settings), f"version {STEPS}", folder=tmp_path, timeout_s=300)
        calls = [call for _, turn in read(settings, Turn) for call in turn.reply.tool_calls]
        assert calls and {call.name for call in calls} == {"get"}
        until(lambda: invocations(server_settings) == len(calls), "each call in the log of requests", folder=tmp_path)
    answers = [response.text for _, response in read(settings, Response)]
    assert any(text.startswith("n") for text in answers), said(tmp_path)
    report = Audit(settings, settled=True).look()
    assert report.balanced, report.wrong
    made = invoke(settings, "reproduce", "--output", "jsonl")
    assert made.exit_code == 0, made.output
