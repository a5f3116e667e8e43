"""docs/modules.md: every module with the first line of its docstring.

python -m tests.modules           write the page
python -m tests.modules --check   exit 1 if the page would change
"""

from __future__ import annotations

import ast
import sys
from itertools import groupby
from pathlib import Path

from tests.generated_page import write_or_check

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "modules.md"
PACKAGES = ("streamward", "schemas", "streams", "trainer", "gateway")
BEGIN = """# Modules

What each file is for, in its own words: the first line of its docstring. `python -m tests.modules` writes this page.
"""


def page() -> str:
    """Return the page, made from the source files."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    files.sort(key=lambda file: (file.parent.relative_to(ROOT).parts, file.name))
    parts = [BEGIN]
    for folder, modules in groupby(files, key=lambda file: file.parent.relative_to(ROOT)):
        rows = [f"| `{file.relative_to(ROOT)}` | {_first_line(file)} |" for file in modules if _first_line(file)]
        if rows:
            parts.append("\n".join([f"## {folder}/\n", "| module | what it does |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _first_line(file: Path) -> str:
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return told.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|").replace("`", "")


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
