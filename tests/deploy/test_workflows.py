"""The workflow files are what a hosted runner takes, by actionlint; `make setup-deploy` installs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).parents[2]
ACTIONLINT = shutil.which("actionlint")
pytestmark = pytest.mark.skipif(ACTIONLINT is None, reason=skips.needs("actionlint"))


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    assert ACTIONLINT is not None
    return subprocess.run([ACTIONLINT, "-no-color", *map(str, files)], cwd=ROOT, capture_output=True, text=True)


def test_actionlint_finds_nothing() -> None:
    done = lint(*sorted((ROOT / ".github" / "workflows").glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_would_find_an_expression_that_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "test.yml"
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    wrong.write_text(text.replace("matrix.python", "matrix.pyton"), encoding="utf-8")
    assert 'property "pyton" is not defined' in lint(wrong).stdout
