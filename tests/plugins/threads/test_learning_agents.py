"""An agent with registered tools learns from its rated runs, and by GRPO on the same tools."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from schemas.events import AdapterEvent, Response, ThreadEvent, Turn
from streams.tools.audit.reading import Audit
from tests.plugins.threads.benchmarks.two_tools import EXAMPLE, STEPS, FrontDesk
from tests.support.log.shared_node import own_prefix
from tests.support.models.desk_tiny import save_desk_tiny
from tests.support.processes import read

pytestmark = [pytest.mark.kafka, pytest.mark.docs, pytest.mark.usefixtures("torch_as_before")]

TRAINED, HELD_OUT, LOOKS = 32, 16, 1


def test_an_agent_of_two_tools_learns_from_its_rated_runs_and_by_grpo_on_the_same_tools(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plugins.tools")
    pytest.importorskip("plugins.improve")
    folder = tmp_path / "desk"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(folder))
    changes = (f"topics.prefix={own_prefix()}", f"model.base={folder / 'tiny'}", "serve.idle_s=2", "policy.threads=1")
    desk = FrontDesk(folder, kafka_bootstrap, *changes, "trainer.threads=1", "trainer.learning_rate=0.003")
    desk.write_files(0)
    (folder / "prompt.json").write_text('[{"role": "system", "content": "Look up."}]')
    save_desk_tiny(folder / "tiny", _guests(folder))
    with desk.open():
        looks = list(desk.learn(TRAINED, looks=LOOKS, held_out=HELD_OUT))
    before, rated, *trained = (look["right"] for look in looks)
    assert before < rated and before < trained[-1], looks
    versions = {event.version: event for _, event in read(desk.settings, AdapterEvent) if event.kind == "trained"}
    assert versions[1].tuning is not None
    assert all(versions[number].first_batch is not None for number in range(2, 2 + LOOKS * STEPS))
    calls = Counter(call.name for _, turn in read(desk.settings, Turn) for call in turn.reply.tool_calls)
    ended = Counter(event.call.tool_id for _, event in read(desk.settings, ThreadEvent) if event.kind == "call_ended")
    assert calls == ended and set(calls) == {"guest", "room"}
    assert all(response.agent_id == "desk" for _, response in read(desk.settings, Response))
    report = Audit(desk.settings, settled=True).look()
    assert report.balanced, report.wrong


def _guests(folder: Path) -> list[tuple[str, str, str]]:
    """Return guests, rooms and bills of the questions that the test asks; the train questions are cut to those."""
    desk, guests = importlib.import_module("front_desk"), []
    for file, count in (("train.jsonl", TRAINED), ("held_out.jsonl", HELD_OUT)):
        lines = (folder / file).read_text().splitlines()[:count]
        (folder / file).write_text("\n".join(lines))
        names = [json.loads(line)["prompt"].removeprefix("guest: ") for line in lines]
        guests += [(name, desk.ROOMS[name], desk.BILLS[desk.ROOMS[name]]) for name in names]
    return guests
