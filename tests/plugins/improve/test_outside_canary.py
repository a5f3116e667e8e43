"""A model of another server is a version of a policy: canary, promotion and roll-back, with `serve` as the server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from schemas.events import AdapterEvent, AdvantagedGroup, Message, Response, RewardSource
from streams.adapters.versions import read_state
from streams.kafka import admin
from streams.settings.model import Canary, Outside, Policy, Rollouts, Settings
from tests.support.agent_server import serving, settings_of
from tests.support.commands import invoke, rows_of
from tests.support.factories import task
from tests.support.processes import read, running, until, write

pytestmark = pytest.mark.kafka

KNOWS = {"replies": [{"when": "4 + 7", "reply": "11"}]}
"""The other server's model; the one here is always wrong."""


def command(settings: Settings, *arguments: str) -> Result:
    return invoke(settings, *arguments, "--output", "jsonl")


def ask(settings: Settings, name: str, count: int, **changes: Any) -> None:
    """Submit tasks whose right answer is 11."""
    write(settings, *(task(
                    task_id=f"{name}-{number}", created_at=int(time.time() * 1000), group_size=2,
                    verifier='{"answer": "11"}', reward_sources=(RewardSource(name="exact"),),
                    messages=(Message(role="user", content="4 + 7 ="),), **{"purpose": "serve", **changes},
                ) for number in range(count)))  # fmt: skip


def test_a_model_of_another_server_is_tried_promoted_and_rolled_back(settings: Settings, tmp_path: Path) -> None:
    theirs = settings_of(settings.kafka.bootstrap or "", tmp_path / "theirs", script=KNOWS)
    with serving(theirs) as url:
        ours = settings.model_copy(
            update={
                "policy": Policy(engine="scripted", script='{"answers": "wrong"}'),
                "rollouts": Rollouts(mode="canary"),
                "canary": Canary(steps="0.5", step_groups=10, max_latency_ratio=1e6),
                "outside": Outside(url=f"{url}/v1", prompt_usd=1.0, completion_usd=4.0),
            }
        )
        admin.apply_topics(ours)
        refused = command(ours, "adapters", "adopt", "--model", "nobody")
        assert (refused.exit_code, "Nothing was written" in refused.stderr) == (4, True), refused.output
        for again in (False, True):
            (row,) = rows_of(command(ours, "adapters", "adopt", "--model", "sums"))
            assert (row["version"], row["model"], row["again"]) == (1, "sums", again)
        with running(ours, tmp_path, "streams", "scoring", "policy"):
            _canary(ours)
            _what_is_on_record(ours)
            undone = command(ours, "adapters", "rollback", "--expected", "1", "--reason", "back to ours")
            assert rows_of(undone)[0]["serving"]["primary"] == 0
    _what_it_cannot_do(ours, tmp_path)


def _canary(ours: Settings) -> None:
    """Ask until the candidate is promoted."""
    until(lambda: read_state(ours, "default").serving.candidate == 1, "the canary to begin")
    ask(ours, "task", 80)
    ask(ours, "acme", 10, tenant="acme")
    until(lambda: read_state(ours, "default").primary == 1, "the promotion")
    promotion = [event for _, event in read(ours, AdapterEvent) if event.kind == "promoted"][-1]
    assert promotion.metrics["candidate_reward"] == 1.0 and promotion.metrics["primary_reward"] == 0.0
    ask(ours, "train", 2, purpose="train")
    until(
        lambda: sum(group.purpose == "train" for _, group in read(ours, AdvantagedGroup)) == 2,
        "the groups of what was answered elsewhere",
    )


def _what_is_on_record(ours: Settings) -> None:
    answers = [response for _, response in read(ours, Response) if response.adapter_version == 1]
    assert {(response.engine, response.text, len(response.completion_token_ids)) for response in answers} == {
        ("outside", "11", 0)
    }
    assert all(response.prompt_tokens and response.completion_tokens for response in answers)
    of_acme = [response for _, response in read(ours, Response) if response.task_id.startswith("acme")]
    assert {response.adapter_version for response in of_acme} == {0}, "no text of a tenant leaves without consent"
    groups = [group for _, group in read(ours, AdvantagedGroup) if group.adapter_version == 1]
    assert all(group.is_outside for group in groups)
    first = answers[0]
    cost = (first.prompt_tokens * 1.0 + first.completion_tokens * 4.0) / 1e6
    (run,) = rows_of(command(ours, "runs", "show", first.response_id))
    assert run["cost_usd"] == pytest.approx(cost)
    query = f"SELECT cost_usd FROM runs WHERE answer_id = '{first.response_id}'"  # noqa: S608
    assert rows_of(command(ours, "query", query)) == [{"cost_usd": pytest.approx(cost)}]


def _what_it_cannot_do(ours: Settings, folder: Path) -> None:
    audited = invoke(ours, "audit")
    assert audited.exit_code == 0, audited.output
    for arguments in (
        ("reproduce", "--version", "1"),
        ("adapters", "export", "1", str(folder / "exported")),
    ):
        result = command(ours, *arguments)
        assert result.exit_code in (3, 4) and "sums at http" in result.stderr, (arguments, result.output)
