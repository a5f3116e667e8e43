"""An order of a search that cannot be is refused, and no answer to one names anything of other tenants."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.rooms.routes import TABLE
from plugins.prompts.search.search_request import SearchConfig
from tests.support.planted_log import QUERIES

pytestmark = pytest.mark.kafka
names: Any = pytest.importorskip("tests.plugins.people.test_names_of_others", exc_type=ImportError)
served = names.served
ORDER = {"agent_id": "sums", "training_queries": QUERIES}


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("/finetune/jobs", {**ORDER, "type": "PROMPT_ENGINEERING"}, "prompt", "is missing"),
        (
            "/prompts/optimize",
            {**ORDER, "prompt": "p", "config": {"endpoint": "os:system"}},
            "config.endpoint",
            "leave it out",
        ),
    ],
)
def test_an_order_that_cannot_be_is_refused(served: Any, path: str, body: Any, param: str, says: str) -> None:
    refused = served.ask("POST", path, body)
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == param and says in error["message"], refused.text


def test_an_order_of_a_search_names_nothing_that_others_have(served: Any) -> None:
    named = {"type": "PROMPT_ENGINEERING", "prompt": names.NOBODYS}
    routes = {path: route for route in TABLE.routes for path in route.paths if route.method == "POST"}
    asked = [
        question
        for path, fields in (("/prompts/optimize", {"prompt": names.NOBODYS}), ("/finetune/jobs", named))
        for question in names.orders(routes[path], path, SearchConfig, fields)
    ]
    names.check_names(served, asked)
    assert len(asked) > 7  # a config has three texts
