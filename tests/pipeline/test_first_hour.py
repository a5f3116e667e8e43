"""docs/first-hour.md tells the truth: faults of a table, a scorer and a run are named by the commands of the page.

    docs/first-hour.md ──► every command, in an empty folder ──► output, and the report that `up` left

In `make test-docs` a tiny model takes the place of the real one: its answers are all wrong, so the last run learns
nothing, either. `make test-full` walks the page with the real model, as its reader would.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import readme
from tests.support.models.tiny import save_tiny
from tests.support.thoroughness import FULL

pytestmark = [pytest.mark.kafka, pytest.mark.docs]


def test_what_goes_wrong_in_a_first_hour_is_named_and_mended_by_the_commands_of_the_page(folder: Path) -> None:
    model = "" if FULL else f'\n[model]\nbase = "{save_tiny(folder / "tiny")}"\n'
    readme.check_page("docs/first-hour.md", folder, more=model, limit_s=500)
    report = json.loads((folder / ".streamward/up/report.json").read_text())
    learnt_nothing = 2 * 8 * 4  # answers of two steps of eight groups of four
    assert sum(version["n"] for version in report["train_reward"]) > learnt_nothing
    if FULL:
        rewards = [version["reward"] for version in report["train_reward"]]
        assert max(rewards[:2]) == 0 < 0.5 < rewards[-1]
