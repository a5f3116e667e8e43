"""A server, with OpenAI's client and REST, whose answers have to be as they are described."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
from openai import OpenAI

from streams.settings.model import Settings
from tests.support.agent_server import serving
from tests.support.documented import HOOKS, as_documented


class Gateway(NamedTuple):
    """A server, and clients of it."""

    settings: Settings
    url: str
    client: OpenAI

    def rest(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = httpx.request(method, self.url + path, json=body, headers=named, timeout=300)
        as_documented(answer)
        return answer


@contextmanager
def gateway(settings: Settings) -> Iterator[Gateway]:
    checking = httpx.Client(event_hooks=HOOKS, timeout=300)
    with (
        serving(settings) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=checking) as client,
    ):
        yield Gateway(settings, url, client)
