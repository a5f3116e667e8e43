"""Write dashboards to a Grafana, or check that they are up to date there.

    apply: folder, then each dashboard ──► created or updated if it differs ──► read back and compared
    check: each dashboard ──► what differs; nothing is written

An update names the version that was read, so that a change by somebody else in between is refused instead of lost.
What Grafana adds of its own (ids, defaults of later versions) is not compared. Dashboards that are no longer generated
are not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from streams.errors import LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.observability.grafana.model import TAG, Dashboard, model

FOLDER_TITLE = "Streamward"
TIMEOUT_S = 15.0
MOST_DIFFERENCES = 10
"""Listed of one dashboard."""


class DashboardState(NamedTuple):
    """Whether one dashboard is up to date."""

    dashboard: str
    """Its uid."""
    state: str
    """same, missing or differs; after an apply: created, updated or same."""
    differences: tuple[str, ...] = ()
    """Where, got and expected."""


class Grafana:
    """One Grafana, through its HTTP API (https://grafana.com/docs/grafana/latest/developers/http_api/)."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Take the address, with a path if Grafana has one, and the token of a service account.

        Raises SettingsError for a malformed address.
        """
        self.shown = _without_password(url)
        try:
            address = httpx.URL(f"{url.rstrip('/')}/api")
        except httpx.InvalidURL as exc:
            raise SettingsError(f"--grafana {self.shown}: {exc}") from exc
        if address.scheme not in ("http", "https") or not address.host or address.query or address.fragment:
            raise SettingsError(f"--grafana {self.shown}: expected http(s)://HOST[:PORT][/PATH]")
        headers = {"Authorization": f"Bearer {token}"} if token else None
        self._client = httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S, follow_redirects=True)

    def check(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Return the state of each. Raises LogError if Grafana does not answer, RefusedError if it refuses."""
        return [self._state(dashboard, self._read(dashboard)) for dashboard in dashboards]

    def apply(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Create or update each, read it back, and return what was done.

        Raises LogError if Grafana does not answer, RefusedError if it refuses or somebody changed one meanwhile, and
        StreamwardError if it reads back something else than was written.
        """
        self._create_folder()
        return [self._write(dashboard) for dashboard in dashboards]

    def _write(self, dashboard: Dashboard) -> DashboardState:
        stored = self._read(dashboard)
        before = self._state(dashboard, stored)
        if before.state == "same":
            return before
        wanted = model(dashboard)
        if stored is not None:
            wanted |= {"id": stored["dashboard"]["id"], "version": stored["dashboard"]["version"]}
        message = "streamward dashboards apply"
        body = {"dashboard": wanted, "folderUid": TAG, "message": message, "overwrite": False}
        self._request("POST", "/dashboards/db", f"write {dashboard.uid}", body)
        after = self._state(dashboard, self._read(dashboard))
        if after.state != "same":
            raise StreamwardError(
                f"{self.shown}: {dashboard.uid} reads back differently: {'; '.join(after.differences)}. "
                "Is there a proxy in between, or a Grafana older than 11?"
            )
        return DashboardState(dashboard.uid, "created" if stored is None else "updated", before.differences)

    def _create_folder(self) -> None:
        try:
            self._request("GET", f"/folders/{TAG}", "read its folders")
        except NotFoundError:
            self._request("POST", "/folders", f"create the folder {FOLDER_TITLE}", {"title": FOLDER_TITLE, "uid": TAG})

    def _read(self, dashboard: Dashboard) -> dict[str, Any] | None:
        try:
            stored = self._request("GET", f"/dashboards/uid/{dashboard.uid}", f"read {dashboard.uid}")
        except NotFoundError:
            return None
        if not isinstance(stored.get("dashboard"), dict):
            raise StreamwardError(f"{self.shown}: what answers is not Grafana: {str(stored)[:80]!r}")
        return stored

    def _state(self, dashboard: Dashboard, stored: Mapping[str, Any] | None) -> DashboardState:
        if stored is None:
            return DashboardState(dashboard.uid, "missing", ("it does not exist",))
        changes = tuple(differences(model(dashboard), stored["dashboard"]))
        if stored.get("meta", {}).get("folderUid", TAG) != TAG:
            changes += (f"folder: got {stored['meta']['folderUid']!r}, expected {TAG!r}",)
        return DashboardState(dashboard.uid, "differs" if changes else "same", changes)

    def _request(self, method: str, path: str, action: str, body: object = None) -> dict[str, Any]:
        """Return the answer, a JSON object. Raises LogError, NotFoundError, RefusedError, StreamwardError."""
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as exc:
            raise LogError(f"{self.shown} does not answer: {exc}. Check the address, and that Grafana runs") from exc
        status = response.status_code
        if status == 404:
            raise NotFoundError(f"{self.shown}: cannot {action}: it does not exist")
        if status >= 500:
            raise LogError(f"{self.shown} could not {action}: {status} {_message(response)}. Its log says more")
        if status >= 400:
            raise RefusedError(
                f"{self.shown} refused to {action}: {status} {_message(response)}{_ADVICE.get(status, '')}"
            )
        try:
            answer = response.json()
        except ValueError as exc:
            raise StreamwardError(f"{self.shown}: what answers is not Grafana: {exc}") from exc
        if not isinstance(answer, dict):
            raise StreamwardError(f"{self.shown}: what answers is not Grafana: {str(answer)[:80]!r}")
        return answer


def differences(wanted: Any, got: Any, where: str = "") -> Iterator[str]:
    """Yield where `got` differs from `wanted`; beyond MOST_DIFFERENCES, how many more."""
    lines = list(_differences(wanted, got, where))
    yield from lines[:MOST_DIFFERENCES]
    if len(lines) > MOST_DIFFERENCES:
        yield f"and {len(lines) - MOST_DIFFERENCES} more"


def _differences(wanted: Any, got: Any, where: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key, value in wanted.items():
            yield from _differences(value, got.get(key), f"{where}.{key}" if where else key)
    elif isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            yield f"{where}: got {len(got)} entries, expected {len(wanted)}"
        for index, (item, other) in enumerate(zip(wanted, got, strict=False)):
            yield from _differences(item, other, f"{where}[{index}]")
    elif wanted != got and not (got is None and (wanted is False or wanted in ("", [], {}))):  # left out what is empty
        yield f"{where}: got {_short(got)}, expected {_short(wanted)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


_ADVICE = {
    401: ". Give the token of a service account with --token-file",
    403: ". The token's service account needs the role Editor",
    412: ". Somebody changed it meanwhile; look at it, then apply again",
}


def _message(response: httpx.Response) -> str:
    """Return Grafana's own message, else the start of the body."""
    try:
        message = response.json()["message"]
    except (ValueError, LookupError, TypeError):
        message = response.text
    return str(message)[:200].strip()


def _without_password(url: str) -> str:
    """Return the address without the password that may be in it."""
    head, sign, rest = url.partition("://")
    return f"{head}{sign}{rest.rpartition('@')[2]}"
