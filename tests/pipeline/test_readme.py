"""The README and the pages behind it tell the truth: every command is run, and prints what the page says.

    README.md, docs/*.md ──► tests/readme.py runs each once, as its reader would ──► a test for each command

Not covered: the minutes that `make` takes. Here its targets only have to be there and to call the right thing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import readme

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1200)]  # the first test walks all pages; each command has a limit

STEPS, OF_README = readme.walk(), readme.walk(pages=())
Log = dict[tuple[str, int], readme.Ran]
"""What each step did, by its page and line; without those after one that hung."""


def _name(step: readme.Step) -> str:
    return f"{step.page}:{step.line}: {step.file or step.command.strip()[:60]}"


def _run(steps: list[readme.Step], folder: Path) -> Log:
    done: Log = {}
    try:
        for ran in readme.run(steps, folder):
            done[ran.step.page, ran.step.line] = ran
    except TimeoutError as exc:
        hung = steps[len(done)]
        done[hung.page, hung.line] = readme.Ran(hung, -1, str(exc))
    return done


@pytest.fixture(scope="module")
def readme_alone(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """What each step of the README did."""
    return _run(OF_README, tmp_path_factory.mktemp("readme"))


@pytest.fixture(scope="module")
def every_page(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """What each step did of the README, with the other pages before its last block."""
    return _run(STEPS, tmp_path_factory.mktemp("pages"))


def _check(step: readme.Step, log: Log) -> None:
    assert (step.page, step.line) in log, "a command before it hung"
    ran = log[step.page, step.line]
    if step.command.strip() in readme.MAKES:
        assert ran.code == 0 and readme.MAKES[step.command.strip()] in ran.output
    elif step.file is None:
        fails = any(line.startswith("Error: ") for line in step.expected.splitlines())
        assert (ran.code != 0) == fails, f"exit code {ran.code}: {ran.output}"
        assert readme.fits(step.expected, ran.output), f"{step.page}:{step.line}: now it prints\n{ran.output}"


@pytest.mark.parametrize("step", OF_README, ids=_name)
def test_the_readme_says_what_its_command_does(step: readme.Step, readme_alone: Log) -> None:
    _check(step, readme_alone)


@pytest.mark.docs
@pytest.mark.parametrize("step", STEPS, ids=_name)
def test_a_page_says_what_its_command_does(step: readme.Step, every_page: Log) -> None:
    _check(step, every_page)


def test_a_scorer_that_the_readme_shows_is_run_on_its_page() -> None:
    shown = [step.command for step in STEPS if step.page == readme.FIRST and step.file and step.file.endswith(".py")]
    called = [step.command for step in STEPS if step.page == "docs/scorers.md" and step.file]
    assert shown and [code for code in shown if code not in called] == []


def test_the_lines_of_the_readme_that_are_run_on_another_page_are_there() -> None:
    [block] = re.findall(
        r"^```bash\n(.*?)^```$", (readme.ROOT / readme.FIRST).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert set(block.splitlines()) <= {step.command.strip() for step in STEPS if step.page == "docs/agents.md"}


@pytest.mark.parametrize("target", ["make demo", "make test"])
def test_the_two_commands_are_on_the_pages(target: str) -> None:
    assert target in [step.command.strip() for step in STEPS]


@pytest.mark.parametrize(
    "expected, output",
    [
        ("sent  1\n", "sent      1\n"),
        ("2026-01-01T00:00:00.000Z  3@0  ab12cd34\n", "2027-02-02T11:22:33.444Z  5@17  99ffee00\n"),
        ("a\n…\nz\n", "a\nz\n"),
        ("a\n…\nz\n", "a\nb\nc\nz\n"),
        ("75.6 GiB free at …\n", "3 GiB free at /home\n"),
    ],
)
def test_what_differs_from_run_to_run_fits(expected: str, output: str) -> None:
    assert readme.fits(expected, output)


@pytest.mark.parametrize(
    "expected, output",
    [("sent  1\n", "sent  2\n"), ("a\n", "a\nb\n"), ("a\n…\nz\n", "a\nb\n"), ("a\n", ""), ("", "a warning\n")],
)
def test_what_says_something_else_does_not_fit(expected: str, output: str) -> None:
    assert not readme.fits(expected, output)
