"""Write dashboards to a Grafana, or check that they are up to date there.

    apply: folder, then each dashboard ──► created or updated if it differs ──► read back and compared
    check: each dashboard ──► its differences; nothing is written

An update names the version that was read, so that Grafana refuses to overwrite a concurrent change. Fields that Grafana
adds (ids, defaults of later versions) are not compared. Dashboards that are no longer generated
are not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from schemas import json_text
from streams.egress.http_client import AnswerTooLarge, bearer, fetch, new_client
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.observability.grafana.model import TAG, Dashboard, model

FOLDER_TITLE = "Streamward"
TIMEOUT_S = 15.0
MOST_BYTES = 16 * 1024 * 1024
"""Of an answer."""
ADVICE = {
    401: ". Give the token of a service account with --token-file",
    403: ". The token's service account needs the role Editor",
    412: ". It has changed meanwhile; look at it, then apply again",
}
"""By status."""
MAX_DIFFERENCES = 10
"""Differences to list per dashboard."""


class DashboardState(NamedTuple):
    """Whether one dashboard is up to date."""

    dashboard: str
    """Its uid."""
    state: str
    """same, missing or differs; after an apply: created, updated or same."""
    differences: tuple[str, ...] = ()
    """Path, actual and expected value of each difference."""


class Grafana:
    """One Grafana, through its HTTP API."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Take the address, with a path if Grafana has one, and the token of a service account.

        Raises SettingsError for a malformed address or token.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise SettingsError(f"--grafana {_without_password(url)}: expected http(s)://HOST[:PORT][/PATH]")
        self.address, self._url = _without_password(url), url.rstrip("/")
        self._client = new_client(headers=bearer(token, "--token-file"))

    def check(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Return the state of each. Raises LogError if Grafana does not answer, RefusedError if it refuses."""
        return [self._state(dashboard, self._read(dashboard)) for dashboard in dashboards]

    def apply(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Create or update each, read it back, and return the results.

        Raises LogError if Grafana does not answer, RefusedError if it refuses or a dashboard changed meanwhile, and
        StreamwardError if a dashboard reads back differently.
        """
        self._create_folder()
        return [self._write(dashboard) for dashboard in dashboards]

    def _write(self, dashboard: Dashboard) -> DashboardState:
        stored = self._read(dashboard)
        before = self._state(dashboard, stored)
        if before.state == "same":
            return before
        content = model(dashboard)
        if stored is not None:
            content |= {"id": stored["dashboard"]["id"], "version": stored["dashboard"]["version"]}
        message = "streamward admin dashboards apply"
        body = {"dashboard": content, "folderUid": TAG, "message": message, "overwrite": False}
        self._request(f"write {dashboard.uid}", "POST", "/dashboards/db", json=body)
        after = self._state(dashboard, self._read(dashboard))
        if after.state != "same":
            raise StreamwardError(
                f"{self.address}: {dashboard.uid} reads back differently: {'; '.join(after.differences)}. "
                "Is there a proxy in between, or a Grafana older than 11?"
            )
        return DashboardState(dashboard.uid, "created" if stored is None else "updated", before.differences)

    def _create_folder(self) -> None:
        try:
            self._request("read its folders", "GET", f"/folders/{TAG}")
        except NotFoundError:
            body = {"title": FOLDER_TITLE, "uid": TAG}
            self._request(f"create the folder {FOLDER_TITLE}", "POST", "/folders", json=body)

    def _read(self, dashboard: Dashboard) -> dict[str, Any] | None:
        try:
            stored = self._request(f"read {dashboard.uid}", "GET", f"/dashboards/uid/{dashboard.uid}")
        except NotFoundError:
            return None
        if not isinstance(stored.get("dashboard"), dict):
            raise StreamwardError(f"{self.address}: the server is not Grafana: {str(stored)[:80]!r}")
        return stored

    def _state(self, dashboard: Dashboard, stored: Mapping[str, Any] | None) -> DashboardState:
        if stored is None:
            return DashboardState(dashboard.uid, "missing", ("it does not exist",))
        changes = tuple(differences(model(dashboard), stored["dashboard"]))
        if stored.get("meta", {}).get("folderUid", TAG) != TAG:
            changes += (f"folder: got {stored['meta']['folderUid']!r}, expected {TAG!r}",)
        return DashboardState(dashboard.uid, "differs" if changes else "same", changes)

    def _request(self, action: str, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Return the answer. Raises LogError, RefusedError, NotFoundError, StreamwardError."""
        try:
            limits: dict[str, Any] = {"limit_s": TIMEOUT_S, "most_bytes": MOST_BYTES}
            status, body = fetch(self._client, method, f"{self._url}/api{path}", **limits, **request)
        except (httpx2.HTTPError, httpx2.InvalidURL, AnswerTooLarge) as exc:
            raise LogError(f"{self.address} does not answer: {exc}. Check the address, and that Grafana runs") from exc
        try:
            answer = json_text.parse(body)
        except ValueError as exc:
            if status < 400:
                raise StreamwardError(f"{self.address}: the server is not Grafana: {exc}") from exc
            answer = body.decode(errors="replace")
        message = str(answer.get("message", answer) if isinstance(answer, dict) else answer)[:200].strip()
        if status == 404:
            raise NotFoundError(f"{self.address}: cannot {action}: it does not exist")
        if status >= 500:
            raise LogError(f"{self.address} could not {action}: {status} {message}. Its log says more")
        if status >= 300:
            raise RefusedError(f"{self.address} refused to {action}: {status} {message}{ADVICE.get(status, '')}")
        if not isinstance(answer, dict):
            raise StreamwardError(f"{self.address}: the server is not Grafana: {message[:80]!r}")
        return answer


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Yield the paths where `actual` differs from `expected`; beyond MAX_DIFFERENCES, the number of the others."""
    lines = list(_differences(expected, actual, path))
    yield from lines[:MAX_DIFFERENCES]
    if len(lines) > MAX_DIFFERENCES:
        yield f"and {len(lines) - MAX_DIFFERENCES} more"


def _differences(expected: Any, actual: Any, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            yield from _differences(value, actual.get(key), f"{path}.{key}" if path else key)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: got {len(actual)} entries, expected {len(expected)}"
        for index, (item, other) in enumerate(zip(expected, actual, strict=False)):
            yield from _differences(item, other, f"{path}[{index}]")
    elif expected != actual and not (actual is None and _is_empty(expected)):
        yield f"{path}: got {_short(actual)}, expected {_short(expected)}"


def _is_empty(value: Any) -> bool:
    """Return whether Grafana leaves out a field with this value."""
    return value is False or value in ("", [], {})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _without_password(url: str) -> str:
    """Return the address without the password that may be in it."""
    head, sign, rest = url.partition("://")
    return f"{head}{sign}{rest.rpartition('@')[2]}"
