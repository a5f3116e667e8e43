"""The committed description of the interface: that of the code, with examples that are true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.document import FILE, text
from gateway.http.body import Body, read
from gateway.http.examples import ANSWERED, ASKED
from gateway.http.openapi import JSON
from tests.support.documented import differences, document, valid


def operations() -> Iterator[dict[str, Any]]:
    for each in document()["paths"].values():
        yield from each.values()


def test_the_committed_description_is_that_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run `python -m gateway.document`, then `make clients`"


def test_every_example_is_of_an_operation_and_the_server_reads_each_request() -> None:
    every = {one["operationId"]: one for one in operations()}
    assert {*ASKED, *ANSWERED} <= set(every)
    bodies = {one.__name__: one for one in subclasses(Body)}
    for name, asked in ASKED.items():
        schema = every[name]["requestBody"]["content"][JSON]["schema"]
        assert valid(schema, asked) == [], name
        if "$ref" in schema:
            read(bodies[schema["$ref"].rpartition("/")[2]], json.dumps(asked).encode())


def subclasses(of: type[Body]) -> Iterator[type[Body]]:
    for one in of.__subclasses__():
        yield one
        yield from subclasses(one)


def test_every_answer_that_is_an_example_is_one_that_is_described() -> None:
    for one in operations():
        if (answered := ANSWERED.get(one["operationId"])) is not None:
            code = next(code for code in one["responses"] if code < "300")
            assert valid(one["responses"][code]["content"][JSON]["schema"], answered) == [], one["operationId"]


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
