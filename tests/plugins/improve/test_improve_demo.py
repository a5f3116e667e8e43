"""`improve demo`: a version that learnt from served runs is released, and a collapsed judge promotes nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.skips import IN_FULL
from tests.support.processes import command, environment
from tests.support.thoroughness import FULL

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.model,
    pytest.mark.skipif(not FULL, reason=IN_FULL),
]


@pytest.mark.timeout(1200)
def test_good_runs_are_learnt_from_and_a_judge_that_says_yes_to_everything_promotes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        command("improve", "demo", "--output", "json"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=1100,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["serving"] == 1
    assert report["held_out"]["1"] > report["held_out"]["0"] + 0.2
    assert set(report["dataset"]["labellers"]) == {"gates", "person"}
    assert report["judge"]["kappa"] == 0
    assert report["judge"]["promoted"] == 0 < report["judge"]["runs"]
