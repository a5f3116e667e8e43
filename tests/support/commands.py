"""Commands of the CLI, run in the process of a test.

settings, words ──► streamward WORDS ──► exit code, stdout, stderr
"""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from streams.cli.root import cli
from streams.settings.load import to_env
from streams.settings.model import Settings


def invoke(settings: Settings, *words: str, **options: Any) -> Result:
    """Run a command with these settings; `options` are those of click's `CliRunner.invoke`."""
    return CliRunner().invoke(cli, words, env=to_env(settings), **options)


def rows_of(result: Result, *, code: int = 0) -> list[dict[str, Any]]:
    """Return the rows that a command has printed, which must have ended with this code."""
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
