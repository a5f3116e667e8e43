"""Names that say nothing: fillers among bound names, and functions named by a past participle.

    source ──► every name that it binds ──► is it a filler?
           ──► every function           ──► is its name a past participle?

A bound name is a parameter, a target of an assignment, loop, `with`, `except`, comprehension or pattern, a field of a
class, an attribute of `self`, or a function. Classes, imports and `_` are not counted.

Not covered: compound names (`asked_name`), and whether a noun is the right noun.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PARTICIPLES = _words(
    """
    asked brought found given gone got had held kept known made noted said shown taken told wanted
    came went did does was were has have says
    """
)
"""Verbs in place of a noun: what was found, asked or known? Not `done` (an episode), `seen` (what a loop has met),
`drawn` (a sample), which are words of the field."""
PRONOUNS = _words(
    """
    one ones it they them this that these those such what which who whom whose where why how
    each every any some several both all most more much many few less
    others another same own mine ours theirs yours
    thing things stuff something anything nothing everything somebody anybody nobody everybody whoever whatever
    """
)
"""Words that point at a thing and do not name it. Not `other`, which `__eq__` compares with, and `rest`."""
PLACES = _words("at of into onto without over under between behind beside besides here there then thus")
"""Prepositions and adverbs: at which position, of which policy? Not `before` and `after`, a pair of states, `left` and
`right`, sides, `until` and `since`, bounds of time, `on`, `by` and `to`, options of commands."""
GENERIC = _words("tmp temp foo bar baz data2 obj var dummy")
FILLERS = PARTICIPLES | PRONOUNS | PLACES | GENERIC
"""Nouns of the field are never fillers: `start`, `end`, `first`, `last`, `text`, `value`."""

IRREGULAR = _words(
    """
    begun bound bought brought built caught chosen done drawn driven eaten fallen forgotten found frozen given gone got
    grown held hidden kept known laid left lent lost made meant met overridden paid said seen sent shown sold spent
    spoken stolen stood taken thrown told torn understood undone won worn written unwritten withheld woken
    """
)
"""Not those that look like the verb (read, run, put, set, cut, split, shut): `read_body` is a verb with its object."""
NO_PARTICIPLE = _words("bed bleed breed embed exceed feed heed need proceed red seed shed speed succeed")
PARTICLES = _words(
    """
    of by at in on to for with without from after before since until into over out off up down back away aside again
    ahead behind beside elsewhere together apart
    """
)
"""What may follow a participle without making a noun of it: `asked_of` is none, `allowed_servers` is one."""


@dataclass(frozen=True)
class Name:
    """A name where it is bound."""

    name: str
    line: int
    scope: str
    """The function or class around it, as `Class.method`; empty at the top of the module."""
    is_function: bool = False

    @property
    def word(self) -> str:
        """The name without underscores around it."""
        return self.name.strip("_")

    @property
    def is_filler(self) -> bool:
        """Whether the name says nothing. A function that is named by a past participle counts as that."""
        is_dunder = self.name.startswith("__") and self.name.endswith("__")
        return self.word.lower() in FILLERS and not is_dunder and not self.is_participle

    @property
    def is_participle(self) -> bool:
        """Whether it is a function that is named by a past participle."""
        first, *rest = self.word.split("_")
        alone = not rest or rest[0] in PARTICLES
        return self.is_function and alone and _is_past_participle(first)


def _is_past_participle(word: str) -> bool:
    return word in IRREGULAR or (re.fullmatch(r"[a-z]{2,}ed", word) is not None and word not in NO_PARTICIPLE)


def bound_names(tree: ast.AST) -> list[Name]:
    """Return every name that a module binds, in no particular order."""
    names: list[Name] = []
    ahead = [(tree, "")]
    while ahead:
        node, scope = ahead.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(Name(node.name, node.lineno, scope, is_function=True))
        elif isinstance(node, BINDING) and (name := _bound_by(node)) is not None:
            names.append(Name(name, node.lineno, scope))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        ahead += [(child, scope) for child in ast.iter_child_nodes(node)]
    return [name for name in names if name.word]


BINDING = (ast.Name, ast.arg, ast.Attribute, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


def _bound_by(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) if name not in ("self", "cls"):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return name
    return None
