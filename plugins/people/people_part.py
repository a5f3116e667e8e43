"""The callers of a server: keys and people of the log, their logins, and an event of each request.

access ──► AccessLog ──► Authentication ──► the door        login.signing_key ──► Logins ──► routes that log in
the door ──► RequestLog ──► requests
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self, cast

from gateway.http.authentication import Authentication, LoginLanding, is_over_tls
from gateway.log.server_part import ServerBase, ServerPart
from plugins.people.access.access_log import AccessLog
from plugins.people.logins.logins import KeyFile, Logins
from plugins.people.logins.oidc import Issuer
from plugins.people.request_log import RequestLog
from plugins.people.rooms.oidc_logins import OidcLogins
from plugins.people.rooms.password_logins import PasswordLogins
from streams.settings.model import Settings


class PeoplePart(ServerPart):
    """Keys, logins and requests of a server with serve.auth=keys."""

    ROOMS = (OidcLogins, PasswordLogins)

    def __init__(self, base: ServerBase) -> None:
        self._base, self._stack = base, ExitStack()
        self._known: Authentication | None = None

    def __enter__(self) -> Self:
        """Raises NotFoundError without a topic, SettingsError for an unusable signing key, LogError."""
        settings = self._base.settings
        if settings.serve.auth == "none":
            return self
        with ExitStack() as stack:
            keys = stack.enter_context(AccessLog(settings))
            requests = None if settings.serve.requests == "off" else stack.enter_context(RequestLog(settings))
            self._known = Authentication(keys, requests, _logins(settings, keys))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def authentication(self) -> Authentication | None:
        return self._known

    def rooms(self) -> list[object]:
        settings, known = self._base.settings, self._known
        if settings.serve.auth == "none" or settings.login.signing_key is None:
            return []
        landings = {name: landing for part in self._base.parts for name, landing in part.landings().items()}
        return login_rooms(settings, cast(Logins, None if known is None else known.logins), landings)


def login_rooms(settings: Settings, logins: Logins, landings: Mapping[str, LoginLanding]) -> list[object]:
    """Return the rooms where people log in. `landings`: where logins of browsers may end."""
    rooms: list[object] = [PasswordLogins(logins)]
    if settings.login.oidc_issuer:
        rooms.insert(0, OidcLogins(Issuer(settings.login), logins, over_tls=is_over_tls(settings), landings=landings))
    return rooms


def _logins(settings: Settings, access: AccessLog) -> Logins | None:
    """Return how people log in; None if they cannot. Raises SettingsError for an unusable signing key, LogError."""
    rule = settings.login
    if rule.signing_key is None:
        return None
    return Logins(access, rule, KeyFile(rule.signing_key), issuer=rule.public_url or settings.serve.url)
