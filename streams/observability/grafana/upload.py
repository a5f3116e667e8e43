"""Write dashboards to a Grafana, or check that they are up to date there.

    apply: folder, then each dashboard ──► created or updated if it differs ──► read back and compared
    check: each dashboard ──► its differences; nothing is written

An update names the version that was read, so that Grafana refuses to overwrite a concurrent change. Fields that Grafana
adds (ids, defaults of later versions) are not compared. Dashboards that are no longer generated
are not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from streams.egress.address_guard import require_host
from streams.errors import LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.observability.grafana.model import TAG, Dashboard, model

FOLDER_TITLE = "Streamward"
TIMEOUT_S = 15.0
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
    """One Grafana, through the library grafana-client."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Take the address, with a path if Grafana has one, and the token of a service account.

        Raises SettingsError for a malformed address, or if the library is missing.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise SettingsError(f"--grafana {_without_password(url)}: expected http(s)://HOST[:PORT][/PATH]")
        require_host(_without_password(url), "--grafana")
        try:
            from grafana_client import GrafanaApi
        except ModuleNotFoundError as exc:
            raise SettingsError(f"{exc.name} is not installed here; pip install grafana-client") from exc
        self.address = _without_password(url)
        self._api = GrafanaApi.from_url(
            f"{url.rstrip('/')}/" if parts.path.strip("/") else url.rstrip("/"), token, TIMEOUT_S
        )

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
        with self._errors_of(f"write {dashboard.uid}"):
            self._api.dashboard.update_dashboard(
                {"dashboard": content, "folderUid": TAG, "message": message, "overwrite": False}
            )
        after = self._state(dashboard, self._read(dashboard))
        if after.state != "same":
            raise StreamwardError(
                f"{self.address}: {dashboard.uid} reads back differently: {'; '.join(after.differences)}. "
                "Is there a proxy in between, or a Grafana older than 11?"
            )
        return DashboardState(dashboard.uid, "created" if stored is None else "updated", before.differences)

    def _create_folder(self) -> None:
        try:
            with self._errors_of("read its folders"):
                self._api.folder.get_folder(TAG)
        except NotFoundError:
            with self._errors_of(f"create the folder {FOLDER_TITLE}"):
                self._api.folder.create_folder(FOLDER_TITLE, uid=TAG)

    def _read(self, dashboard: Dashboard) -> dict[str, Any] | None:
        try:
            with self._errors_of(f"read {dashboard.uid}"):
                stored: dict[str, Any] = self._api.dashboard.get_dashboard(dashboard.uid)
        except NotFoundError:
            return None
        if not isinstance(stored, dict) or not isinstance(stored.get("dashboard"), dict):
            raise StreamwardError(f"{self.address}: the server is not Grafana: {str(stored)[:80]!r}")
        return stored

    def _state(self, dashboard: Dashboard, stored: Mapping[str, Any] | None) -> DashboardState:
        if stored is None:
            return DashboardState(dashboard.uid, "missing", ("it does not exist",))
        changes = tuple(differences(model(dashboard), stored["dashboard"]))
        if stored.get("meta", {}).get("folderUid", TAG) != TAG:
            changes += (f"folder: got {stored['meta']['folderUid']!r}, expected {TAG!r}",)
        return DashboardState(dashboard.uid, "differs" if changes else "same", changes)

    @contextmanager
    def _errors_of(self, action: str) -> Iterator[None]:
        """Translate the errors of the library."""
        import requests
        from grafana_client.client import GrafanaClientError, GrafanaException

        try:
            yield
        except GrafanaClientError as exc:
            if exc.status_code == 404:
                raise NotFoundError(f"{self.address}: cannot {action}: it does not exist") from exc
            raise RefusedError(
                f"{self.address} refused to {action}: {exc.status_code} {_message(exc)}{_advice(exc)}"
            ) from exc
        except GrafanaException as exc:
            raise LogError(
                f"{self.address} could not {action}: {exc.status_code} {_message(exc)}. Its log says more"
            ) from exc
        except ValueError as exc:  # of JSON; requests' own is one of these and of RequestException
            raise StreamwardError(f"{self.address}: the server is not Grafana: {exc}") from exc
        except requests.RequestException as exc:
            raise LogError(f"{self.address} does not answer: {exc}. Check the address, and that Grafana runs") from exc


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


def _message(exc: Any) -> str:
    response = exc.response
    return str(response.get("message", response) if isinstance(response, dict) else response)[:200].strip()


def _advice(exc: Any) -> str:
    return {
        401: ". Give the token of a service account with --token-file",
        403: ". The token's service account needs the role Editor",
        412: ". It has changed meanwhile; look at it, then apply again",
    }.get(exc.status_code, "")


def _without_password(url: str) -> str:
    """Return the address without the password that may be in it."""
    head, sign, rest = url.partition("://")
    return f"{head}{sign}{rest.rpartition('@')[2]}"
