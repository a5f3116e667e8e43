"""Credentials, as far as the core knows them: how they are masked in texts, and the tokens of a login."""

from __future__ import annotations

import re
from typing import NamedTuple

from streams.access.roles import Principal

_SECRET = re.compile(r"(swr?_[0-9a-f]{16})_[A-Za-z0-9_-]+|(eyJ[A-Za-z0-9_-]{0,8})[A-Za-z0-9_.-]*")
"""A key or a refresh token, and an access token; their beginnings may be shown."""
UNKNOWN = "there is no such key"
"""Why a text that looks like a key is not valid. The log may have it, unread so far."""


class TokenPair(NamedTuple):
    """The tokens of a login. They are for the client alone."""

    access_token: str
    refresh_token: str
    expires_in_s: int
    user: Principal
    """Their owner."""

    def __repr__(self) -> str:
        return "TokenPair()"


def mask(text: str) -> str:
    """Return a text without the secrets of keys and tokens in it, whole or cut short.

    >>> mask("there is no sw_00112233445566ff_abc here")
    'there is no sw_00112233445566ff_… here'
    """
    return _SECRET.sub(lambda match: f"{match[1] or match[2]}_…", text)
