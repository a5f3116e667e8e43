"""Read the English of the program and its pages, and find phrases that give a translation away.

    source, pages ──► headers, docstrings, help, settings, messages ──► each phrase of SAY and TRANSLATED in them

    python -m tests.prose                      hits by kind and by folder
    python -m tests.prose streams/cli          each hit in a folder or module
    python -m tests.prose --pages              each hit in README, CONTRIBUTING, CHANGELOG and docs

`tests/lint/test_plain_english.py` holds a ceiling for each kind, which only goes down.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from tests.import_graph import ROOT, sources

Kind = Literal["page", "header", "docstring", "help", "setting", "message"]

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
    r"(?<!dead[ \n-])\b(?-i:letters?)\b(?!\.py|,?_(?:digits|or_digits|and_digits|of))": "dead letter",
    r"\bwho_may_only_read\b": "a read-only principal",
    r"\bbelongs?_into\b": "belongs in",
    r"\bmay_rest\b": "closed",
    r"\bkeeps?_(?:this|it|that)_up\b": "guarantee",
    r"\bbelieved\b": "used after verifying, trusted",
    r"\ba_picture_shows\b": "a view shows",
}
"""A phrase, `_` for a space or a line's end, and what to say in its place. No page may have one of these."""

SENTENCE = r"(?:\A|(?<=[.:;!?])_|\n\n[#*>|-]*\s*)"
VERB = (
    r"(?:is|are|was|were|has|have|had|does|do|may|can|must|needs?|wants?|asks?|came|comes?|goes|went|gave|gives?|"
    r"(?!this|its|his)\w+(?:ed|[^s\W]s))\b"
)
TRANSLATED = {
    rf"{SENTENCE}\(?(?-i:Who|Whom)_{VERB}": "the user, the caller, a principal",
    rf"{SENTENCE}\(?(?-i:What)_{VERB}": "name it: the fields, the requests",
    rf"{SENTENCE}\(?(?-i:Whose)\b": "the owner of, the principal of",
    r"\bwhose_(?:every|all)\w*": "a noun with `all`",
    r"\b(?:nobody|whoever|whosoever)\b": "no user, no process, any client",
    r"\b(?:some|every)body\b": "a user, a person, all users",
    r"\bbesides?\b": "next to, with, in addition to",
    r"(?<!lag )(?<!lags )(?<!ll )(?<!lls )(?<!versions )\bbehind\b(?!_an?\b)": "of, for, in front of",
    r"\bat_hand\b": "available",
    r"\bstands?_against\b": "limits, prevents",
    r"\bheld_on_to\b|\bholds?_on_to\b": "keeps",
    r"\bout_of_reach\b": "unreachable",
    r"\bprocessor_time\b": "CPU time",
    r"\bby_the_clock\b": "wall-clock",
    r"\bcarr(?:y|ies|ied)_out\b": "run, serve",
    r"\b(?:is|are|be|was|were)_(?:not_)?let_in\b": "is admitted, is refused",
    r"\bso_far_as\b|\bas_far_as_it\b": "where, if",
    rf"{SENTENCE}(?-i:And)_why\b": "with the reason",
    r"\bby_turns\b": "in turn, round-robin",
    r"\bwho_(?:has|have)_\w+\b": "with, without",
    r"\bof_(?:one's|its|their|your)_own\b(?=_[.,;:])": "its own X",
    r"\bwhat(?:_was|_is|_were|_are)?_(?:asked|said|told|given|wanted|known)\b": "the request, the message, the value",
    r"\bwho_(?:asks|asked|calls|called|wants|needs|reads|runs|writes)\b": "the caller, the client, the reader",
    r"\bthat_others?_(?:wrote|made|have|has)\b": "third-party",
    r"\bwhat_others_\w+": "third-party input",
    r"\bputs?_back\b": "restores",
}
"""The same for constructions that give a translation away. Each kind of text has a ceiling."""


NOT_PROSE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
HELP = ("help", "short_help", "epilog", "description")
"""Arguments of click, pydantic and argparse."""


class Text(NamedTuple):
    """A text that a person reads, and where it begins."""

    path: str
    line: int
    kind: Kind
    text: str


class Hit(NamedTuple):
    """A phrase that should be said otherwise."""

    path: str
    line: int
    kind: Kind
    phrase: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.kind}): {self.phrase!r}; say {self.better!r}"


class _Reader(ast.NodeVisitor):
    """Collects the texts of a module."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.texts: list[Text] = []
        self._kind: Kind = "message"

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_documented(node, "header")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_documented(node, "docstring")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        is_command = re.search(r"\.(command|group)\(", decorators) is not None
        self._visit_documented(node, "help" if is_command else "docstring")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_documented(node, "docstring")

    def _visit_documented(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, kind: Kind
    ) -> None:
        docstring = ast.get_docstring(node)
        if docstring is not None:
            self._add(node.body[0].lineno, kind, docstring)
        for child in ast.iter_child_nodes(node):
            if docstring is None or child is not node.body[0]:
                self.visit(child)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self._add(node.lineno, "docstring", inspect.cleandoc(node.value.value))
        else:
            self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        before, self._kind = self._kind, "help" if node.arg in HELP else self._kind
        self.generic_visit(node)
        self._kind = before

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (self._kind == "help" or node.value.count(" ") >= WORDS):
            self._add(node.lineno, self._kind, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
        if text.count(" ") >= WORDS:
            self._add(node.lineno, self._kind, text)

    def _add(self, line: int, kind: Kind, text: str) -> None:
        is_setting = kind in ("help", "docstring") and self.path.startswith("streams/settings/")
        self.texts.append(Text(self.path, line, "setting" if is_setting else kind, without_code(text)))


LOCKED = ("_events.py", "_types.py")
"""Ends of the names in `schemas/` of modules whose texts are part of the schemas, whose bytes are locked."""
WORDS = 3
"""A string with at least so many spaces is a message; shorter ones are names, formats and keys."""


def without_code(text: str) -> str:
    """Return `text` with a backtick for each piece of code in it, and with its lines."""
    return NOT_PROSE.sub(lambda code: "\n" * code[0].count("\n") + "`", text)


@cache
def program_texts() -> tuple[Text, ...]:
    """Return every text in the program."""
    result: list[Text] = []
    for module in sources():
        if module.path.startswith("schemas/") and module.path.endswith(LOCKED):
            continue
        reader = _Reader(module.path)
        reader.visit(module.tree)
        result += reader.texts
    return tuple(result)


def page_texts() -> list[Text]:
    """Return README and the other pages."""
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
    return [
        Text(str(page.relative_to(ROOT)), 1, "page", without_code(page.read_text(encoding="utf-8"))) for page in pages
    ]


def hits(texts: Iterable[Text], phrases: Mapping[str, str]) -> list[Hit]:
    """Return where `texts` have one of `phrases`."""
    return [
        Hit(text.path, text.line + text.text.count("\n", 0, hit.start()), text.kind, " ".join(hit[0].split()), better)
        for text in texts
        for phrase, better in phrases.items()
        for hit in _compiled(phrase).finditer(text.text)
    ]


@cache
def _compiled(phrase: str) -> re.Pattern[str]:
    return re.compile(phrase.replace("_", r"\s+"), re.IGNORECASE)


def main() -> None:
    """Print what the arguments ask for."""
    if sys.argv[1:] == ["--pages"]:
        print(*hits(page_texts(), TRANSLATED), sep="\n")
        return
    prefix = "".join(sys.argv[1:2])
    every_hit = hits((text for text in program_texts() if text.path.startswith(prefix)), SAY | TRANSLATED)
    if prefix:
        print(*sorted(every_hit), sep="\n")
    for title, count in (
        ("kind", Counter(hit.kind for hit in every_hit)),
        ("folder", Counter(str(Path(hit.path).parent) for hit in every_hit)),
        ("say", Counter(hit.better for hit in every_hit)),
    ):
        print(f"\n{title:40} hits", *(f"{name:40} {number:4}" for name, number in count.most_common()), sep="\n")


if __name__ == "__main__":
    main()
