"""The sources of the site: every page is in its menu, and every link leads to a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import site


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two pages."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "OTHERS", {"README.md": "index.md"})
    (tmp_path / "README.md").write_text(
        "[tasks](docs/tasks.md#ids) [loop](loop.py)\n\n## Documentation\n\n"
        "- **Use**: [tasks](docs/tasks.md), [jobs](docs/jobs.md)\n"
    )
    (tmp_path / "loop.py").touch()
    (tmp_path / "docs" / "tasks.md").write_text("`x[0](y)` ![drawn](drawn.png) [back](../README.md)\n")
    (tmp_path / "docs" / "jobs.md").write_text("```python\nx[0](y)\n```\n")
    (tmp_path / "docs" / "drawn.png").touch()
    return tmp_path


def test_links_lead_to_pages_of_the_site_and_code_is_left_alone(copy: Path) -> None:
    site.write(copy / "out")
    pages = copy / "out" / "docs"
    assert (pages / "index.md").read_text().startswith("[tasks](tasks.md#ids) loop\n")
    assert (pages / "tasks.md").read_text() == "`x[0](y)` ![drawn](drawn.png) [back](index.md)\n"
    assert (pages / "jobs.md").read_text() == (copy / "docs" / "jobs.md").read_text()
    settings = json.loads((copy / "out" / "mkdocs.yml").read_text())
    assert settings["nav"] == [{"Streamward": "index.md"}, {"Use": [{"tasks": "tasks.md"}, {"jobs": "jobs.md"}]}]


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("docs/jobs.md", "[x](gone.md)", "docs/jobs.md: the link gone.md leads nowhere"),
        ("docs/new.md", "a page", "the list of pages in README.md lacks new.md"),
    ],
)
def test_what_leads_nowhere_or_is_not_listed_ends_it(copy: Path, page: str, text: str, said: str) -> None:
    (copy / page).write_text(text)
    with pytest.raises(SystemExit, match=said):
        site.write(copy / "out")


def test_our_own_pages_make_a_site(tmp_path: Path) -> None:
    site.write(tmp_path)
    assert {page.name for page in (site.ROOT / "docs").glob("*.md")} <= {
        page.name for page in (tmp_path / "docs").glob("*.md")
    }
