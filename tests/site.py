"""Make the docs a site that can be searched: docs/ and the pages next to it, in the order of the README's list.

    README.md ──► index.md, and the menu: its list of pages        docs/*.md ──► pages; a link out of docs/ ──► OTHERS
    ──► FOLDER/docs, FOLDER/mkdocs.yml ──► zensical build --strict ──► FOLDER/site

    python -m tests.site FOLDER [ZENSICAL]      without ZENSICAL it writes the sources alone

A page that the README does not name and a link that leads nowhere are errors. A link to a source is its text: the site
has pages alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = {
    "README.md": "index.md",
    **{name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    "schemas/README.md": "events.md",
    "helm/README.md": "chart.md",
}
"""Pages outside docs/, by their path in the repository, and their names in the site."""
_LINK = re.compile(r"```.*?```|``.*?``|(?<!\[)`[^`\n]*`|\[([^\[\]]*)\]\(([^)#\s]+)(#[^)]*)?\)", re.DOTALL)
"""A link, or code, in which there is none."""
_ENTRY = re.compile(r"\[([^\]]+)\]\(([^)#]+)\)")


def write(folder: Path) -> None:
    """Write the sources of the site. Raises SystemExit with what is missing or leads nowhere."""
    pages = {f"docs/{page.name}": page.name for page in sorted((ROOT / "docs").glob("*.md"))} | OTHERS
    target = folder / "docs"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    for path, name in pages.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        (target / name).write_text(_LINK.sub(partial(_link, path, pages), text), encoding="utf-8")
    menu = _menu(pages)
    listed = {page for section in menu for entries in section.values() for entry in entries for page in entry.values()}
    if missing := set(pages.values()) - listed - {"index.md"}:
        raise SystemExit(f"the list of pages in README.md lacks {', '.join(sorted(missing))}")
    nav = [{"Streamward": "index.md"}, *menu]
    settings = {
        "site_name": "Streamward",
        "nav": nav,
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "content.code.copy"]},
        "markdown_extensions": ["tables", "attr_list", "pymdownx.superfences", "pymdownx.highlight"],
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")  # JSON is YAML


def _menu(pages: dict[str, str]) -> list[dict[str, list[dict[str, str]]]]:
    """Return the sections of the README's list, each with its pages by title."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- \*\*(\w+)\*\*: (.+)$", readme.partition("## Documentation")[2], re.MULTILINE)
    return [
        {section: [{title: pages[path]} for title, path in _ENTRY.findall(line) if path in pages]}
        for section, line in lines
    ]


def _link(page: str, pages: dict[str, str], link: re.Match[str]) -> str:
    """Return a link of a page as the site has it. Raises SystemExit if it leads nowhere."""
    text, path, anchor = link[1], link[2], link[3] or ""
    if path is None or ":" in path:
        return link[0]
    of_root = os.path.normpath(Path(page).parent / path)
    if of_root in pages:
        return f"[{text}]({pages[of_root]}{anchor})"
    if of_root.startswith("docs/") and (ROOT / of_root).is_file():
        return f"[{text}]({of_root.removeprefix('docs/')}{anchor})"
    if not (ROOT / of_root).exists():
        raise SystemExit(f"{page}: the link {path} leads nowhere")
    return text


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write(out)
    if len(sys.argv) > 2:
        subprocess.run([sys.argv[2], "build", "--strict", "--clean"], cwd=out, check=True)
