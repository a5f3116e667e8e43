"""The version is one fact: `version` in pyproject.toml. Chart, docker compose and clients hold copies, written here.

    pyproject.toml ──► helm/Chart.yaml       version, appVersion, and so the tag of every image of the chart
                   ──► docker-compose.yml    the tags of our images
                   ──► clients/              of both packages

`make docs` writes, a test compares. CHANGELOG.md begins with this version; `make images` and `make release` read it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIES = {
    "helm/Chart.yaml": r"^(?:version|appVersion): ()([\w.+-]+)$",
    "docker-compose.yml": r"^ +image: (streamward-\w+:)(\d[\w.]*)",
    "clients/python/pyproject.toml": r'^(version = ")([\w.+-]+)',
    "clients/typescript/package.json": r'^(  "version": ")([\w.+-]+)',
}
"""Where a copy is, after the part of its line that stays."""


def version() -> str:
    """Return the version."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert isinstance(found, str)
    return found


def copies() -> dict[str, list[str]]:
    """Return what each file says now."""
    return {name: [found[2] for found in _found(name)] for name in COPIES}


def _found(name: str) -> list[re.Match[str]]:
    return list(re.finditer(COPIES[name], (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))


def write() -> None:
    """Bring every copy in line."""
    for name in COPIES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for found in reversed(_found(name)):
            text = text[: found.start(2)] + version() + text[found.end(2) :]
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
