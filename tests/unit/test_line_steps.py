"""What a line names is completed by declared steps, in an order of the fields, and a derived id says what was meant."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.agents.named_prompts import PromptParameter, with_prompt
from schemas.events import EpisodeStart, Message, PromptUse, Sampling, Task, Tool, derive_id
from streams.arrow.file_rows import json_lines
from streams.errors import EventError, SettingsError
from streams.plugins import installed
from streams.plugins.installed import InstalledPlugin
from streams.plugins.plugin import Plugin
from streams.settings.model import Topics
from streams.stages.agents.recording.calls import ModelCall
from streams.stages.tasks import line_steps
from streams.stages.tasks.line_steps import CompletedTask, LineStep, LineSteps
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import Checked, check_rows

LINE = {"prompt": "4 + 7 =", "answer": "11"}
NAMES = {
    "agent": "environment",
    "max_turns": 4,
    "environment": {"name": "maze", "seed": 2},
    "tool_ids": ["sums"],
    "prompt_version": "greet",
}


class Prompts(LineStep):
    def complete(self, task: Task, value: Any) -> CompletedTask:
        return CompletedTask(
            replace(task, prompt_version=PromptUse(name=value.name, version=3, messages=task.messages))
        )


class Tools(LineStep):
    def complete(self, task: Task, value: Any) -> CompletedTask:
        return CompletedTask(replace(task, tools=(*task.tools, Tool(name=value[0]))), (f"{value[0]}@1",))


class Mazes(LineStep):
    def complete(self, task: Task, value: Any) -> CompletedTask:
        return CompletedTask(replace(task, environment=EpisodeStart(name=value.name, seed=value.seed)), ("maze@2",))


def declared(monkeypatch: pytest.MonkeyPatch, steps: dict[str, type[LineStep]]) -> None:
    monkeypatch.setattr(line_steps, "_steps", lambda: steps)


def check(**fields: Any) -> Checked:
    reading = Reading(now_ms=0, topic_settings=Topics(), defaults={"policy": "p"}, steps=LineSteps())
    return check_rows(json_lines([json.dumps(LINE | fields)]), "a", reading)


def test_the_order_in_which_steps_are_declared_changes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[str, type[LineStep]] = {"environment": Mazes, "tool_ids": Tools, "prompt_version": Prompts}
    declared(monkeypatch, steps)
    [one] = check(**NAMES).tasks
    declared(monkeypatch, dict(reversed(steps.items())))
    assert check(**NAMES).tasks == [one]
    assert one.metadata["tool_ids"] == "sums@1 maze@2"
    content = json.dumps(LINE | NAMES | {"policy": "p"}, sort_keys=True)
    with_prompt = derive_id("line", derive_id("line", content), one.prompt_version)
    assert one.task_id == derive_id("line", with_prompt, "sums@1", "maze@2")
    assert check(**NAMES, task_id="t1").tasks[0].task_id == "t1"


def test_a_field_without_a_step_is_refused_with_the_plugin_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    declared(monkeypatch, {})
    monkeypatch.setattr(installed, "installations", list)
    [bad] = check(tool_ids=["sums"]).problems
    assert bad.error == "tool_ids: no installed plugin reads it"
    greeters = InstalledPlugin(Plugin(name="greeters", line_steps={"prompt_version": "a:Step"}), "greeters", "1")
    monkeypatch.setattr(installed, "installations", lambda: [type("One", (), {"load": lambda _: greeters})()])
    [bad] = check(prompt_version="greet").problems
    assert bad.error == "prompt_version: plugin greeters, which reads it, is not loaded (plugins.load)"
    with pytest.raises(EventError, match="plugin greeters"):
        LineSteps().find("prompt_version", "greet", "t1")


def test_a_step_of_an_unknown_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = InstalledPlugin(Plugin(name="stranger", line_steps={"thumbs": "a:Step"}), "stranger", "1")
    monkeypatch.setattr(installed, "load_plugins", lambda: (stranger,))
    with pytest.raises(SettingsError, match="thumbs is no field that a step completes; there are prompt_version, "):
        line_steps._steps.__wrapped__()


class InThread(LineStep):
    """Follows its registry, which may take a minute."""

    def find(self, value: Any, unit: str | None) -> PromptUse:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return PromptUse(name=value.name, version=1, messages=())


def test_the_prompt_of_a_call_is_found_in_a_thread_while_the_server_answers_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared(monkeypatch, {"prompt_version": InThread})
    asked = (Message(role="user", content="hi"),)
    call = ModelCall(
        agent_id="a", model="p", protocol="chat", messages=asked, sampling=Sampling(max_tokens=1), request_digest=""
    )
    unused: Any = None
    found = asyncio.run(with_prompt(call, PromptParameter(id="greet"), LineSteps(), unused, None, "ann"))
    assert found.prompt_version == PromptUse(name="greet", version=1, messages=())
