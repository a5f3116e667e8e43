"""A server on this machine, asked over a connection that is kept."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

JSON = {"Content-Type": "application/json"}


def connection(port: int) -> http.client.HTTPConnection:
    """Return a connection to a port of this machine."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def answers(port: int) -> bool:
    """Return whether the server at a port is ready."""
    with closing(connection(port)) as browser:
        try:
            browser.request("GET", "/healthz")
            return browser.getresponse().status == 200
        except OSError:
            return False


def send(
    browser: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] = JSON,
    status: int = 200,
) -> dict[str, Any]:
    """Return the answer to a request. Raises ValueError for any but `status`."""
    browser.request(method, path, None if body is None else json.dumps(body), dict(headers))
    response = browser.getresponse()
    answer = response.read()
    if response.status != status:
        raise ValueError(f"{path}: {response.status}: {answer.decode()[:500]}")
    fields: dict[str, Any] = json.loads(answer)
    return fields
