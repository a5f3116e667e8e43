"""Send a request and read its answer; an answer that is an error is raised.

Operations, AsyncOperations ──► send ──► httpx ──► JSON, bytes or None
                                     └──► ApiError, with the fields of the server's error
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, answer: httpx.Response) -> None:
        try:
            body = answer.json()
            said = body["error"] if isinstance(body, dict) and isinstance(body.get("error"), dict) else {}
        except ValueError:
            said = {}
        details = said.get("details") or {}
        self.status: int = answer.status_code
        self.message: str = said.get("message") or answer.text[:500]
        self.code: str | None = said.get("code") or said.get("type")
        """A word for programs, such as `not_found`."""
        self.parameter: str | None = said.get("param")
        self.suggested_action: str | None = details.get("suggested_action")
        self.retry_after_s: float | None = _seconds(answer.headers.get("retry-after"))
        """When it is worth sending again."""
        super().__init__(f"{self.status} {self.code}: {self.message}")


class _Sending:
    def __init__(self, url: str, key: str | None = None, *, timeout_s: float = 600.0) -> None:
        """`url`: of the server, without a path. `key`: a key, or an access token."""
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def _asked(self, method: str, path: str, **what: Any) -> dict[str, Any]:
        for name in ("params", "headers"):
            what[name] = {key: str(value) for key, value in (what.get(name) or {}).items() if value is not None}
        return {"method": method, "url": path, **what}


class Sender(_Sending):
    """A connection to a server."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_s: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, key, timeout_s=timeout_s)
        self.http = httpx.Client(
            base_url=self._url, headers=self._headers, timeout=self._timeout_s, transport=transport
        )

    def send(self, method: str, path: str, **what: Any) -> Any:
        """Return what is answered. Raises ApiError, and httpx.HTTPError where nobody answers."""
        return _read(self.http.request(**self._asked(method, path, **what)))

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSender(_Sending):
    """A connection to a server, for asyncio."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, key, timeout_s=timeout_s)
        self.http = httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=self._timeout_s, transport=transport
        )

    async def send(self, method: str, path: str, **what: Any) -> Any:
        """Return what is answered. Raises ApiError, and httpx.HTTPError where nobody answers."""
        return _read(await self.http.request(**self._asked(method, path, **what)))

    async def close(self) -> None:
        """Close its connections."""
        await self.http.aclose()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def part(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def _read(answer: httpx.Response) -> Any:
    if not answer.is_success:
        raise ApiError(answer)
    if answer.status_code == 204:
        return None
    kind = answer.headers.get("content-type", "")
    return answer.json() if kind.startswith("application/json") else answer.content


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
