"""The release before this one, as its commit has it: chart, Dockerfile, and the program of its images.

    git log of helm/Chart.yaml ► the last commit before its `version` changed ┐
    git log of ROW_VERSION     ► the first whose table rows this one reads ───┼► the latest ► git archive ► a folder
    git log of lock.json       ► the first that reads the records of this one ┤
    git log of STEP_VERSION    ► the first whose steps this one computes ─────┘

A worker refuses table rows of another version, and a record whose schema it does not know is a dead letter to it, so
there is no way back to what is older (docs/install.md). Versions of an earlier arithmetic stay in use, but are not
reproduced byte for byte.

Not covered: the packages of that release. Its program runs with those that are installed here.
"""

from __future__ import annotations

import subprocess
from functools import reduce
from pathlib import Path

import pytest

from tests.support.deploy.unpack import unpack

ROOT = Path(__file__).parents[3]
FILE = "helm/Chart.yaml"


def first(folder: Path) -> Path:
    """Return `folder` with what lay in the repository when it got its first chart. Skips where history is cut off."""
    return _unpacked(_added(), folder)


def previous(folder: Path) -> Path:
    """Return `folder` with what lay in the repository at the end of the release before. Skips as `first` does."""
    added = _added()
    changed = _git("log", "-1", "--format=%H", "-G^version:", "--", FILE)
    before = added if changed == added else _git("rev-parse", f"{changed}^")
    rows = _git("log", "-1", "--format=%H", "--first-parent", "-m", "-M", "-G^ROW_VERSION = ", "--", "streams")
    records = _git("log", "-1", "--format=%H", "--first-parent", "-m", "--", "schemas/lock.json")
    steps = _git("log", "-1", "--format=%H", "--first-parent", "-m", "-M", "-G^STEP_VERSION = ", "--", "trainer")
    return _unpacked(reduce(_latest, (before, rows, records, steps)), folder)


def _latest(one: str, other: str) -> str:
    """Return which of two commits came after the other."""
    return one if other == _git("merge-base", other, one) else other


def _added() -> str:
    found = _git("log", "--diff-filter=A", "--format=%H", "--", FILE).split()
    if not found or _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("NOT RUN: this is no clone with the commit that brought the chart")
    return found[-1]


def _unpacked(commit: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder / "all.tar"
    _git("archive", "--output", str(packed), commit)
    unpack(packed, folder)
    packed.unlink()
    return folder


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
