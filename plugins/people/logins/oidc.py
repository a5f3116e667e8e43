"""Log in through an issuer of OpenID Connect: discovery, verification of its answer, and the resulting user.

    browser ──► begin ──► the issuer's page, with state, nonce and a PKCE challenge       OIDC Core 1.0, RFC 7636
    browser ──► finish(code, state) ──► token endpoint ──► ID token ──► verify_id_token ──► identity_of ──► Vouched

The browser keeps state, nonce and the verifier of the challenge in a cookie, so any gateway can finish a login that
another began. The issuer's keys are fetched for each login: logins are rare, and new keys are known at once.

Not covered: more than one issuer, and logging out there. Claims are read at each login, so a revoked role is lost at
the next one; `streamward admin access users disable` takes effect at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import httpx2
import jwt

from plugins.people.logins.logins import Vouched
from plugins.people.settings import People
from schemas import json_text
from schemas.events import AccessRole
from streams.egress.address_guard import EgressRefused, UrlOrigin
from streams.egress.http_client import AnswerTooLarge, fetch, new_client
from streams.errors import LogError, LoginRefused
from streams.kafka import times

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Of ID tokens: with a public key. `none` and passwords (HS256) are not among them."""
LIMIT_S = 10.0
MOST_BYTES = 1_000_000
"""Of an answer."""
LEEWAY_S = 60
KEPT_MS = 600_000
"""How long the issuer's addresses are remembered."""
CALLBACK = "/auth/oidc/callback"
_MOST_CODE = 4096


class BegunLogin(NamedTuple):
    """A login that a browser takes to the issuer, and what it has to bring back."""

    url: str
    kept: str
    """For the browser's cookie."""


class _BegunState(NamedTuple):
    state: str
    nonce: str
    verifier: str


class Issuer:
    """An OIDC issuer. Methods wait for its answers, and may be called from any thread."""

    def __init__(self, rule: People, *, transport: httpx2.BaseTransport | None = None) -> None:
        self._rule, self._transport = rule, transport
        self._redirect = rule.public_url + CALLBACK
        self._lock = threading.Lock()
        self._discovery: tuple[int, dict[str, Any]] | None = None

    def begin(self) -> BegunLogin:
        """Return where to send a browser. Raises LogError if the issuer does not answer as it should."""
        state = _BegunState(*(secrets.token_urlsafe(32) for _ in range(3)))
        query = {
            "response_type": "code",
            "client_id": self._rule.oidc_client_id,
            "redirect_uri": self._redirect,
            "scope": self._rule.oidc_scopes,
            "state": state.state,
            "nonce": state.nonce,
            "code_challenge": challenge(state.verifier),
            "code_challenge_method": "S256",
        }
        page = self._address("authorization_endpoint")
        return BegunLogin(f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(query)}", ".".join(state))

    def finish(self, sent: Mapping[str, str], cookie: str) -> Vouched:
        """Return whom the issuer vouches for. Raises LoginRefused, LogError if it does not answer as it should."""
        parts = cookie.split(".")
        if len(parts) != 3 or not hmac.compare_digest(sent.get("state", "").encode(), parts[0].encode()):
            raise LoginRefused("this login was not begun by this browser, or too long ago; begin again")
        state = _BegunState(*parts)
        if sent.get("iss", self._rule.oidc_issuer) != self._rule.oidc_issuer:  # RFC 9207
            raise LoginRefused("this answer is from another issuer than the one that was asked")
        code = sent.get("code", "")
        if not code or len(code) > _MOST_CODE:
            raise LoginRefused(f"the issuer has not let this person in: {_word(sent.get('error', 'no code'))}")
        token = self._exchange(code, state.verifier)
        keys = self._get(self._address("jwks_uri"))
        return identity_of(verify_id_token(token, keys, self._rule, nonce=state.nonce), self._rule)

    def _exchange(self, code: str, verifier: str) -> str:
        rule = self._rule
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": verifier,
        }
        auth = None
        if rule.oidc_client_secret is None:
            form["client_id"] = rule.oidc_client_id
        else:  # RFC 6749 section 2.3.1 encodes both
            auth = (quote(rule.oidc_client_id, ""), quote(rule.oidc_client_secret.get_secret_value(), ""))
        status, answer = self._fetch("POST", self._address("token_endpoint"), data=form, auth=auth)
        if 400 <= status < 500:
            raise LoginRefused(f"the issuer refuses the code: {_word(str(answer.get('error', status)))}")
        if status != 200 or not isinstance(token := answer.get("id_token"), str):
            raise LogError(f"{rule.oidc_issuer} answers with status {status} and no ID token; try again")
        return token

    def _address(self, name: str) -> str:
        """Return one of the issuer's addresses. Raises LogError."""
        issuer, now = self._rule.oidc_issuer, times.now_ms()
        with self._lock:
            if self._discovery is None or now - self._discovery[0] > KEPT_MS:
                discovery = self._get(issuer.rstrip("/") + "/.well-known/openid-configuration")
                if discovery.get("issuer") != issuer:
                    raise LogError(
                        f"people.oidc_issuer is {issuer}, and what answers there calls itself "
                        f"{_word(str(discovery.get('issuer')))}; write it as the issuer does"
                    )
                self._discovery = now, discovery
            address = self._discovery[1].get(name)
        if not isinstance(address, str) or not is_safe(address):
            raise LogError(f"{issuer} names no {name} that begins with https://")
        return address

    def _get(self, url: str) -> dict[str, Any]:
        status, answer = self._fetch("GET", url)
        if status != 200:
            raise LogError(f"{url} answers with status {status}; expected 200. Check people.oidc_issuer")
        return answer

    def _fetch(self, method: str, url: str, **request: Any) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object of an answer. Raises LogError, which quotes nothing of it."""
        try:
            is_own = urlsplit(url).hostname == urlsplit(self._rule.oidc_issuer).hostname
            reach = UrlOrigin.SETTINGS if is_own else UrlOrigin.DATA  # the issuer names its other hosts
            with new_client(reach, transport=self._transport) as client:
                status, body = fetch(client, method, url, limit_s=LIMIT_S, most_bytes=MOST_BYTES, **request)
        except AnswerTooLarge as exc:
            raise LogError(f"{url} answers with {exc}") from exc
        except EgressRefused as exc:
            raise LogError(str(exc)) from exc
        except httpx2.HTTPError as exc:
            raise LogError(f"{url} does not answer ({type(exc).__name__}); try again") from exc
        try:
            value = json_text.parse(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise LogError(f"{url} answers with status {status} and no JSON object")
        return status, value


def challenge(verifier: str) -> str:
    """Return what PKCE shows of a verifier: its SHA-256.

    >>> challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")  # RFC 7636, appendix B
    'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM'
    """
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def verify_id_token(token: str, keys: Mapping[str, Any], rule: People, *, nonce: str) -> dict[str, Any]:
    """Return the claims of an ID token (OIDC Core 1.0, section 3.1.3.7). Raises LoginRefused, which quotes none."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        candidates = [key for key in jwt.PyJWKSet.from_dict(dict(keys)).keys if kid is None or key.key_id == kid]
        if len(candidates) != 1:
            raise LoginRefused("the issuer's ID token names no key of its own")
        claims: dict[str, Any] = jwt.decode(
            token,
            candidates[0],
            algorithms=[candidates[0].algorithm_name] if candidates[0].algorithm_name in ALGORITHMS else [],
            audience=rule.oidc_client_id,
            issuer=rule.oidc_issuer,
            leeway=LEEWAY_S,
            options={"require": ["iss", "sub", "aud", "exp", "iat", "nonce"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise LoginRefused(f"the issuer's ID token is not good: {type(exc).__name__}") from None
    audience = claims["aud"]
    names_client = "azp" in claims or (isinstance(audience, list) and len(audience) > 1)
    if names_client and claims.get("azp") != rule.oidc_client_id:
        raise LoginRefused("the issuer's ID token is for another client")
    if not isinstance(claims["nonce"], str) or not hmac.compare_digest(claims["nonce"].encode(), nonce.encode()):
        raise LoginRefused("the issuer's ID token is of another login")
    return claims


def identity_of(claims: Mapping[str, Any], rule: People) -> Vouched:
    """Return what verified claims make of a person here. Raises LoginRefused without the tenant's claim.

    Roles are in the order of `people.oidc_roles`; values that it does not name give none.
    """
    values = _within(claims, rule.oidc_roles_claim)
    granted = {value for value in (values if isinstance(values, list) else [values]) if isinstance(value, str)}
    roles: list[AccessRole] = [role for value, role in rule.roles_of_claims.items() if value in granted]
    tenant = _within(claims, rule.oidc_tenant_claim) if rule.oidc_tenant_claim else None
    if rule.oidc_tenant_claim and (not isinstance(tenant, str) or not tenant):
        raise LoginRefused(f"the issuer names no tenant of this person: claim {rule.oidc_tenant_claim} is missing")
    names = (claims.get(name) for name in ("preferred_username", "email", "name"))
    name = next((str(candidate)[:200] for candidate in names if isinstance(candidate, str) and candidate), None)
    return Vouched(rule.oidc_issuer, str(claims["sub"]), name, tuple(dict.fromkeys(roles)), tenant)


def is_safe(url: str) -> bool:
    """Return whether requests there are private: TLS, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))


def _within(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its path, with dots between steps: realm_access.roles. A claim with the whole name comes
    first."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _word(text: str) -> str:
    """Return text of another system as one short line of ordinary characters."""
    return "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in text[:200])
