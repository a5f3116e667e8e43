"""The committed description of the whole interface, openapi.json: of a server with keys, where people can log in.

    python -m gateway.document           write it
    python -m gateway.document --check   exit 1 if it would change

A server's own /openapi.json has of this what it serves: without keys nothing of people, and no statuses of the door.
Clients are generated from this file (clients/).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gateway.http import openapi
from gateway.http.application import TITLE
from gateway.rooms.routes import PARTS, ROUTES
from streams.files import program_version

FILE = Path(__file__).with_name("openapi.json")
WIDTH = 110


def document() -> dict[str, Any]:
    """Return the description of every route."""
    mounted = (route for part in PARTS for route in part.ROUTES)
    return openapi.document([*ROUTES, *mounted], title=TITLE, version=program_version(), keys=True)


def text() -> str:
    """Return the file: paths in the order of the routes, everything that has a name in the order of the names."""
    return _lines(document()) + "\n"


def _lines(value: Any, indent: str = "") -> str:
    """Return JSON with everything on one line that fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _lines(item, inner) for item in value) + f"\n{indent}]"
    pairs = (f"{inner}{json.dumps(name)}: {_lines(item, inner)}" for name, item in value.items())
    return "{\n" + ",\n".join(pairs) + f"\n{indent}}}"


def main() -> int:
    """Write or compare; return the exit code."""
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text(), encoding="utf-8")
        return 0
    same = FILE.exists() and FILE.read_text(encoding="utf-8") == text()
    if not same:
        print(f"{FILE.name} would change; run `python -m gateway.document`, then `make clients`", file=sys.stderr)
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
