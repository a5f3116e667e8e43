"""What `tests.house --without` copies; what it runs there is run by hand and by `make test-without`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams.plugins.installed import InstalledPlugin, load_plugins
from streams.plugins.plugin import Plugin
from tests import conftest, without
from tests.without import FILE_NAME, LINK, ROOT, copy_without, files_without, removed_with


def test_what_requires_a_plugin_goes_with_it_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = [Plugin(name="a"), Plugin(name="b", requires=("a",)), Plugin(name="c", requires=("b",)), Plugin(name="d")]
    monkeypatch.setattr(without, "load_plugins", lambda: [InstalledPlugin(plugin, "x", None) for plugin in plugins])
    assert (removed_with("a"), removed_with("d")) == ({"a", "b", "c"}, {"d"})
    with pytest.raises(ValueError, match=re.escape("no plugin is called e; there are a, b, c, d")):
        removed_with("e")


def test_the_copy_has_all_but_the_plugin_and_no_link_or_name_of_what_is_gone(tmp_path: Path) -> None:
    (name, *_) = re.findall(r"`tests/plugins/(\w+)/", (ROOT / "docs" / "reliability.md").read_text())
    gone = {*files_without(())} - {*files_without((name,))}
    assert {Path(f"plugins/{name}/__init__.py"), Path(f"docs/{name}.md")} <= gone
    assert all(name in file.parts or file.stem == name for file in gone)
    copy_without((name,), tmp_path)
    pages = [*tmp_path.glob("*.md"), *tmp_path.glob("docs/*.md")]
    links = [(page, link[2]) for page in pages for link in LINK.finditer(page.read_text())]
    in_tree = [(page, link) for page, link in links if (ROOT / page.relative_to(tmp_path).parent / link).exists()]
    assert len(in_tree) > 100 and all((page.parent / link).exists() for page, link in in_tree)
    names = [name[2] for page in pages for name in FILE_NAME.finditer(page.read_text())]
    files = [file for file in names if (ROOT / file).is_file()]
    assert len(files) > 100 and all((tmp_path / file).exists() for file in files)
    assert f"docs/{name}.md" in (ROOT / "README.md").read_text()
    assert f"docs/{name}.md" not in (tmp_path / "README.md").read_text()


def test_a_page_of_the_copy_names_no_command_and_no_test_of_what_is_gone(tmp_path: Path) -> None:
    plugins = [plugin for plugin, _, version in load_plugins() if version is None]
    named = [
        (plugin.name, command)
        for plugin in plugins
        for command in plugin.commands
        if f"streamward {command}" in (ROOT / "README.md").read_text()
    ]
    for name, command in dict(named).items():
        copy_without((name,), tmp_path / name)
        assert f"streamward {command}" not in (tmp_path / name / "README.md").read_text()
        assert f"tests/plugins/{name}/" not in (tmp_path / name / "docs" / "security.md").read_text()
    assert named


def test_a_test_file_is_left_out_if_it_imports_a_plugin_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    (tmp_path / "plugins" / "here").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    files = {name: tmp_path / "tests" / f"test_{name}.py" for name in ("here", "gone")}
    for name, file in files.items():
        file.write_text(f"import pytest\n\nfrom tests.plugins.{name}.logs import log\n")
    assert {name: conftest.pytest_ignore_collect(file) for name, file in files.items()} == {"here": None, "gone": True}
