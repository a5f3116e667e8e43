"""No page says what a native speaker would not.

    README, CONTRIBUTING, CHANGELOG, docs/*.md, help texts ──► phrases that give a translation away ──► none is there

The list is short on purpose: each phrase is wrong nearly wherever it occurs in a text about software.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN = sorted(str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
GENERATED = ("docs/cli.md", "docs/metrics.md", "docs/protocols.md", "helm/README.md")
"""Pages that are made of texts in the code: help texts, docstrings, comments on values. Not schemas/README.md: its
texts are part of the schemas, whose bytes are locked."""
NOT_PROSE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
SAY = {
    r"\blies?\b(?!_to)": "is stored, is",
    r"\bstands?_(?:at|on|in(?!_for))\b": "is",
    r"\bgo(?:es|ne|ing)?_on\b|\bwent_on\b": "continue",
    r"\b(?:is|are|was|were)_away\b": "is unreachable",
    r"\bcomes?_on\b": "make progress",
    r"\bunless_(?:said|told)\b": "default: X",
    r"\b(?:is|are|be|was|were)_told\b": "is reported",
    r"\banew\b": "again, re-",
    r"\bpass(?:es|ed)?_(?:it_|them_)?over\b": "skip",
    r"\bin_hand\b": "in flight",
    r"\bline_of_(?:versions|adapters)\b": "the policy's versions",
    r"(?<!dead[ \n-])\b(?-i:letters?)\b(?!\.py)": "dead letter",
    r"\bwho_may_only_read\b": "a read-only principal",
    r"\bbelongs?_into\b": "belongs in",
    r"\bmay_rest\b": "closed",
    r"\bkeeps?_(?:this|it|that)_up\b": "guarantee",
    r"\bbelieved\b": "used after verifying, trusted",
    r"\ba_picture_shows\b": "a view shows",
}
"""A phrase, `_` for a space or a line's end, and what to say in its place."""


def _found(page: str, text: str) -> list[str]:
    return [
        f"{page}:{text.count(chr(10), 0, hit.start()) + 1}: {' '.join(hit[0].split())!r}; say {better!r}"
        for phrase, better in SAY.items()
        for hit in re.finditer(phrase.replace("_", r"\s+"), text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", [page for page in WRITTEN if page not in GENERATED])
def test_a_page_is_plain_english(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert _found(page, NOT_PROSE.sub(lambda cut: "\n" * cut[0].count("\n") + "`", text)) == []


@pytest.mark.parametrize("page", GENERATED)
def test_a_page_that_is_made_from_the_code_is_plain_english(page: str) -> None:
    assert _found(page, (ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page, text", [("a", "It goes\non."), ("b", "No such letter."), ("c", "Unless said, 3.")])
def test_a_phrase_is_found_wherever_its_line_ends(page: str, text: str) -> None:
    assert len(_found(page, text)) == 1
