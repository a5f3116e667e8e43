"""The plugin of docs/examples/plugin-thumbs, installed as a stranger installs it, and `streamward` with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from streams.settings.model import Settings
from tests.import_graph import ROOT
from tests.support.processes import command, environment

SOURCE = ROOT / "docs" / "examples" / "plugin-thumbs"


def install_thumbs(folder: Path) -> Path:
    """Build and install the plugin into a folder of packages, and return it."""
    built = shutil.copytree(SOURCE, folder / "source")
    packages = folder / "packages"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", packages, built], check=True)
    return packages


def environment_with(packages: Path, settings: Settings | None = None) -> dict[str, str]:
    """Return the environment of a process where these packages are installed, too."""
    return environment(settings) | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(packages)))}


def run_with(packages: Path, *args: str, settings: Settings | None = None) -> subprocess.CompletedProcess[str]:
    """Run `streamward` where these packages are installed, too."""
    env = environment_with(packages, settings)
    return subprocess.run(command(*args), env=env, cwd=packages, capture_output=True, text=True, timeout=300)
