"""A folder of docs/examples, copied, and its commands: what a page shows, run in the copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class DocsExample:
    """The commands of an example."""

    def __init__(self, name: str, folder: Path, bootstrap: str, **variables: str) -> None:
        """Copy the example into `folder`; `variables` are in the environment of its commands, without STREAMWARD_."""
        shutil.copytree(ROOT / "docs" / "examples" / name, folder)
        self.folder = folder
        plain = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
        python_path = os.pathsep.join(filter(None, (str(ROOT), plain.get("PYTHONPATH"))))
        own = {f"STREAMWARD_{name}": value for name, value in variables.items()}
        self.env = plain | own | {"PYTHONPATH": python_path, "STREAMWARD_KAFKA__BOOTSTRAP": bootstrap}

    def streamward(self, *words: str) -> str:
        """Run a command of `streamward`, as `run`."""
        return self.run(sys.executable, "-m", "streams.cli", *words)

    def run(self, *command: str) -> str:
        """Return what a command prints on stdout; what it says on stderr is passed on. Raises RuntimeError."""
        done = subprocess.run(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        return done.stdout
