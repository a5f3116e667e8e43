"""Who read a person's words is recorded: by a route and its key, by a command and its user; and no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from plugins.privacy.privacy_settings import Privacy
from schemas import key_source
from schemas.events import RequestEvent
from schemas.key_source import MORE_PERSONS, MOST_NAMED, PERSONS_READ, reads_metadata
from streams.cli.runtime import user_name
from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.agent_server import serving, settings_of
from tests.support.commands import invoke, rows_of
from tests.support.processes import read, until

pytest.importorskip("plugins.people")


@pytest.fixture
def sealing(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Settings]:
    plain = settings_of(kafka_bootstrap, tmp_path, auth="keys")
    settings = plain.model_copy(update={"privacy": Privacy(key_folder=str(tmp_path / "keys"), seal="named")})
    admin.apply_topics(settings)
    yield settings
    key_source.use(key_source.NoKeys())


@pytest.mark.kafka
def test_each_who_opens_a_persons_words_is_in_the_trail_and_no_other(sealing: Settings) -> None:
    def key(role: str) -> dict[str, str]:
        words = ("admin", "access", "keys", "create", "--role", role, "--name", role)
        return {"Authorization": f"Bearer {invoke(sealing, *words).stdout.split()[0]}"}

    admins, viewers = key("admin"), key("viewer")
    chat = {"model": "sums", "messages": [{"role": "user", "content": "heliotrope?"}], "user": "ann"}
    with serving(sealing) as url:

        def ask(method: str, path: str, headers: dict[str, str], body: object = None) -> None:
            answer = httpx.request(method, url + path, headers=headers, json=body, timeout=300)
            assert answer.is_success, answer.text

        ask("POST", "/v1/chat/completions", admins, chat)
        thread = httpx.post(f"{url}/acp/threads", headers=admins, json={"metadata": {"user_id": "ann"}}).json()
        ask("GET", "/adapters", viewers)
        ask("POST", "/query", admins, {"sql": "SELECT reply.content FROM turns"})
        ask("GET", f"/acp/threads/{thread['thread_id']}", admins)
        until(lambda: len(requests(sealing)) >= 5, "the requests to be in the log")
    invoke(sealing, "query", "SELECT reply.content FROM turns")
    invoke(sealing, "privacy", "list")
    rows = rows_of(invoke(sealing, "privacy", "trail", "ann", "--output", "jsonl"))
    assert [row["how"] for row in rows if row["role"] == "viewer"] == []
    how = {row["how"]: row["by"] for row in rows}
    assert how.pop("COMMAND query") == user_name()
    assert {"POST /query", f"GET /acp/threads/{thread['thread_id']}"} <= how.keys()
    assert len(set(how.values())) == 1 and "GET /adapters" not in how and "COMMAND privacy" not in how
    assert rows_of(invoke(sealing, "privacy", "trail", "bob", "--output", "jsonl")) == []


def requests(settings: Settings) -> list[RequestEvent]:
    return [event for _, event in read(settings, RequestEvent)]


def test_a_request_for_very_many_persons_names_some_and_says_how_many_more_there_are() -> None:
    persons = {f"p-{number:032x}" for number in range(MOST_NAMED + 7)}
    metadata = reads_metadata(persons)
    assert len(metadata[PERSONS_READ].split()) == MOST_NAMED and metadata[MORE_PERSONS] == "7"
    assert reads_metadata(()) == {} and MORE_PERSONS not in reads_metadata({"p-1"})
