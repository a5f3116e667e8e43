"""An issuer of OpenID Connect in this process: httpx asks it, and it answers as a test wants.

Issuer ──► httpx ──► OwnIssuer: discovery, keys, and one ID token for a code, if the verifier fits its challenge
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

URL = "https://issuer.example/realms/lab"
CLIENT = "streamward"
PRIVATE = rsa.generate_private_key(65537, 2048)


@dataclass
class OwnIssuer:
    """Who signs ID tokens. What a test changes of it is what goes wrong."""

    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "17", "preferred_username": "ann", "roles": ["lab"]})
    discovery: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=lambda: {"kid": "one"})
    algorithm: str = "RS256"
    key: Any = PRIVATE
    status: int = 200
    asked: dict[str, str] = field(default_factory=dict)
    """What the browser brought."""
    used: set[str] = field(default_factory=set)

    def let_in(self, url: str) -> dict[str, str]:
        """Return what the browser brings back from the issuer's page."""
        self.asked = dict(parse_qsl(urlsplit(url).query))
        return {"code": "a code", "state": self.asked["state"], "iss": URL}

    @property
    def transport(self) -> httpx2.MockTransport:
        """Where httpx finds it."""
        return httpx2.MockTransport(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        match request.url.path.removeprefix("/realms/lab"):
            case "/.well-known/openid-configuration":
                named = {"authorization_endpoint": "/page?a=b", "token_endpoint": "/token", "jwks_uri": "/keys"}
                return httpx2.Response(
                    200, json={"issuer": URL, **{name: URL + path for name, path in named.items()}, **self.discovery}
                )
            case "/keys":
                public = json.loads(RSAAlgorithm.to_jwk(PRIVATE.public_key()))
                return httpx2.Response(200, json={"keys": [{**public, "kid": "one", "alg": "RS256", "use": "sig"}]})
            case "/token":
                return self._token(request)
        return httpx2.Response(404, json={})

    def _token(self, request: httpx2.Request) -> httpx2.Response:
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        basic = base64.b64encode(f"{CLIENT}:it%27s%20a%20secret".encode()).decode()
        fits = (digest, form["redirect_uri"], request.headers.get("authorization")) == (
            self.asked["code_challenge"],
            self.asked["redirect_uri"],
            f"Basic {basic}",
        )
        if not fits or form["code"] in self.used:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        self.used.add(form["code"])
        return httpx2.Response(self.status, json={"access_token": "x", "id_token": self._signed(self._said())})

    def _said(self) -> Mapping[str, Any]:
        now = int(time.time())
        whole = {"iss": URL, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": self.asked["nonce"], **self.claims}
        return {name: value for name, value in whole.items() if value is not None}

    def _signed(self, claims: Mapping[str, Any]) -> str:
        return jwt.encode(dict(claims), self.key, self.algorithm, headers=self.header)
