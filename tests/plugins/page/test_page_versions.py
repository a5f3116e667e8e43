"""What the page says of each event of a policy is what the fold says that agents route by."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given, settings

from plugins.page.views.policy_versions import fold_events
from schemas.events import AdapterEvent
from streams.adapters import versions as adapters
from tests.support.thoroughness import examples
from tests.support.version_histories import Now, by_fold, histories


@given(histories())
@settings(max_examples=examples(300), deadline=None)
def test_the_page_says_what_the_fold_says_after_every_event(history: tuple[AdapterEvent, ...]) -> None:
    rows, statuses = fold_events([asdict(one) for one in history])
    state = adapters.empty("p")
    for one in history:
        state = adapters.fold(state, one)
    assert statuses == {number: one.status.replace("_", " ") for number, one in state.versions.items()}
    after = [Now(row["primary_version"], row["candidate_version"], row["share"]) for row in rows]
    assert (after, [row["effect"] for row in rows]) == by_fold(history)
