"""The callers of a server: keys and people of the log, their logins, and an event of each request.

access ──► AccessLog ──► Authentication ──► the door        people.signing_key ──► Logins ──► routes that log in
the door ──► RequestLog ──► requests ──► spent_tokens ──► the limits of the next server
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self, cast

from gateway.http.authentication import Authentication, LoginLanding
from gateway.log.server_part import ServerBase, ServerPart
from plugins.people.access.access_log import AccessLog
from plugins.people.logins.logins import KeyFile, Logins
from plugins.people.logins.oidc import Issuer
from plugins.people.request_log import RequestLog, spent_tokens
from plugins.people.rooms.oidc_logins import OidcLogins
from plugins.people.rooms.password_logins import PasswordLogins
from plugins.people.settings import People

HOUR_S = 3600


class PeoplePart(ServerPart):
    """Keys, logins and requests of a server with serve.auth=keys."""

    ROOMS = (OidcLogins, PasswordLogins)

    def __init__(self, base: ServerBase) -> None:
        self._base, self._stack, self._rule = base, ExitStack(), base.settings.of_plugin(People)
        self._authentication: Authentication | None = None

    def __enter__(self) -> Self:
        """Raises NotFoundError without a topic, SettingsError for an unusable signing key, LogError."""
        serve, rule = self._base.settings.serve, self._rule
        if serve.auth == "none":
            return self
        url, logins = rule.public_url or serve.url, None
        with ExitStack() as stack:
            keys = stack.enter_context(AccessLog(self._base.settings))
            requests = None if serve.requests == "off" else stack.enter_context(RequestLog(self._base.settings))
            if rule.signing_key is not None:
                logins = Logins(keys, rule, KeyFile(rule.signing_key), issuer=url)
            self._authentication = Authentication(
                principals=keys,
                requests=requests,
                spent={} if requests is None else spent_tokens(self._base.settings),
                logins=logins,
                issuer="" if logins is None else rule.oidc_issuer,
                public_url=rule.public_url,
                over_tls=url.startswith("https://"),
                session_s=int(rule.session_h * HOUR_S),
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def authentication(self) -> Authentication | None:
        return self._authentication

    def rooms(self) -> list[object]:
        if (auth := self._authentication) is None or auth.logins is None:
            return []
        landings = {name: landing for part in self._base.parts for name, landing in part.landings(auth).items()}
        return login_rooms(self._rule, cast(Logins, auth.logins), over_tls=auth.over_tls, landings=landings)


def login_rooms(
    rule: People, logins: Logins, *, over_tls: bool = False, landings: Mapping[str, LoginLanding] | None = None
) -> list[object]:
    """Return the rooms where people log in. `over_tls`: browsers use https; `landings`: where their logins may end."""
    rooms: list[object] = [PasswordLogins(logins)]
    if rule.oidc_issuer:
        rooms.insert(0, OidcLogins(Issuer(rule), logins, over_tls=over_tls, landings=landings))
    return rooms
