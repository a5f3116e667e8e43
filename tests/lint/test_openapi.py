"""The committed description of the interface: that of the code, with examples that are true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.document import FILE, text
from gateway.http.body import read
from gateway.http.openapi import JSON
from gateway.routes import ROUTES
from tests.support.documented import differences, document, valid


def operations() -> Iterator[dict[str, Any]]:
    for each in document()["paths"].values():
        yield from each.values()


def test_the_committed_description_is_that_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `python -m gateway.document`, then `make clients`"


def test_the_server_reads_every_request_that_is_an_example() -> None:
    for route in ROUTES:
        if route.sends is None:
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
