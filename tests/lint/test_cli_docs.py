"""docs/cli.md says what the commands say."""

from __future__ import annotations

from streams.cli.docs import PAGE, markdown
from streams.cli.root import cli


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == markdown(cli), "run `python -m streams.cli.docs`, and commit docs/cli.md"


def test_the_page_has_every_command() -> None:
    page = markdown(cli)
    for name in cli.commands:
        assert (f"## streamward {name}\n" in page) is not cli.commands[name].hidden
