"""The README tells the truth: every command on it is run, and says what the page says.

    README.md ──► tests/readme.py runs it once, as its reader would ──► a test for each command

Not covered: the minutes that `make` takes. Here its targets only have to be there and to call the right thing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme

pytestmark = pytest.mark.kafka

STEPS = list(readme.steps(readme.PAGE.read_text(encoding="utf-8")))


def _name(step: readme.Step) -> str:
    return f"{step.line}: {step.file or step.command.strip()[:60]}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, readme.Ran]:
    """What each step of the page did, by its line; without those after one that hung."""
    folder: Path = tmp_path_factory.mktemp("readme")
    done: dict[int, readme.Ran] = {}
    try:
        for one in readme.run(readme.PAGE.read_text(encoding="utf-8"), folder):
            done[one.step.line] = one
    except TimeoutError as exc:
        line = next(step.line for step in STEPS if step.line not in done)
        done[line] = readme.Ran(STEPS[len(done)], -1, str(exc))
    return done


@pytest.mark.parametrize("step", STEPS, ids=_name)
def test_the_readme_says_what_its_command_does(step: readme.Step, ran: dict[int, readme.Ran]) -> None:
    assert step.line in ran, "a command before it hung"
    one = ran[step.line]
    if step.command.strip() in readme.MAKES:
        assert one.code == 0 and readme.MAKES[step.command.strip()] in one.output
    elif step.file is None:
        fails = any(line.startswith("Error: ") for line in step.expected.splitlines())
        assert (one.code != 0) == fails, f"exit code {one.code}: {one.output}"
        assert readme.fits(step.expected, one.output), f"README.md:{step.line}: now it prints\n{one.output}"


@pytest.mark.parametrize("target", ["make demo", "make test"])
def test_the_two_commands_are_on_the_page(target: str) -> None:
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
