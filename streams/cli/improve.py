"""The group of commands that make better versions from what was served; plugins add their own.

prompts ──► improve prompts
"""

from __future__ import annotations

import click

from streams.cli.prompt_versions import prompts
from streams.cli.runtime import InOrder


@click.group(cls=InOrder)
def improve() -> None:
    """Make better versions from what was served."""


improve.add_command(prompts)
