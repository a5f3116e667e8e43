"""Prompts that the model cannot answer are found from its files alone, before a sample is paid for."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from gateway.http.body import read_fields
from gateway.log.tasks import TaskBody, task_of
from schemas.events import Message, Task, ToolCall
from streams.cli.task_file import unanswerable
from streams.engines.base_model import load_base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.prompt_check import unanswerable_prompts
from streams.engines.protocol import SamplingRequest
from streams.errors import CallError
from streams.settings.load import load
from streams.settings.model import Settings
from tests.support.factories import task
from tests.support.models.tiny import save_tiny

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
)


def settings_for(folder: Path, template: str | None = None) -> Settings:
    save_tiny(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer | {"chat_template": template or "{% for m in messages %}{{ m['content'] }}{% endfor %}"})
    )
    return load(env={}, overrides=[f"model.base={folder}", "policy.name=default"])


def by_http(settings: Settings, asked: Task) -> None:
    messages = [{"role": message.role, "content": message.content} for message in asked.messages]
    body = read_fields(TaskBody, json.dumps({"messages": messages, "answer": "1", "policy": "default"}).encode())
    task_of(body, settings, tenant=None, actor="a", now_ms=0)


def test_a_prompt_longer_than_the_context_is_refused_at_every_entrance(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "tiny")
    long, short = (
        task(task_id=n, messages=(Message(role="user", content=text),)) for n, text in [("a", "7 " * 5000), ("b", "7")]
    )
    assert [(one.task_id, "context" in reason) for one, reason in unanswerable_prompts(settings, [short, long])] == [
        ("a", True)
    ]
    assert "1 prompt cannot be answered by model.base" in str(unanswerable(settings, [short, long]))
    assert unanswerable(settings, [short]) is None
    by_http(settings, short)
    with pytest.raises(CallError, match=r"model.base .* cannot answer it: .*context"):
        by_http(settings, long)


def test_messages_that_the_template_refuses_are_named_with_its_own_words(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "tiny", NO_SYSTEM)
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="7"))
    [(_, reason)] = unanswerable_prompts(settings, [task(messages=messages), task(messages=messages[1:])])
    assert reason.startswith("the chat template refuses the messages: System role not supported")


def test_a_prompt_of_which_the_template_leaves_out_a_call_is_refused_before_and_when_it_is_answered(
    tmp_path: Path,
) -> None:
    """Two histories with other calls would be one prompt."""
    settings = settings_for(tmp_path / "tiny")
    called = Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name="add", arguments='{"a": 1}'),))
    messages = (Message(role="user", content="7"), called, Message(role="tool", content="8", tool_call_id="c"))
    reason = "the model's chat template leaves out the tool call add; leave out the tools"
    asked = task(messages=messages)
    assert [problem[: len(reason)] for _, problem in unanswerable_prompts(settings, [asked])] == [reason]
    with closing(TransformersEngine(load_base(settings.model))) as engine:
        ((slot, *_),) = engine.sample([SamplingRequest(sampling_id="s", task=asked)])
    assert slot.error is not None and reason in slot.error and not slot.completion_token_ids


def test_what_agents_and_episodes_ask_and_a_base_that_is_elsewhere_are_not_checked(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "tiny")
    long = (Message(role="user", content="7 " * 5000),)
    assert list(unanswerable_prompts(settings, [task(messages=long, agent="calc")])) == []
    for base in ("somebody/some-model", str(tmp_path / "missing")):
        elsewhere = load(env={}, overrides=[f"model.base={base}"])
        assert list(unanswerable_prompts(elsewhere, [task(messages=long)])) == []
