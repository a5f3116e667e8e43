"""What the workflow files run is there: targets and variables of the Makefile, files, actions of a fixed commit.

Not covered: their syntax, which actionlint holds them to (tests/deploy/test_workflows.py); what a hosted runner does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
OF_THE_RUNNER = {"sudo", "kind", "gh"}
"""Programs that a hosted runner has."""


def steps(file: Path) -> Iterator[dict[str, Any]]:
    """Yield every step of every job."""
    for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values():
        yield from job["steps"]


def commands(file: Path) -> Iterator[list[str]]:
    """Yield every command as words."""
    for step in steps(file):
        yield from (shlex.split(line) for line in step.get("run", "").splitlines())


def wrong(command: list[str]) -> list[str]:
    """Return what a command names that is not there."""
    program, *rest = command
    if program != "make":
        return [] if program in OF_THE_RUNNER or (ROOT / program).is_file() else [program]
    given = {word.partition("=")[0] for word in rest if "=" in word}
    return sorted((given - VARIABLES) | ({word for word in rest if "=" not in word} - TARGETS))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_of_a_workflow_is_there(file: Path) -> None:
    assert [(command, lost) for command in commands(file) if (lost := wrong(command))] == []


def test_a_command_that_is_gone_would_be_found() -> None:
    assert wrong(["make", "tset", "ARGZ=-x"]) == ["ARGZ", "tset"]
    assert wrong([".ci/walk"]) == [".ci/walk"] and wrong([".ci/run"]) == []


def test_tests_images_and_the_release_are_run() -> None:
    run = {word for file in FILES for command in commands(file) for word in command if word in TARGETS}
    assert run >= {"test", "test-deploy", "images", "release"}


def test_the_tiers_that_make_test_leaves_out_are_run_by_ci_too() -> None:
    (tier,) = re.findall(r"^TIER = (.*)$", MAKEFILE, re.MULTILINE)
    targets = ["make test", *(f"make test-{mark}" for mark in re.findall(r"not (\w+)", tier))]
    for file in (ROOT / ".ci/run", ROOT / ".github/workflows/test.yml"):
        assert re.findall(r"make test[\w-]*", file.read_text(encoding="utf-8")) == targets
    assert len(targets) == 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_action_is_pinned_by_its_commit_and_names_the_version(file: Path) -> None:
    used = re.findall(r"uses: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert used != [] and [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", one)] == []
