"""What a person says to the server is in no byte of the log, whichever way it is said, and forgotten with the key.

chat, responses, messages, completions, threads, memory, feedback ──► every record of every topic: no planted word
POST /privacy/erase ──► the person is refused, another one is not
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import Task, Turn
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support.agent_server import audited, settings_of
from tests.support.processes import read, records, until

pytestmark = pytest.mark.kafka

CANARY = "heliotrope"


@pytest.fixture
def sealing_settings(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Settings]:
    plain = settings_of(kafka_bootstrap, tmp_path)
    yield plain.model_copy(update={"privacy": Privacy(key_folder=str(tmp_path / "keys"), seal="named")})
    key_source.use(key_source.NoKeys())


def places_of(settings: Settings, word: str) -> list[str]:
    """Return the coordinates of all records that have a word in key, payload or headers."""
    return [
        str(record.at)
        for topic in topics(settings.topics).values()
        for record in records(settings, topic.label)
        if any(word.encode() in part for part in (record.key or b"", record.payload or b""))
    ]


def calls_of(user: str) -> dict[str, dict[str, Any]]:
    """Return a call of each protocol, by its path."""
    message = [{"role": "user", "content": f"{CANARY}?"}]
    return {
        "/v1/chat/completions": {"model": "sums", "messages": message, "user": user, "metadata": {"note": CANARY}},
        "/v1/responses": {"model": "sums", "input": f"{CANARY}??", "safety_identifier": user},
        "/v1/messages": {"model": "sums", "messages": message, "max_tokens": 9, "metadata": {"user_id": user}},
        "/v1/completions": {"model": "sums", "prompt": f"{CANARY}!", "user": user},
    }


def test_what_a_person_says_is_in_no_record_and_nothing_is_taken_from_an_erased_one(sealing_settings: Settings) -> None:
    with audited(sealing_settings) as url:

        def ask(path: str, body: Any, status: int = 200) -> Any:
            answer = httpx.post(url + path, json=body, timeout=300)
            assert answer.status_code == status, answer.text
            return answer.json()

        answers = {path: ask(path, body) for path, body in calls_of("ann").items()}
        ask("/v1/chat/completions", {**calls_of("bob")["/v1/chat/completions"], "messages": [
            {"role": "user", "content": "marigold?"}
        ]})  # fmt: skip
        thread = ask("/acp/threads", {"metadata": {"user_id": "ann", "note": CANARY}})["thread_id"]
        ask("/acp/runs/wait", {"thread_id": thread, "input": f"{CANARY}, once more"})
        rated = answers["/v1/chat/completions"]["id"]
        ask("/v1/feedback", {"id": rated, "value": 1, "reason": CANARY})
        use_keys(sealing_settings)
        turns = [turn for _, turn in read(sealing_settings, Turn)]
        assert len(turns) == 6 and {turn.subject is None for turn in turns} == {False}
        assert any(CANARY in message.content for turn in turns for message in turn.messages)
        assert places_of(sealing_settings, CANARY) == places_of(sealing_settings, "marigold") == []
        rows = {"sql": "SELECT turn_id, reply.content AS text FROM turns"}
        assert CANARY in str(ask("/query", rows)) and CANARY in httpx.get(f"{url}/acp/threads/{thread}").text
        erased = ask("/privacy/erase", {"person": "ann"})
        assert erased["state"] == "erased"
        until(lambda: httpx.get(f"{url}/acp/threads/{thread}").status_code == 404, "the thread to be forgotten")
        after = ask("/query", rows)["rows"]
        assert sorted(text for _, text in after) == [*[""] * 5, "marigold?"]
        earlier = answers["/v1/responses"]["id"]
        again = httpx.post(f"{url}/v1/responses", json={"model": "sums", "input": "?", "previous_response_id": earlier})
        assert again.status_code in (404, 409), again.text
        for path, body in calls_of("ann").items():
            assert "was erased" in str(ask(path, body, 409))
        ask("/v1/completions", calls_of("bob")["/v1/completions"])
        kept = [turn for _, turn in read(sealing_settings, Turn) if isinstance(turn, Turn)]
        assert {turn.subject for turn in kept}.isdisjoint({erased["person"]})
    assert places_of(sealing_settings, CANARY) == []


def test_the_policy_of_a_call_or_a_task_decides_by_whatever_name_it_is_asked(sealing_settings: Settings) -> None:
    rule = sealing_settings.of_plugin(Privacy).model_copy(update={"policies": "calc*"})
    names = sealing_settings.serve.model_copy(update={"model_names": "gpt-*=sums"})
    settings = sealing_settings.model_copy(update={"privacy": rule, "serve": names})
    with audited(settings) as url:
        for model in ("sums", "gpt-5"):
            body = {**calls_of("ann")["/v1/chat/completions"], "model": model}
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
        for policy in ("calc", "sums"):
            line = {"task_id": policy, "policy": policy, "prompt": CANARY, "user": "ann", "answer": 1}
            httpx.post(f"{url}/tasks", json=line, timeout=300).raise_for_status()
        use_keys(settings)
        assert [turn.subject for _, turn in read(settings, Turn)] == [None, None]
        assert {task.task_id: task.subject is None for _, task in read(settings, Task)} == {"calc": False, "sums": True}
