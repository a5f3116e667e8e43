"""After an erasure no route that reads, and no view, has a word of the person; before it, many have.

calls, threads, memory, tasks, groups of a person ──► every GET route, every POST route that only reads, every view
                         with all ids of the log in the place of each parameter ──► a planted word: before, and after
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.route import Route
from gateway.rooms.routes import TABLE
from plugins.privacy.person_records import records_of
from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import Message, derive_id
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support.agent_server import serving, settings_of
from tests.support.factories import group, response, reward, task
from tests.support.processes import until, write

pytestmark = [pytest.mark.kafka, pytest.mark.kills]  # half a thousand requests

CANARY = "heliotrope"
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
LONGEST_S = 2.0
"""How long a stream is read that does not end."""
BYTES = 2**20


@pytest.fixture
def sealing_settings(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Settings]:
    plain = settings_of(kafka_bootstrap, tmp_path)
    yield plain.model_copy(update={"privacy": Privacy(key_folder=str(tmp_path / "keys"), seal="all")})
    key_source.use(key_source.NoKeys())


def text_of(client: httpx.Client, method: str, path: str, body: Any) -> str:
    """Return what a route answers; of a stream its beginning."""
    text = b""
    try:
        read_s = LONGEST_S if path.endswith("/stream") or path.startswith("/mcp") else 300.0
        with client.stream(method, path, json=body, timeout=httpx.Timeout(60, read=read_s)) as answer:
            for part in answer.iter_bytes():
                text += part
                if len(text) > BYTES:
                    break
    except httpx.ReadTimeout:
        pass
    return text.decode(errors="replace")


def paths_of(route: Route, ids: list[str]) -> Iterator[str]:
    """Yield the paths of a route, with each id in the place of its parameters."""
    path = route.paths[0]
    yield from dict.fromkeys(PARAMETER.sub(one, path) for one in ids)


def places_with(url: str, settings: Settings, ids: list[str], word: str) -> set[str]:
    """Return the routes and views that show a word."""
    found = set()
    reads = [
        route
        for route in TABLE.routes
        if route.method == "GET" or (route.method, (route.may or "")[-5:]) == ("POST", ".read")
    ]
    with httpx.Client(base_url=url) as client:
        for route in reads:
            body = None if route.method == "GET" else (route.sends or {})
            if any(word in text_of(client, route.method, path, body) for path in paths_of(route, ids)):
                found.add(f"{route.method} {route.paths[0]}")
        for label in topics(settings.topics):
            rows = {"sql": f'FROM "{label}"'}
            if word in text_of(client, "POST", "/query", rows):
                found.add(f"view {label}")
    return found


def test_no_route_and_no_view_shows_a_word_of_an_erased_person(sealing_settings: Settings) -> None:
    with serving(sealing_settings) as url:

        def ask(path: str, body: Any, method: str = "POST") -> Any:
            answer = httpx.request(method, url + path, json=body, timeout=300)
            assert answer.is_success, answer.text
            return answer.json() if answer.content else None

        message = [{"role": "user", "content": f"{CANARY}?"}]
        chat = {"model": "sums", "messages": message, "user": "ann", "metadata": {"note": CANARY}}
        rated = ask("/v1/chat/completions", chat)["id"]
        response_id = ask("/v1/responses", {"model": "sums", "input": f"{CANARY}??", "safety_identifier": "ann"})["id"]
        ask("/v1/feedback", {"id": rated, "value": 1, "reason": CANARY})
        thread = ask("/acp/threads", {"metadata": {"user_id": "ann", "note": CANARY}})["thread_id"]
        run = ask("/acp/runs/wait", {"thread_id": thread, "input": f"{CANARY}, once more"})["run"]["run_id"]
        use_keys(sealing_settings)
        subject = key_source.current().subject_of(None, "ann", None)
        assert subject is not None
        task_id = derive_id("sweep", "task")
        spoken = task(
            task_id=task_id,
            subject=subject,
            policy="sums",
            messages=(Message(role="user", content=f"{CANARY} 1 + 1 ="),),
        )
        write(
            sealing_settings,
            spoken,
            response(task_id=task_id, subject=subject, policy="sums", text=CANARY),
            reward(task_id=task_id, subject=subject, rationale=CANARY),
            group(task_id=task_id, subject=subject, policy="sums", metadata={"note": CANARY}),
        )
        known = {thread, run, rated, response_id, task_id, "sums", subject}
        for _, _, event in records_of(sealing_settings, subject):
            known |= {value for name in ("turn_id", "trajectory_id", "task_id", "group_id", "response_id", "run_id")
                      if isinstance(value := getattr(event, name, None), str)}  # fmt: skip
        ids = sorted(known)
        before = places_with(url, sealing_settings, ids, CANARY)
        assert {"view turns", "view tasks", "view responses", "view groups"} <= before and len(before) > 10
        assert ask("/privacy/erase", {"person": "ann"})["state"] == "erased"
        until(lambda: httpx.get(f"{url}/acp/threads/{thread}").status_code == 404, "the thread to be forgotten")
        assert places_with(url, sealing_settings, ids, CANARY) == set()
