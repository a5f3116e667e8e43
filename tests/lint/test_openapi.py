"""The committed description of the interface: that of the code, with examples that are true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.document import FILE, text
from gateway.http.application import DESCRIPTION
from gateway.http.body import read
from gateway.http.openapi import JSON
from gateway.http.route import Route
from gateway.rooms.routes import ROUTES, TABLE
from tests.support.documented import differences, document, valid

ROOT = Path(__file__).parents[2]


def operations() -> Iterator[dict[str, Any]]:
    for each in document()["paths"].values():
        yield from each.values()


def test_the_committed_description_is_that_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `python -m gateway.document`, then `make clients`"


def test_the_server_reads_every_request_that_is_an_example() -> None:
    for route in ROUTES:
        if route.sends is None or route.interface.described_in:
            continue
        schema = by_name()[route.name]["requestBody"]["content"][JSON]["schema"]
        assert valid(schema, route.sends) == [], route.name
        if isinstance(route.takes, type):
            read(route.takes, json.dumps(route.sends).encode())


def by_name() -> dict[str, dict[str, Any]]:
    return {operation["operationId"]: operation for operation in operations()}


def test_every_answer_that_is_an_example_is_one_that_is_described() -> None:
    for name, operation in by_name().items():
        for code, response in operation["responses"].items():
            content = response.get("content", {}).get(JSON, {})
            if "example" in content:
                assert code < "300" and valid(content["schema"], content["example"]) == [], name


def test_every_operation_says_what_it_answers_and_who_is_refused() -> None:
    for one in operations():
        good = [told for code, told in one["responses"].items() if code < "400"]
        assert good and all(said.get("schema") != {"type": "object"} for told in good for said in content(told)), one
        assert ("401" in one["responses"]) or one["security"] == [], one["operationId"]


def content(told: dict[str, Any]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = told.get("content", {})
    return list(found.values())


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, {"status": "ok"}, []),
        (200, {"status": "ok", "more": 1}, ["more"]),
        (200, {}, ["'status' is a required property"]),
        (418, {"status": "ok"}, ["status 418 is not one of 200"]),
    ],
)
def test_what_differs_from_the_description_is_found(status: int, body: dict[str, Any], says: list[str]) -> None:
    answer = httpx.Response(status, json=body, request=httpx.Request("GET", "http://there/healthz"))
    found = list(differences(answer))
    assert len(found) == len(says) and all(word in told for word, told in zip(says, found, strict=True))


@pytest.mark.parametrize("route", TABLE.routes, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_in_the_description_or_in_the_page_that_says_what_describes_it(route: Route) -> None:
    page = route.interface.described_in
    if route is DESCRIPTION:
        return
    if not page:
        assert route.method.lower() in document()["paths"][route.paths[0]]
        return
    words = [word for word in re.split("[/{}.]", route.paths[0]) if word and f"{{{word}" not in route.paths[0]]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [word for word in words if not re.search(rf"\b{re.escape(word)}\b", text)] == []
    links = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
    assert f"]({page}" in links and f"docs/{page}" in document()["info"]["description"]


# --- one name, one form -----------------------------------------------------------------------------------------------

OF_OTHERS = ("/v1/",)
"""Paths of protocols that count seconds."""
ROWS = ("streams/cli", "streams/adapters/version_row.py", "plugins")
"""Where rows are made that commands print and routes send."""


def schemas_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of fields that a part of the description leads to."""
    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if (name := str(part.get("$ref", "")).rpartition("/")[2]) and name not in seen:
                seen.add(name)
                waiting.append(document()["components"]["schemas"].get(name, {}))
            if isinstance(part.get("properties"), dict):
                yield part["properties"]
            waiting += part.values()


def test_a_moment_is_a_text_in_every_answer_but_those_of_other_peoples_protocols() -> None:
    for path, each in document()["paths"].items():
        for operation in each.values():
            good = [answer.get("content", {}) for code, answer in operation["responses"].items() if code < "400"]
            for fields in schemas_of(good):
                kind = fields.get("created_at", {})
                assert "integer" not in str(kind) or path.startswith(OF_OTHERS), (path, fields)
    files = [file for place in ROWS for file in ((ROOT / place).rglob("*.py") if "." not in place else [ROOT / place])]
    found = [
        (file.name, line) for file in files for line in re.findall(r'"created_at": (?!.*moment\().*', file.read_text())
    ]
    assert len(files) > 50 and found == []
