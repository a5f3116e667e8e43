"""Logprobs are a right of their own: an agent's key calls models without them, in every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.http.principal import PRINCIPAL
from streams.access.roles import decide
from streams.engines.scripted.scripted_tokens import END_OF_TURN, ScriptedRendering
from tests.support.callers import Caller, key
from tests.support.server_in_memory import serving

CHAT = {"model": "sums", "messages": [{"role": "user", "content": "2 + 2 ="}]}
ASKING = [
    ("chat/completions", CHAT, {"logprobs": True}),
    ("completions", {"model": "sums", "prompt": "2 + 2 ="}, {"logprobs": 0}),
    ("completions", {"model": "sums", "prompt": "2 + 2 =", "max_tokens": 0}, {"echo": True, "logprobs": 0}),
    ("responses", {"model": "sums", "input": "2 + 2 ="}, {"include": ["message.output_text.logprobs"]}),
    ("responses", {"model": "sums", "input": "2 + 2 ="}, {"top_logprobs": 0}),
]


@pytest.mark.parametrize(("path", "body", "asks"), ASKING)
def test_an_agents_key_reads_no_logprobs(path: str, body: dict[str, Any], asks: dict[str, Any]) -> None:
    with serving(ScriptedRendering(), frozenset((END_OF_TURN,))) as server:
        app, caller = server.app, key("submitter", agent_id="calc")

        async def with_principal(scope: Any, receive: Any, send: Any) -> None:
            scope[PRINCIPAL] = caller
            await app(scope, receive, send)

        server.app = with_principal
        refused = server.post(path, body | asks)
        assert refused.status_code == 403 and "chat.logprobs" in refused.text, refused.text
        if "echo" in asks:
            return
        assert not server.engine.streams
        server.engine.says((*b"4", END_OF_TURN))
        assert server.post(path, body).status_code == 200
        caller = key("submitter")
        server.engine.says((*b"4", END_OF_TURN))
        assert server.post(path, body | asks).status_code == 200


@pytest.mark.parametrize(
    ("caller", "may"),
    [(key("submitter"), True), (key("trainer"), True), (key("viewer"), False), (key("admin", agent_id="calc"), False)],
)
def test_roles_that_call_models_may_read_logprobs_but_for_keys_of_agents(caller: Caller, may: bool) -> None:
    assert decide(caller, "chat.logprobs", agent_id="calc").allowed is may
