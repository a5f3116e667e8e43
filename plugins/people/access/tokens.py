"""Access tokens: JSON Web Tokens that any gateway, and any holder of the public keys, can verify.

    signing key (a file of the gateways) ──► signed ──► ES256 JWT of 15 minutes                RFC 7519, RFC 9068
    public keys (the log) ──► accepted ──► verified ──► Claims ──► the session and the user that the log has of them
                                      └──► /.well-known/jwks.json                              RFC 7517

A token names its user, its login and its end. The user's rights and the state of the login are looked up in the log at
each request, so a revocation takes effect at once, not after 15 minutes.

A key signs until the next one is made, and GRACE_MS longer, since files take a while to reach every machine. Its tokens
are accepted until they expire. Revoking a key that may have been copied revokes all of its tokens.

Not covered: `iss` is not compared here, since each log has its own keys; other verifiers compare it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from schemas import json_text
from schemas.events import AccessEvent, derive_id
from streams.errors import SettingsError

ALGORITHM, CURVE, TYPE = "ES256", "P-256", "at+jwt"
AUDIENCE = "streamward"
LASTS_MS = 15 * 60_000
GRACE_MS = 5 * 60_000
"""How long a gateway may sign with a key that was replaced."""
LONGEST = 4096
"""Maximum length of our tokens, in characters."""
_MEMBERS = ("crv", "kty", "x", "y")
_REQUIRED = ("iss", "sub", "aud", "exp", "iat", "jti", "sid")


class Claims(NamedTuple):
    """The content of a verified token."""

    user_id: str
    session_id: str
    expires_at: int


class SigningKey(NamedTuple):
    """A private key, and the id of its public one."""

    kid: str
    private: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"SigningKey({self.kid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """The public half of a signing key as the log has it."""

    kid: str
    jwk: Mapping[str, str]
    key: Any = field(repr=False, compare=False)
    created_at: int
    replaced_at: int | None = None
    """When the next one was made."""
    revoked_at: int | None = None

    def acceptance_end(self) -> int | None:
        """Return until when its tokens are accepted; None: without end."""
        if self.revoked_at is not None:
            return self.revoked_at
        return None if self.replaced_at is None else self.replaced_at + GRACE_MS + LASTS_MS


def new_private_key() -> bytes:
    """Return a private key as PEM, without a password."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_private_key(pem: bytes, path: Path) -> SigningKey:
    """Return a signing key. Raises SettingsError, which does not quote it."""
    expected = "expected a PEM file with a private key on the curve P-256, without a password"
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SettingsError(f"people.signing_key {path} cannot be read; {expected}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SettingsError(f"people.signing_key {path} is another key; {expected}")
    return SigningKey(public_jwk(key)["kid"], key)


def public_jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return the public half, which is called by its thumbprint (RFC 7638)."""
    jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return _with_kid({name: str(jwk[name]) for name in _MEMBERS})


def thumbprint(jwk: Mapping[str, str]) -> str:
    """Return the thumbprint of the members that a public key needs: SHA-256 of their canonical JSON (RFC 7638)."""
    canonical = json.dumps(jwk, sort_keys=True, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).rstrip(b"=").decode()


def creation_event(key: SigningKey, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event that makes a public key known."""
    return AccessEvent(
        event_id=derive_id(key.kid, "signing_key_created"),
        subject_id=key.kid,
        created_at=now_ms,
        kind="signing_key_created",
        actor=actor,
        reason=reason,
        public_jwk=json.dumps(public_jwk(key.private), sort_keys=True),
    )


def revocation_event(kid: str, *, actor: str, reason: str, now_ms: int) -> AccessEvent:
    """Return the event after which no token of a key is accepted."""
    return AccessEvent(
        event_id=derive_id(kid, "signing_key_revoked"),
        subject_id=kid,
        created_at=now_ms,
        kind="signing_key_revoked",
        actor=actor,
        reason=reason,
    )


def fold(before: Sequence[PublicKey], event: AccessEvent) -> tuple[PublicKey, ...]:
    """Return the public keys after one more event about one; the newest is last."""
    known_kids = {key.kid: key for key in before}
    if event.kind == "signing_key_revoked":
        return tuple(
            replace(key, revoked_at=event.created_at) if key.kid == event.subject_id and key.revoked_at is None else key
            for key in before
        )
    if event.subject_id in known_kids or (new_key := _public_key(event)) is None:
        return tuple(before)
    earlier = (replace(key, replaced_at=key.replaced_at or event.created_at) for key in before)
    return (*earlier, new_key)


def _public_key(event: AccessEvent) -> PublicKey | None:
    try:
        jwk = json_text.parse(event.public_jwk or "")
        if not isinstance(jwk, dict) or (jwk.get("crv"), jwk.get("kty")) != (CURVE, "EC") or "d" in jwk:
            return None
        needed = {name: str(jwk[name]) for name in _MEMBERS}
        key = ECAlgorithm.from_jwk(needed)
    except (ValueError, KeyError, jwt.InvalidKeyError):
        return None
    if event.subject_id != thumbprint(needed):
        return None
    return PublicKey(kid=event.subject_id, jwk=_with_kid(needed), key=key, created_at=event.created_at)


def _with_kid(needed: Mapping[str, str]) -> dict[str, str]:
    return {**needed, "kid": thumbprint(needed), "use": "sig", "alg": ALGORITHM}


def accepted_keys(keys: Sequence[PublicKey], now_ms: int) -> list[PublicKey]:
    """Return the keys that are accepted at a time."""
    return [key for key in keys if (until := key.acceptance_end()) is None or now_ms < until]


def why_not_signing(keys: Sequence[PublicKey], kid: str, now_ms: int) -> str | None:
    """Return why tokens of a key would not be accepted for as long as they last; None if they would."""
    key = next((key for key in keys if key.kid == kid), None)
    if key is None:
        return f"signing key {kid} is not in the log"
    if key.revoked_at is not None:
        return f"signing key {kid} was revoked"
    if key.replaced_at is not None and now_ms > key.replaced_at + GRACE_MS:
        return f"signing key {kid} was replaced by {keys[-1].kid}"
    return None


def sign(key: SigningKey, *, issuer: str, claims: Mapping[str, Any], token_id: str, now_ms: int) -> str:
    """Return an access token; `claims` are those of the person and the login."""
    now = now_ms // 1000
    registered = {"iss": issuer, "aud": AUDIENCE, "iat": now, "exp": now + LASTS_MS // 1000, "jti": token_id}
    return jwt.encode({**claims, **registered}, key.private, ALGORITHM, headers={"kid": key.kid, "typ": TYPE})


def looks_like_one(sent: str) -> bool:
    """Return whether this is a JWT, and no key.

    >>> looks_like_one("e30.e30.AA"), looks_like_one("sw_0_a")
    (True, False)
    """
    return sent.count(".") == 2


def verify(keys: Sequence[PublicKey], sent: str, now_ms: int) -> Claims | str:
    """Return the claims of an access token, or why it is invalid; the reason never repeats the token."""
    if len(sent) > LONGEST:
        return f"the token has {len(sent)} characters; none of Streamward's has more than {LONGEST}"
    try:
        header = jwt.get_unverified_header(sent)
        key = next((key for key in accepted_keys(keys, now_ms) if key.kid == header.get("kid")), None)
        if key is None or header.get("typ") != TYPE:
            return "the token is not signed by a key of this log that is still accepted"
        payload = jwt.decode(
            sent,
            key.key,
            algorithms=[ALGORITHM],
            audience=AUDIENCE,
            options={"require": [*_REQUIRED], "verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return "the token is no access token of Streamward, or its signature is wrong"
    user_id, session_id, expires = payload["sub"], payload["sid"], payload["exp"]
    if not isinstance(user_id, str) or not isinstance(session_id, str) or not isinstance(expires, int):
        return "the token is no access token of Streamward, or its signature is wrong"
    if now_ms >= expires * 1000:
        return "the access token has expired"
    return Claims(user_id, session_id, expires * 1000)
