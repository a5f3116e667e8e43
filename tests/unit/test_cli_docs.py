"""docs/cli.md says what the commands say."""

from __future__ import annotations

from streams.cli import cli
from streams.cli_docs import PAGE, markdown


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == markdown(cli), "run `python -m streams.cli_docs`, and commit docs/cli.md"


def test_the_page_has_every_command() -> None:
    page = markdown(cli)
    for name in cli.commands:
        assert (f"## streamward {name}\n" in page) is not cli.commands[name].hidden
