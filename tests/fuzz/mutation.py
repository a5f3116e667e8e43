"""Make the next input for a reader from those it has seen: bytes changed anywhere, or a value in a tree of values.

    corpus ──► one of them, sometimes parsed ──► 1 to 8 changes ──► bytes

Half of the mutations of JSON, YAML and TOML are made in the parsed tree, so that what is inside is reached too. All is
drawn from one generator, so a seed repeats a run.
"""

from __future__ import annotations

import json
import random
import struct
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tomli_w
import yaml

Grammar = Literal["bytes", "json", "lines", "yaml", "toml"]
MAX_BYTES = 256 * 1024

TOKENS = (
    b"", b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\\ud800", b"\\u0000", b"NaN",
    b"Infinity", b"-0", b"1e308", b"1e999", b"9" * 20, b"9" * 5000, b"null", b"true", b"{}", b"[]", b'""', b'"', b"{",
    b"[" * 20_000, b'{"a":' * 20_000, b"../../x", b"/dev/zero", b"file:///etc/passwd", b"%00", b"\x80" * 9 + b"\x01",
    b"\xff" * 9 + b"\x01", b"*a", b"&a [*a, *a]", b"!!python/none", b"2001-01-01", b"0x10", b"1_000", b"\xe2\x80\xae",
)  # fmt: skip
"""What readers stumble over: broken UTF-8, huge numbers, deep nesting, paths, the longest varints of Avro."""
NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63))
VALUES: tuple[Any, ...] = (
    None, True, False, *NUMBERS, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), "", "0", "a", "\x00",
    "\ud800", "é" * 300, "x" * 5000, "../x", "/", "1e5", "none", "file:///etc/passwd", "2001-01-01", [], {}, [[]],
    [None], {"": None}, [{}] * 3,
)  # fmt: skip


def mutated(draw: random.Random, corpus: Sequence[bytes], grammar: Grammar) -> bytes:
    """Return an input made from one of the corpus, and sometimes a second."""
    data = draw.choice(corpus)
    if grammar != "bytes" and draw.random() < 0.5:
        changed = _in_tree(draw, data, draw.choice(corpus), grammar)
        if changed is not None:
            return changed[:MAX_BYTES]
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        data = draw.choice(_CHANGES)(draw, data)
    if draw.random() < 0.05:  # the beginning of one, the end of another
        other = draw.choice(corpus)
        data = data[: draw.randint(0, len(data))] + other[draw.randint(0, len(other)) :]
    return data[:MAX_BYTES]


# --- bytes ------------------------------------------------------------------------------------------------------------


def _place(draw: random.Random, data: bytes) -> int:
    return draw.randint(0, len(data))


def _flip(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _overwrite(draw: random.Random, data: bytes) -> bytes:
    at, new = _place(draw, data), draw.randbytes(draw.randint(1, 4))
    return data[:at] + new + data[at + len(new) :]


def _number(draw: random.Random, data: bytes) -> bytes:
    form = draw.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    new = struct.pack(form, draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(form)))
    at = _place(draw, data)
    return data[:at] + new + data[at + len(new) :]


def _token(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw.choice(TOKENS) + data[at + draw.choice((0, 0, 1, 4)) :]


def _delete(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + data[at + draw.randint(1, max(1, len(data) // 4)) :]


def _repeat(draw: random.Random, data: bytes) -> bytes:
    at = _place(draw, data)
    part = data[at : at + draw.randint(1, max(1, len(data) // 4))]
    return data[:at] + part * draw.choice((2, 2, 3, 50)) + data[at + len(part) :]


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: _place(draw, data)]


_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _overwrite, _number, _token, _delete, _repeat, _cut,
)  # fmt: skip


# --- trees ------------------------------------------------------------------------------------------------------------

_READ: dict[Grammar, Callable[[bytes], Any]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "toml": lambda data: tomllib.loads(data.decode()),
}
_WRITE: dict[Grammar, Callable[[Any], str]] = {
    "json": json.dumps,
    "yaml": json.dumps,  # JSON is YAML
    "toml": tomli_w.dumps,
}


def _in_tree(draw: random.Random, data: bytes, other: bytes, grammar: Grammar) -> bytes | None:
    """Return `data` with values replaced, some by those of `other`; None if it cannot be parsed or written."""
    if grammar == "lines":
        lines = data.splitlines() or [b""]
        at = draw.randrange(len(lines))
        changed = _in_tree(draw, lines[at], draw.choice(other.splitlines() or [b""]), "json")
        return None if changed is None else b"\n".join((*lines[:at], changed, *lines[at + 1 :]))
    try:
        tree, theirs = _READ[grammar](data), _READ[grammar](other)
        for _ in range(draw.choice((1, 1, 2, 4))):
            tree = _replaced(draw, tree, theirs)
        return _WRITE[grammar](tree).encode(errors="surrogatepass")
    except (ValueError, TypeError, RecursionError, AttributeError, KeyError, yaml.YAMLError):
        return None  # one of the corpus that is broken, or a value that the format cannot hold


def _replaced(draw: random.Random, tree: Any, other: Any) -> Any:
    """Return a tree in which one value, key or item is another."""
    if isinstance(tree, dict) and tree and draw.random() < 0.85:
        name = draw.choice(list(tree))
        what = draw.random()
        if what < 0.1:
            return {key: value for key, value in tree.items() if key != name}
        if what < 0.2:
            return {**tree, draw.choice(("", "a", "\x00", "é", name + "x")): tree[name]}
        return {**tree, name: _replaced(draw, tree[name], other)}
    if isinstance(tree, list) and tree and draw.random() < 0.85:
        at = draw.randrange(len(tree))
        what = draw.random()
        if what < 0.1:
            return tree[:at] + tree[at + 1 :]
        if what < 0.2:
            return tree[: at + 1] + tree[at:]
        return [*tree[:at], _replaced(draw, tree[at], other), *tree[at + 1 :]]
    if isinstance(tree, str) and draw.random() < 0.5:
        return _some_change(draw, tree)
    return draw.choice((*VALUES, _any_of(draw, other), [tree], {"a": tree}))


def _some_change(draw: random.Random, text: str) -> str:
    change = draw.choice(_CHANGES)
    return change(draw, text.encode(errors="surrogatepass"))[:MAX_BYTES].decode(errors="surrogateescape")


def _any_of(draw: random.Random, tree: Any) -> Any:
    """Return any value in a tree."""
    while draw.random() < 0.7 and isinstance(tree, dict | list) and tree:
        tree = draw.choice(list(tree.values()) if isinstance(tree, dict) else tree)
    return tree
