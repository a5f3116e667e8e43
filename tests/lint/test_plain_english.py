"""No page and no text of the program says what a native speaker would not.

    README, CONTRIBUTING, CHANGELOG, docs/*.md       ──► phrases of SAY: none; constructions of TRANSLATED: a ceiling
    headers, docstrings, help, settings, messages    ──► both: a ceiling for each kind

`python -m tests.prose` prints the hits by kind and folder, `python -m tests.prose streams/cli` each one. A change that
mends some lowers the ceiling with them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.import_graph import ROOT
from tests.prose import SAY, TRANSLATED, Hit, Kind, Text, hits, page_texts, program_texts

GENERATED = ("docs/cli.md", "docs/metrics.md", "docs/protocols.md", "helm/README.md")
"""Pages that are made of texts in the code: help texts, docstrings, comments on values."""
CEILINGS: dict[Kind, int] = {
    "page": 12,
    "header": 13,
    "docstring": 85,
    "help": 0,
    "setting": 0,
    "message": 33,
}
PAGES = [page for page in page_texts() if page.path not in GENERATED]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_is_plain_english(page: Text) -> None:
    assert hits([page], SAY) == []


@pytest.mark.parametrize("path", [path for path in GENERATED if (ROOT / path).exists()])
def test_a_page_that_is_made_from_the_code_is_plain_english(path: str) -> None:
    page = Text(path, 1, "page", (ROOT / path).read_text(encoding="utf-8"))
    assert hits([page], SAY) == []


def test_texts_of_the_program_are_no_less_plain_than_they_were() -> None:
    every_hit = hits(PAGES, TRANSLATED) + hits(program_texts(), SAY | TRANSLATED)
    counts = Counter(hit.kind for hit in every_hit)
    above = {kind: count for kind, count in counts.items() if count > CEILINGS[kind]}
    assert above == {}, "python -m tests.prose FOLDER prints each; those of these kinds:\n" + _listed(every_hit, above)


def _listed(every_hit: list[Hit], kinds: dict[Kind, int]) -> str:
    return "\n".join(str(hit) for hit in every_hit if hit.kind in kinds)


def _phrases(text: str) -> list[str]:
    return [hit.phrase for hit in hits([Text("a", 1, "header", text)], SAY | TRANSLATED)]


@pytest.mark.parametrize("text", ["It goes\non.", "No such letter.", "Unless said, 3."])
def test_a_phrase_is_found_wherever_its_line_ends(text: str) -> None:
    assert len(_phrases(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Whose a request is: the key that the door let in.",
        "Who asks is refused.",
        "The jobs. What is answered about them.",
        "A role whose everything is allowed.",
        "It is refused. And why; it ends with 4.",
        "The file beside it.",
        "The door is behind it.",
        "Nobody may.",
        "The job that whoever ordered it wants.",
    ],
)
def test_a_construction_that_gives_a_translation_away_is_found(text: str) -> None:
    assert len(_phrases(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "The principal of a request: the API key or the logged-in user.",
        "What this means for a batch.",
        "Two versions behind, and a server behind a proxy.",
        "It may hold letters, digits and dots.",
        "The dead letters of a topic.",
    ],
)
def test_plain_english_is_left_alone(text: str) -> None:
    assert _phrases(text) == []
