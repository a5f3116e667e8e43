"""Write dashboards to a Grafana, or check that they are up to date there.

    apply: folder, then each dashboard ──► created or updated if it differs ──► read back and compared
    check: each dashboard ──► what differs; nothing is written

An update names the version that was read, so that a change by somebody else in between is refused instead of lost.
What Grafana adds of its own (ids, defaults of later versions) is not compared. Dashboards that are no longer generated
are not deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

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
    """One Grafana, through the library grafana-client."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Take the address, with a path if Grafana has one, and the token of a service account.

        Raises SettingsError for a malformed address, or if the library is missing.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise SettingsError(f"--grafana {_shown(url)}: expected http(s)://HOST[:PORT][/PATH]")
        try:
            from grafana_client import GrafanaApi
        except ModuleNotFoundError as exc:
            raise SettingsError(f"{exc.name} is not installed here; pip install grafana-client") from exc
        self.shown = _shown(url)
        self._api = GrafanaApi.from_url(
            f"{url.rstrip('/')}/" if parts.path.strip("/") else url.rstrip("/"), token, TIMEOUT_S
        )

    def check(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Return the state of each. Raises LogError if Grafana does not answer, RefusedError if it refuses."""
        return [self._state(one, self._read(one)) for one in dashboards]

    def apply(self, dashboards: Sequence[Dashboard]) -> list[DashboardState]:
        """Create or update each, read it back, and return what was done.

        Raises LogError if Grafana does not answer, RefusedError if it refuses or somebody changed one meanwhile, and
        StreamwardError if it reads back something else than was written.
        """
        self._make_folder()
        return [self._put(one) for one in dashboards]

    def _put(self, dashboard: Dashboard) -> DashboardState:
        found = self._read(dashboard)
        before = self._state(dashboard, found)
        if before.state == "same":
            return before
        wanted = model(dashboard)
        if found is not None:
            wanted |= {"id": found["dashboard"]["id"], "version": found["dashboard"]["version"]}
        message = "streamward dashboards apply"
        with self._asking(f"write {dashboard.uid}"):
            self._api.dashboard.update_dashboard(
                {"dashboard": wanted, "folderUid": TAG, "message": message, "overwrite": False}
            )
        after = self._state(dashboard, self._read(dashboard))
        if after.state != "same":
            raise StreamwardError(
                f"{self.shown}: {dashboard.uid} reads back differently: {'; '.join(after.differences)}. "
                "Is there a proxy in between, or a Grafana older than 11?"
            )
        return DashboardState(dashboard.uid, "created" if found is None else "updated", before.differences)

    def _make_folder(self) -> None:
        try:
            with self._asking("read its folders"):
                self._api.folder.get_folder(TAG)
        except NotFoundError:
            with self._asking(f"make the folder {FOLDER_TITLE}"):
                self._api.folder.create_folder(FOLDER_TITLE, uid=TAG)

    def _read(self, dashboard: Dashboard) -> dict[str, Any] | None:
        try:
            with self._asking(f"read {dashboard.uid}"):
                found: dict[str, Any] = self._api.dashboard.get_dashboard(dashboard.uid)
        except NotFoundError:
            return None
        if not isinstance(found, dict) or not isinstance(found.get("dashboard"), dict):
            raise StreamwardError(f"{self.shown}: what answers is not Grafana: {str(found)[:80]!r}")
        return found

    def _state(self, dashboard: Dashboard, found: Mapping[str, Any] | None) -> DashboardState:
        if found is None:
            return DashboardState(dashboard.uid, "missing", ("it does not exist",))
        found_differences = tuple(differences(model(dashboard), found["dashboard"]))
        if found.get("meta", {}).get("folderUid", TAG) != TAG:
            found_differences += (f"folder: got {found['meta']['folderUid']!r}, expected {TAG!r}",)
        return DashboardState(dashboard.uid, "differs" if found_differences else "same", found_differences)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Translate what the library raises."""
        import requests
        from grafana_client.client import GrafanaClientError, GrafanaException

        try:
            yield
        except GrafanaClientError as exc:
            if exc.status_code == 404:
                raise NotFoundError(f"{self.shown}: cannot {what}: it does not exist") from exc
            raise RefusedError(f"{self.shown} refused to {what}: {exc.status_code} {_said(exc)}{_advice(exc)}") from exc
        except GrafanaException as exc:
            raise LogError(f"{self.shown} could not {what}: {exc.status_code} {_said(exc)}. Its log says more") from exc
        except ValueError as exc:  # of JSON; requests' own is one of these and of RequestException
            raise StreamwardError(f"{self.shown}: what answers is not Grafana: {exc}") from exc
        except requests.RequestException as exc:
            raise LogError(f"{self.shown} does not answer: {exc}. Check the address, and that Grafana runs") from exc


def differences(wanted: Any, got: Any, where: str = "") -> Iterator[str]:
    """Yield where `got` differs from `wanted`; beyond MOST_DIFFERENCES, how many more."""
    found = list(_differences(wanted, got, where))
    yield from found[:MOST_DIFFERENCES]
    if len(found) > MOST_DIFFERENCES:
        yield f"and {len(found) - MOST_DIFFERENCES} more"


def _differences(wanted: Any, got: Any, where: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key, value in wanted.items():
            yield from _differences(value, got.get(key), f"{where}.{key}" if where else key)
    elif isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            yield f"{where}: got {len(got)} entries, expected {len(wanted)}"
        for index, (one, other) in enumerate(zip(wanted, got, strict=False)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif wanted != got and not (got is None and (wanted is False or wanted in ("", [], {}))):  # left out what is empty
        yield f"{where}: got {_short(got)}, expected {_short(wanted)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _said(exc: Any) -> str:
    response = exc.response
    return str(response.get("message", response) if isinstance(response, dict) else response)[:200].strip()


def _advice(exc: Any) -> str:
    return {
        401: ". Give the token of a service account with --token-file",
        403: ". The token's service account needs the role Editor",
        412: ". Somebody changed it meanwhile; look at it, then apply again",
    }.get(exc.status_code, "")


def _shown(url: str) -> str:
    """Return the address without the password that may be in it."""
    head, sign, rest = url.partition("://")
    return f"{head}{sign}{rest.rpartition('@')[2]}"
