"""The wheel has all that runs need and nothing else; `make release` installs it and runs the demo with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.versions import version

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "plugins", "schemas", "streams", "streamward", "trainer")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """One that is built from a copy of the sources, with tests beside them as in the repository."""
    pytest.importorskip("setuptools", minversion="77")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "tests/unit"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, capture_output=True, check=True)
    (found,) = out.iterdir()
    return zipfile.Path(found)


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    named = {name for name in wheel.root.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (path.suffix != ".md" or path.parent.name in ("static", "schemas"))
    }
    pages = {f"gateway/mcp/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert named == there | pages and pages
    assert {f"{package}/py.typed" for package in PACKAGES} | {"schemas/lock.json"} <= named


def test_the_wheel_has_the_plugins_of_the_checkout(wheel: zipfile.Path, tmp_path: Path) -> None:
    wheel.root.extractall(tmp_path / "installed")
    command = [sys.executable, "-m", "streams.cli", "admin", "plugins", "--output", "jsonl"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    ours = {row["plugin"] for row in rows if row["from"] == "streamward"}
    assert ours == {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")}


def test_the_wheel_says_who_it_is_and_under_which_license(wheel: zipfile.Path) -> None:
    folder = wheel / f"streamward-{version()}.dist-info"
    said = Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("streamward", version(), "Apache-2.0")
    assert (folder / "licenses" / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text()
    assert "streamward = streamward:main" in (folder / "entry_points.txt").read_text(encoding="utf-8")
