"""The notebooks of docs/examples run from their first cell to their last, as in Jupyter.

    docs/examples/*.ipynb ──► cells as one script: %%writefile, !command, Python ──► a process in an empty folder

In `make test-docs` a tiny model takes the place of the real one, as on the pages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.support.log import finished_run
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny
from tests.support.thoroughness import FULL

pytestmark = [pytest.mark.kafka, pytest.mark.docs]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def script_of(notebook: Path) -> Iterator[str]:
    """Yield the cells of a notebook as Python."""
    yield "import pathlib, subprocess"
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if written := re.fullmatch(r"%%writefile (\S+)\n(.*)", text, re.DOTALL):
            yield f"pathlib.Path({written[1]!r}).write_text({written[2] + chr(10)!r})"
        else:
            yield re.sub(
                r"^!(.*)$", lambda command: f"subprocess.run({command[1]!r}, shell=True, check=True)", text, flags=re.M
            )


def run(name: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run a notebook in a folder, and return what it printed."""
    (script := folder / "cells.py").write_text("\n\n".join(script_of(EXAMPLES / name)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    whole = {**os.environ, **env, "PATH": path, "MPLBACKEND": "agg", "PYTHONPATH": str(EXAMPLES.parents[1])}
    printed = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([sys.executable, script], cwd=folder, env=whole, text=True, timeout=500, **printed)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_a_log_says_what_happened(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = Settings(topics=finished_run.topics(own_prefix()))
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap": kafka_bootstrap})})
    finished_run.put(settings, finished_run.log().records)
    said = run("what_a_log_says.ipynb", tmp_path, to_env(settings))
    assert "completion_tokens" in said and "versions" in said


def test_a_reward_of_ones_own_becomes_a_version_without_a_token_sampled_again(folder: Path) -> None:
    env = {} if FULL else {"STREAMWARD_MODEL__BASE": str(save_tiny(folder / "tiny"))}
    said = run("a_reward_of_your_own.ipynb", folder, env)
    assert "0 tokens sampled" in said and (folder / ".streamward/experiments/brief/replay.svg").exists()
