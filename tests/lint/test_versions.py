"""The version is one fact, in pyproject.toml; whatever repeats it says the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.versions import copies, version

ROOT = Path(__file__).parents[2]


def test_chart_images_and_clients_have_the_version_of_the_package() -> None:
    found = copies()
    assert {name: len(said) for name, said in found.items()} == {
        "helm/Chart.yaml": 2,
        "docker-compose.yml": 5,
        "clients/python/pyproject.toml": 1,
        "clients/typescript/package.json": 1,
    }
    assert {one for said in found.values() for one in said} == {version()}


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version()


def test_make_reads_the_same_version() -> None:
    done = subprocess.run(["make", "--dry-run", "images"], cwd=ROOT, capture_output=True, text=True, check=True)
    tags = re.findall(r"--tag streamward-\w+:(\S+)", done.stdout)
    assert tags == [version(), f"{version()}-cpu", f"{version()}-cuda"]


def test_no_page_repeats_the_version_of_an_image() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Dockerfile", *ROOT.glob(".github/workflows/*")]
    said = {page.name: re.findall(r"streamward-\w+:\d\S*", page.read_text(encoding="utf-8")) for page in pages}
    assert {name: found for name, found in said.items() if found} == {}
