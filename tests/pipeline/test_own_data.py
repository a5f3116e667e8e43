"""docs/own-data.md tells the truth: its commands lead from a table of questions to a version that answers better.

    docs/own-data.md ──► every command, in an empty folder ──► output, and the report that `up` left

In `make test-docs` a tiny model takes the place of the real one: every command is run, and nothing is learned. `make
test-full` walks the page with the real model, as its reader would.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import readme
from tests.support.models.tiny import save_tiny
from tests.support.thoroughness import FULL

pytestmark = [pytest.mark.kafka, pytest.mark.docs]

PAGE = "docs/own-data.md"


def test_thirty_questions_make_a_better_version_by_the_commands_of_the_page(folder: Path) -> None:
    model = "" if FULL else f'\n[model]\nbase = "{save_tiny(folder / "tiny")}"\n\n[learning]\nstop_after = 0\n'
    readme.check_page(PAGE, folder, more=model, limit_s=500)
    report = json.loads((folder / ".streamward/up/report.json").read_text())
    assert report["adapters"] == 4
    if FULL:
        rewards = [version["reward"] for version in report["train_reward"]]
        assert rewards[0] < 0.5 < 0.7 < rewards[-1]
        assert report["held_out"][0]["exact"] < report["held_out"][-1]["exact"]
