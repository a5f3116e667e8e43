"""Events of requests where the log takes none: bounded, counted, and in nobody's way unless they are required."""

from __future__ import annotations

import threading
import time

import pytest

from gateway.http.limits import KeyLimits
from plugins.people import request_log
from plugins.people.request_log import FLOOD_BURST, MOST_WAITING, RequestLog, spent_tokens
from streams.settings.model import Kafka, Serve, Settings
from tests.support.factories import request_event
from tests.support.log.shared_node import own_topics

KEY = "key_1"
NOWHERE = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"), serve=Serve(auth="keys"))
REQUIRED = NOWHERE.model_copy(update={"serve": Serve(auth="keys", requests="required", acknowledge_s=0.001)})


def test_a_queue_that_is_full_loses_and_counts_and_stops_answers_only_where_events_are_required() -> None:
    for settings in (NOWHERE, REQUIRED):
        requests = RequestLog(settings)  # not entered: nobody takes from its queue
        assert requests.why_not() is None
        requests.write(request_event() for _ in range(MOST_WAITING + 5))
        assert requests.lost == 5
        assert (requests.why_not() is None) == (settings is NOWHERE)


def test_who_is_refused_for_having_no_key_or_asking_too_often_fills_no_topic() -> None:
    requests = RequestLog(NOWHERE)
    many = int(FLOOD_BURST) + 50
    for status in (401, 429):
        requests.write(request_event(subject_id=KEY, allowed=False, status=status) for _ in range(many))
    waiting = requests._queue.qsize()
    assert FLOOD_BURST <= waiting < many
    requests.write([request_event(subject_id=KEY, status=404)])
    skipped = sum(int(requests._queue.get().metadata.get("skipped", 0)) for _ in range(waiting + 1))
    assert skipped + waiting == 2 * many, "each that was skipped is in the count of one that was not"


def test_a_broker_that_is_unreachable_costs_events_and_the_end_is_not_held_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_log, "offsets", lambda *_: {})  # the broker was there at the start
    monkeypatch.setattr(request_log, "CLOSE_S", 0.05)
    stuck = threading.Event()
    with RequestLog(REQUIRED) as requests:
        requests.write(request_event() for _ in range(3))
        for _ in range(10_000):
            if requests.why_not() is not None:
                stuck.set()
                break
            stuck.wait(0.001)
        assert stuck.is_set(), "nothing was acknowledged, and it is not said"
        assert "serve.requests is required" in str(requests.why_not())
    assert requests.lost == 3
    assert "3 requests left no event" in caplog.text


@pytest.mark.kafka
def test_a_server_that_starts_knows_what_callers_owe_from_the_requests_of_the_last_hour(kafka_bootstrap: str) -> None:
    made = own_topics(kafka_bootstrap)
    settings = made.model_copy(update={"serve": Serve(auth="keys", key_per_s=0, key_tokens_per_min=600)})
    now_ms = int(time.time() * 1000)
    spent = [
        (KEY, 1000, 400),
        (KEY, 60_000, 400),
        ("user ann", 3000, 100),
        ("idle", 120_000, 5000),
    ]
    with RequestLog(settings) as requests:
        requests.write(
            request_event(
                event_id=f"{who} {age_ms}",
                subject_id=who,
                created_at=now_ms - age_ms,
                prompt_tokens=tokens - 100,
                completion_tokens=100,
            )
            for who, age_ms, tokens in sorted(spent, key=lambda each: -each[1])
        )
        requests.write([request_event(event_id="refused", subject_id=KEY, status=429, allowed=False)])
    for empty_at in (None, time.monotonic() - 1):
        limits = KeyLimits(settings.serve, empty_at=empty_at, spent=spent_tokens(settings))
        refused = {who: limits.begin(who) for who in (f"key {KEY}", "user ann", "key idle", "key new")}
        assert {who for who, why in refused.items() if why is not None} == {"key idle"}
        why = refused["key idle"]
        assert why is not None and 0 < why.retry_after_s < 500 - 120 + 1, "the minute before is not given again"
    assert spent_tokens(settings.model_copy(update={"serve": Serve(auth="keys")})) == {}
