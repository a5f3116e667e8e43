"""The group of commands that make better versions from what was served; plugins add them."""

from __future__ import annotations

import click

from streams.cli.runtime import InOrder


@click.group(cls=InOrder)
def improve() -> None:
    """Make better versions from what was served."""
