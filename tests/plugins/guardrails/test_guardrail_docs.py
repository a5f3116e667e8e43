"""The settings that docs/guardrails.md shows are settings, and its suite of pairs is made as it says."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.scanner import Scanner
from streams.settings.model import Settings
from streams.stages.tasks import suites
from tests.support.commands import invoke

PAGE = (Path(__file__).parents[3] / "docs" / "guardrails.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_settings_that_are_shown_are_taken(text: str) -> None:
    table = tomllib.loads(text)
    rule = Guardrails(**{"patterns": '{"ticket": "TICKET-[0-9]{6}"}'} | table.get("guardrails", table))
    Scanner(rule)
    assert bool(rule.answer_rules) == ("validates" in text)


def test_the_suite_of_pairs_is_made_by_the_command_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"prompt": "He has 5 years. Hire?", "answer": "yes"}\n')
    [line] = [line for line in PAGE.splitlines() if line.startswith("streamward guardrails bias balance")]
    result = invoke(Settings(), *shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    assert [task.scenario for task in suites.load(Path("hiring.yaml")).questions] == ["hiring-first", "hiring-second"]
