"""What openai-python makes of /v1/embeddings: its own tests, and a program with it; requests for `make test`.

tests/api_resources/test_embeddings.py ──► proxy, which names the model `static` ─┐
embeddings_program.py ──► proxy ──► /v1/embeddings ──► what it read               ├─► embeddings.jsonl.xz
                            └─► each request once, the shape of its answer ───────┘
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.strangers import exchanges, openai_python
from tests.strangers.described import read_by
from tests.strangers.proxy import Exchange, between
from tests.strangers.stage import Findings, Stage, Suite

FOLDER = Path(__file__).parent
FILE, FINDINGS = FOLDER / "embeddings.jsonl.xz", FOLDER / "findings.json"
ASKED = {"base64": {"model": "static"}, "numbers": {"model": "static", "encoding_format": "float"}}
"""What the proxy puts into requests of its tests, instead of text-embedding-3-small."""


def embeddings(stage: Stage) -> Findings:
    """Run its tests of embeddings, then the program."""
    tests: Findings = {}
    with stage.server() as server:
        exchanged = list[Exchange]()
        for form, changes in ASKED.items():
            with between(server, partial(change, changes)) as (url, of_tests):
                tests[form] = openai_python.outcomes(url, stage.folder, ["test_embeddings.py"])
            exchanged += of_tests
        with between(server) as (url, of_program):
            read = read_by(FOLDER / "embeddings_program.py", url)
    stage.recordings[FILE] = exchanges.compact([*exchanged, *of_program])
    return {"openai-python, embeddings": tests, "embeddings": read}


def change(changes: Mapping[str, str], _method: str, path: str, raw: bytes) -> tuple[str, bytes]:
    """Put values in the place of those that a request has."""
    return path, json.dumps(json.loads(raw) | changes).encode()


SUITES = {"embeddings": Suite(embeddings, FINDINGS)}
