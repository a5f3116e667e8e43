"""Every pattern of the code base, and texts that are slow for one that is not linear.

    files ──► calls of `re` ──► SourcePattern: compiled, and how it is used ──► texts of its own literals ──► how long

A pattern whose text is known only when it runs is found where a module keeps it; of the rest the place is named.

Not covered: patterns of other packages, and texts of three literals or more that take turns. Without TEST_FULL two
literals take turns only if one comes after the other in the pattern.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.import_graph import PACKAGES
from tests.support.thoroughness import FULL

ROOT = Path(__file__).parents[2]

METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
ALL_MATCHES = frozenset({"finditer", "findall", "sub", "subn", "split"})
LONGEST = (64 if FULL else 16) * 1024
"""Characters of the texts, except for patterns with a name in SHORTER. A quadratic one takes 0.2 s for 16 Ki."""
SHORTER = {
    "streams/scorers/numbers.py _WRITINGS": 20_000,  # MAX_CHARACTERS
    "streams/scorers/numbers.py _GLUED_BEFORE": 60,  # _CONTEXT
}
"""By place: as many as the only text that the pattern reads has."""
TIMES = 4
"""So much shorter is the text that the time is compared with."""
MOST_PIECES = 8
"""Most literals of one pattern that are tried; those after them are like the ones before."""
MOST_S = 1.0
"""CPU seconds until a text counts as endless. A linear pattern takes 0.02 of them."""
NOTICED_S = 0.05
"""From here on the longer text is compared with the shorter one."""


OF_RE = rf"\bre\.(?:compile|{'|'.join(METHODS)})\("


class SourcePattern(NamedTuple):
    """A pattern, where it is, and what it is used for."""

    place: str
    compiled: re.Pattern[Any]
    methods: frozenset[str]


class Found(NamedTuple):
    """What the files have: patterns, and the calls of which only a running program knows the pattern."""

    patterns: list[SourcePattern]
    unknown: set[str]


def found_patterns() -> Found:
    """Return every pattern of the code base."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    uses = re.findall(rf"\b(\w+)\.({'|'.join(METHODS)})\(", "\n".join(sources.values()))
    used = {name: frozenset(method for _, method in group) for name, group in itertools.groupby(sorted(uses), _name)}
    patterns, unknown = [], set()
    for file, source in sources.items():
        if re.search(OF_RE, source):
            found = _patterns_in(file.relative_to(ROOT), ast.parse(source), used)
            patterns += found.patterns
            unknown |= found.unknown
    return Found(patterns, unknown)


def _name(use: tuple[str, str]) -> str:
    return use[0]


def _patterns_in(file: Path, tree: ast.Module, used: dict[str, frozenset[str]]) -> Found:
    names = {
        id(node.value): target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    patterns, unknown, kept = [], set(), False
    for call in ast.walk(tree):
        if not _is_of_re(call):
            continue
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        method, expression = call.func.attr, ast.unparse(call.args[0])
        flags = next((word.value for word in call.keywords if word.arg == "flags"), None)
        if flags is None and len(call.args) > (place := 1 if method == "compile" else 2) and method != "sub":
            flags = call.args[place]
        compiled = _compiled(file, call.args[0], flags)
        if compiled is None:
            if call.col_offset and not kept:  # in a function, or in what a module makes of a table
                kept = True
                patterns += [one for one in _kept_by(file) if one.compiled not in {each.compiled for each in patterns}]
            unknown.add(f"{file}: {expression}")
            continue
        name = names.get(id(call), "")
        methods = used.get(name, frozenset(METHODS)) if method == "compile" else frozenset({method})
        patterns.append(SourcePattern(f"{file}:{call.lineno} {name}".rstrip(), compiled, methods))
    return Found(patterns, unknown)


def _is_of_re(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in ("compile", *METHODS)
    )


def _compiled(file: Path, pattern: ast.expr, flags: ast.expr | None) -> re.Pattern[Any] | None:
    """Return the pattern of a call; None if only the running function knows it."""
    names: dict[str, Any] = {"re": re}
    if any(isinstance(node, ast.Name) for node in ast.walk(pattern)):
        names = vars(_module(file))
    try:
        text = eval(compile(ast.Expression(pattern), str(file), "eval"), names)  # noqa: S307 - of our own files
        bits = 0 if flags is None else eval(compile(ast.Expression(flags), str(file), "eval"), names)  # noqa: S307 - of our own files
    except (NameError, AttributeError):
        return None
    return re.compile(text, bits)


def _module(file: Path) -> Any:
    return importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))


def _kept_by(file: Path) -> list[SourcePattern]:
    """Return the patterns that a module has in tables."""
    kept: list[SourcePattern] = []

    def look(name: str, value: Any, depth: int) -> None:
        if isinstance(value, re.Pattern):
            kept.append(SourcePattern(f"{file} {name}", value, frozenset(METHODS)))
        elif isinstance(value, dict | list | tuple) and depth:
            for inner in value.values() if isinstance(value, dict) else value:
                look(name, inner, depth - 1)

    for name, value in vars(_module(file)).items():
        if isinstance(value, dict | list | tuple):
            look(name, value, 3)
    return kept


# --- texts ------------------------------------------------------------------------------------------------------------


def texts_for(pattern: re.Pattern[Any], length: int) -> Iterator[tuple[str, Any]]:
    """Yield texts of a pattern's own literals, each with what it is made of; as many for any length."""
    parsed = re._parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)  # type: ignore[attr-defined]
    pieces = list(dict.fromkeys(piece for piece in _pieces(parsed) if piece))[:MOST_PIECES]
    made: dict[str, str] = {}
    for piece in pieces:
        made[f"{piece!r} repeated"] = piece * (length // len(piece))
    for first, second in itertools.permutations(pieces, 2) if FULL else itertools.pairwise(pieces):
        both, half = first + second, length // 2
        made[f"{both!r} repeated"] = both * (length // len(both))
        made[f"{first!r}, then {second!r}"] = first * (half // len(first)) + second * (half // len(second))
    for beginning in _beginnings(parsed):
        for piece in pieces:
            made[f"{beginning!r} once, then {piece!r}"] = beginning + piece * (length // len(piece))
    for name, text in made.items():
        for end, said in (("", ""), ("\x00", ", and an end that is none of its own")):
            whole = text + end
            yield name + said, whole.encode() if isinstance(pattern.pattern, bytes) else whole


def _pieces(parsed: Any) -> Iterator[str]:
    """Yield the words in a pattern, and a character of each set."""
    word = ""
    for kind, value in parsed:
        if str(kind) == "LITERAL":
            word += chr(value)
            continue
        yield word
        word = ""
        yield from _inside(str(kind), value)
    yield word


def _inside(kind: str, value: Any) -> Iterator[str]:
    match kind:
        case "IN" | "ANY" | "NOT_LITERAL" | "CATEGORY":
            yield from _characters(kind, value)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            yield from _pieces(value[2])
        case "SUBPATTERN":
            yield from _pieces(value[3])
        case "BRANCH":
            for branch in value[1]:
                yield from _pieces(branch)
        case "ASSERT" | "ASSERT_NOT":
            yield from _pieces(value[1])
        case "ATOMIC_GROUP":
            yield from _pieces(value)


def _characters(kind: str, value: Any) -> list[str]:
    """Return characters of a set: the first of each range, or one that is not in it."""
    if kind == "ANY":
        return ["x"]
    if kind == "NOT_LITERAL":
        return ["x" if value != ord("x") else "y"]
    found, names = [], {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}
    names |= {"CATEGORY_NOT_DIGIT": "x", "CATEGORY_NOT_SPACE": "x", "CATEGORY_NOT_WORD": "-"}
    for inner, what in value if kind == "IN" else [(kind, value)]:
        match str(inner):
            case "LITERAL":
                found.append(chr(what))
            case "RANGE":
                found.append(chr(what[0]))
            case "CATEGORY":
                found.append(names[str(what)])
            case "NEGATE":
                return ["x", " "]
    return found


def _beginnings(parsed: Any) -> list[str]:
    """Return the shortest texts of the first part of a pattern, of its first two, and so on."""
    made, beginnings = "", []
    for kind, value in parsed:
        made += _shortest(str(kind), value)
        beginnings.append(made)
    return [beginning for beginning in dict.fromkeys(beginnings) if beginning]


def _shortest(kind: str, value: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "IN" | "ANY" | "NOT_LITERAL":
            return _characters(kind, value)[0]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return "".join(_shortest(str(inner), what) for inner, what in value[2]) * min(value[0], 300)
        case "SUBPATTERN":
            return "".join(_shortest(str(inner), what) for inner, what in value[3])
        case "BRANCH":
            return "".join(_shortest(str(inner), what) for inner, what in value[1][0])
    return ""


# --- how long ---------------------------------------------------------------------------------------------------------


class TooSlowError(Exception):
    """A text takes longer than MOST_S."""


def slow_text(pattern: SourcePattern) -> str | None:
    """Return the text for which a pattern takes more than in proportion to its length; None if there is none."""
    length = SHORTER.get(re.sub(r":\d+", "", pattern.place), LONGEST)
    shorter = texts_for(pattern.compiled, length // TIMES)
    for (made_of, long), (_, short) in zip(texts_for(pattern.compiled, length), shorter, strict=True):
        for method in sorted(_different(pattern.methods)):
            if not is_linear(_use(pattern.compiled, method), long, short):
                return f"{method} of {made_of}"
    return None


def _different(methods: frozenset[str]) -> frozenset[str]:
    """Return one of those methods that find every match, which a search begins like, and the others."""
    return (methods - ALL_MATCHES - {"search"}) | {"finditer"} if methods & ALL_MATCHES else methods


def is_linear(read: Callable[[Any], object], long: Any, short: Any) -> bool:
    """Return whether a text takes about as many times longer than a shorter one as it is longer."""
    try:
        with at_most(MOST_S):
            first_s = _cpu_s(read, long)
            if first_s < NOTICED_S:
                return True
    except TooSlowError:
        return False
    of_long, of_short = (min(_cpu_s(read, text) for _ in range(3)) for text in (long, short))
    return of_long < 2 * TIMES * of_short


def _cpu_s(read: Callable[[Any], object], text: Any) -> float:
    began = time.process_time()
    read(text)
    return time.process_time() - began


@contextmanager
def at_most(cpu_s: float) -> Iterator[None]:
    """Raise TooSlowError in what takes longer: `re` looks for signals, so a pattern can be ended."""

    def end(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _use(pattern: re.Pattern[Any], method: str) -> Callable[[Any], object]:
    if method == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    return getattr(pattern, method)
