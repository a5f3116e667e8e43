"""What is skipped is said in one line a kind, and the line has the command that would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests import skips

@pytest.mark.skipif(True, reason=skips.HELM)
@pytest.mark.parametrize("case", range(7))
def test_of_the_chart(case): ...

@pytest.mark.skipif(True, reason=skips.HELM)
def test_of_the_chart_elsewhere(): ...

def test_with_a_fixture():
    pytest.importorskip("nothing_of_this_name", reason=skips.GYM)

def test_that_runs(): ...
"""


def test_a_kind_of_skips_is_one_line_with_the_command_that_would_run_them(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    seen = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run([*command, "test_some.py"], cwd=tmp_path, env=seen, capture_output=True, text=True)
    *_, first, second, closing = done.stdout.splitlines()
    assert first == "8 skipped: needs helm; run `make setup-deploy && make test-deploy`", done.stdout + done.stderr
    assert second == "1 skipped: needs reasoning-gym; run `make setup-gym`"
    assert "1 passed, 9 skipped" in closing
