"""Views of versions say what the folds of their events say."""

from __future__ import annotations

from typing import Any

from streams.adapters import versions as adapters
from streams.tools.query.views import JOINS
from tests.support.appended import Appended
from tests.support.factories import adapter_event, evaluated, promoted, trained

VIEWS = {view.name: view.sql for view in JOINS}


def rows(log: Appended, name: str) -> list[dict[str, Any]]:
    with log.connect() as con:
        result = con.sql(VIEWS[name])
        return [dict(zip(result.columns, row, strict=True)) for row in result.fetchall()]


def test_a_version_is_shown_with_what_made_it_how_it_did_and_what_it_is_now() -> None:
    events = [
        trained(1, metrics={"reward": 0.5}),
        trained(1, metrics={"reward": 0.75}),
        evaluated(1, 0.5),
        promoted(1),
        trained(2, recipe={"imported.framework": "verl"}),
        evaluated(2, 0.25),
        evaluated(2, 0.75, suite="sums@2"),
        adapter_event("canary_started", 2, share=0.25, expected_version=1),
        trained(3),
        adapter_event("rejected", 3),
        trained(5),
        trained(1, policy="other"),
    ]
    state = adapters.empty("default")
    for event in events:
        if event.policy == "default":
            state = adapters.fold(state, event)
    found = rows(Appended(*events), "policy_checkpoints")
    by_version = {(row["policy"], row["version"]): row for row in found}
    assert len(by_version) == len(found) == 4, "nothing was before version 5"
    for version in (1, 2, 3):
        assert by_version["default", version]["status"] == state.versions[version].status.replace("_", " ")
    first, second = by_version["default", 1], by_version["default", 2]
    assert (first["made_by"], first["reward"], first["share"], first["success"]) == ("batches", 0.5, None, 0.5)
    assert (second["made_by"], second["share"]) == ("imported", 0.25)
    assert (second["suite"], second["success"]) == ("sums@2", 0.75)
    assert (second["parent_version"], second["uri"]) == (1, "/store/default/2")
