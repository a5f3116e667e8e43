"""Create users; log them in and out.

    name, password ──► attempts left? ──► argon2id ──► session_begun ──► access token, refresh token
    claims that an issuer makes ──► user_created or roles_set, if need be ──► session_begun ──► the same
    refresh token ──► session_refreshed ──► the next two          an old one ──► session_ended
    a change to a user ──► event ──► access ──► own fold has passed it ──► is it so? ──► answer

An unknown name, a wrong password and a disabled user get the same message.

Not covered: attempts at other gateways; each counts separately.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from plugins.people.access import sessions, tokens, users
from plugins.people.access.access_log import AccessLog
from plugins.people.access.keys import NewSecret, new_secret
from plugins.people.access.sessions import LoginSession, Reused
from plugins.people.access.tokens import LASTS_MS, SigningKey
from plugins.people.access.users import User
from plugins.people.logins import passwords
from plugins.people.logins.attempts import Attempts
from plugins.people.settings import People
from schemas.events import AccessEvent, AccessRole
from streams.access.credentials import TokenPair
from streams.access.tenants import tenant_names as tenants
from streams.errors import LogError, LoginRefused, RefusedError, SettingsError
from streams.kafka import times

HOUR_MS = 3_600_000
WRONG = "name or password is wrong, or the user is disabled"
LATER_MS = 1_000


class Vouched(NamedTuple):
    """What an issuer says of a person."""

    issuer: str
    subject: str
    name: str | None
    roles: tuple[AccessRole, ...]
    tenant: str | None


class KeyFile:
    """The private key that tokens are signed with, read again whenever its file is another."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError if the key cannot be read."""
        self._path = path
        self._read: tuple[tuple[int, int, int], SigningKey] | None = None
        self.key()

    def key(self) -> SigningKey:
        """Return the key. Raises SettingsError."""
        try:
            stat = self._path.stat()
            identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._read is None or self._read[0] != identity:
                self._read = identity, tokens.read_private_key(self._path.read_bytes(), self._path)
        except OSError as exc:
            raise SettingsError(
                f"people.signing_key {self._path} cannot be read: {exc.strerror}. "
                "`streamward admin access signing-key rotate` makes one"
            ) from exc
        return self._read[1]


class Logins:
    """The logins at a gateway. Methods wait for the broker, and may be called from any thread."""

    def __init__(self, log: AccessLog, rule: People, key_file: KeyFile, *, issuer: str) -> None:
        """`issuer` is the `iss` of tokens. Raises SettingsError, LogError."""
        self._log, self._rule, self._key_file, self._issuer = log, rule, key_file, issuer
        self._attempts = Attempts()
        self._blinding = secrets.token_bytes(32)
        key = key_file.key()
        if not any(public_key.kid == key.kid for public_key in log.public_keys):
            log.write(tokens.creation_event(key, actor="serve", reason="found at the start", now_ms=times.now_ms()))
        if problem := tokens.why_not_signing(log.public_keys, key.kid, times.now_ms()):
            raise SettingsError(f"people.signing_key: {problem}; give this gateway the file that the others have")

    def log_in(self, name: str, password: str, address: str) -> TokenPair:
        """Return tokens for a user with the right password. Raises LoginRefused, LogError."""
        if len(name) > users.LONGEST or len(password) > passwords.MOST:
            raise LoginRefused(WRONG)
        subject = self._log_subject(name)
        with self.attempt(name, address, subject):
            user = self._log.users.get(name)
            is_right = passwords.matches(password, None if user is None else user.password_hash)
            if user is None or not is_right or user.disabled_at is not None:
                raise LoginRefused(WRONG, about=subject)
        return self._begin(user, "password")

    @contextmanager
    def attempt(self, name: str | None, address: str, subject: str | None = None) -> Iterator[None]:
        """Count what raises as an attempt that failed, unless it was not looked at; `name`: None without one.

        Raises LoginRefused at the start if there were too many.
        """
        now = times.now_ms()
        if wait := self._attempts.wait_ms(name, address, now):
            message = f"too many attempts to log in; try again in {-(-wait // 1000)} s"
            raise LoginRefused(message, wait_ms=wait, about=subject)
        try:
            yield
        except LoginRefused as exc:
            if exc.wait_ms is not None:
                self._attempts.give_back_tokens(name, address, now)
            raise
        self._attempts.give_back_tokens(name, address, now)

    def _log_subject(self, name: str) -> str:
        """Return the subject of a login in the log of requests.

        People type passwords where their name belongs, so the name of no user is not kept: only a short digest, by
        which one sees the same name again. Its key is this gateway's, and is forgotten with it.
        """
        if (user := self._log.users.get(name)) is not None:
            return user.who
        return f"no user ({hmac.digest(self._blinding, name.encode(errors='replace'), 'sha256').hex()[:8]})"

    def log_in_from_issuer(self, identity: Vouched) -> TokenPair:
        """Return tokens for an issuer's user; the claims decide the roles. Raises LoginRefused,
        LogError."""
        user_id = users.id_from_issuer(identity.issuer, identity.subject)
        if not identity.roles:
            raise LoginRefused(
                f"{identity.issuer} gives this person no role here; people.oidc_roles says which claims do"
            )
        user = self._log.users.get(user_id)
        if user is None:
            new_user = users.NewUser(
                user_id=user_id,
                roles=identity.roles,
                issuer=identity.issuer,
                name=identity.name,
                tenant=identity.tenant,
            )
            creation = users.creation_event(new_user, actor=identity.issuer, now_ms=times.now_ms())
            self._log.write(creation)
            user = self._log.user(user_id)
        if user.disabled_at is not None:
            raise LoginRefused(f"user {user_id} is disabled")
        if user.tenant != identity.tenant:
            raise LoginRefused(f"user {user_id} is of another tenant than {identity.issuer} says now")
        if set(user.roles) != set(identity.roles):
            now = times.now_ms()
            self._log.write(
                users.roles_event(user, identity.roles, actor=identity.issuer, reason="its claims", now_ms=now)
            )
            user = self._log.user(user_id)
            if set(user.roles) != set(identity.roles):
                raise LoginRefused("roles were changed by another writer at once; log in again", wait_ms=LATER_MS)
        return self._begin(user, "oidc")

    def refresh(self, refresh_token: str) -> TokenPair:
        """Return the next tokens of a login. Raises LoginRefused, LogError."""
        login = self._log.login_of(refresh_token)
        if isinstance(login, Reused):
            now = times.now_ms()
            self._log.write(
                sessions.end_event(login.session, actor="serve", reason="a token was used twice", now_ms=now)
            )
            message = "this refresh token was used before, so its login was ended; log in again"
            raise LoginRefused(message, about=f"user {login.session.user_id}")
        if isinstance(login, str):
            raise LoginRefused(f"{login}; log in again")
        key, secret = self._key(), NewSecret(login.session_id, new_secret().secret)
        self._log.write(sessions.refresh_event(login, secret.secret, now_ms=times.now_ms()))
        if isinstance(self._log.login_of(sessions.token_text(secret)), LoginSession):
            return self._pair(self._log.user(login.user_id), secret, key)
        message = "this refresh token was used twice at once, so its login was ended; log in again"
        raise LoginRefused(message, about=f"user {login.user_id}")

    def log_out(self, refresh_token: str) -> User | None:
        """End a login, if it has not ended, and return its user. Raises LogError."""
        login = self._log.login_of(refresh_token)
        if isinstance(login, Reused):
            login = login.session
        if isinstance(login, LoginSession):
            self._log.write(sessions.end_event(login, actor=login.user_id, reason="logged out", now_ms=times.now_ms()))
            return self._log.users.get(login.user_id)
        return None

    def public_keys(self) -> list[dict[str, str]]:
        """Return the keys that tokens are verified with, as JWKS has them."""
        return [dict(key.jwk) for key in tokens.accepted_keys(self._log.public_keys, times.now_ms())]

    def _begin(self, user: User, reason: str) -> TokenPair:
        key, secret, now = self._key(), new_secret(), times.now_ms()
        ends = now + int(self._rule.session_h * HOUR_MS)
        self._log.write(sessions.start_event(secret, user, reason=reason, now_ms=now, expires_at=ends))
        return self._pair(user, secret, key)

    def _pair(self, user: User, secret: NewSecret, key: SigningKey) -> TokenPair:
        claims = {"sub": user.user_id, "sid": secret.key_id, "roles": list(user.roles), "tenant": user.tenant}
        access = tokens.sign(
            key, issuer=self._issuer, claims=claims, token_id=secrets.token_hex(8), now_ms=times.now_ms()
        )
        return TokenPair(access, sessions.token_text(secret), LASTS_MS // 1000, user)

    def _key(self) -> SigningKey:
        """Return the key to sign with. Raises LogError if there is none at the moment: the login may be retried."""
        try:
            key = self._key_file.key()
        except SettingsError as exc:
            raise LogError(str(exc)) from exc
        if problem := tokens.why_not_signing(self._log.public_keys, key.kid, times.now_ms()):
            raise LogError(f"{problem}; this gateway needs the file of people.signing_key that the others have")
        return key


def create_user(
    log: AccessLog, name: str, password: str, roles: Sequence[AccessRole], *, actor: str, tenant: str | None = None
) -> User:
    """Create a user in the log. Raises SettingsError, RefusedError if the name is taken, LogError."""
    users.checked_name(name)
    if name in log.users:
        raise RefusedError(f"there is a user {name} already; `streamward admin access users list` shows all")
    phc = passwords.hash_password(password)
    if tenant is not None and (problem := tenants.why_no_name(tenant)) is not None:
        raise SettingsError(f"--tenant: {problem}")
    new_user = users.NewUser(user_id=name, roles=roles, password_hash=phc, tenant=tenant)
    log.write(users.creation_event(new_user, actor=actor, now_ms=times.now_ms()))
    return _check_user(log, name, lambda user: user.password_hash == phc)


def set_password(log: AccessLog, name: str, password: str, *, actor: str, reason: str) -> User:
    """Return a user with another password; what they were logged in to has ended.

    Raises NotFoundError, SettingsError, RefusedError, LogError.
    """
    user = log.user(name)
    if user.password_hash is None:
        raise RefusedError(f"user {name} has no password here: {user.issuer} vouches for this person")
    phc = passwords.hash_password(password)
    return _change(log, user, users.password_event(user, phc, actor=actor, reason=reason, now_ms=times.now_ms()))


def set_roles(log: AccessLog, name: str, roles: Sequence[AccessRole], *, actor: str, reason: str) -> User:
    """Return a user with other roles, now or before. Raises NotFoundError, RefusedError, LogError."""
    user = log.user(name)
    if set(user.roles) == set(roles):
        return user
    return _change(log, user, users.roles_event(user, roles, actor=actor, reason=reason, now_ms=times.now_ms()))


def disable(log: AccessLog, name: str, *, actor: str, reason: str) -> User:
    """Disable a user, if not disabled already. Raises NotFoundError, RefusedError, LogError."""
    user = log.user(name)
    if user.disabled_at is not None:
        return user
    return _change(log, user, users.disable_event(user, actor=actor, reason=reason, now_ms=times.now_ms()))


def enable(log: AccessLog, name: str, *, actor: str, reason: str) -> User:
    """Enable a user, if not enabled already. Raises NotFoundError, RefusedError, LogError."""
    user = log.user(name)
    if user.disabled_at is None:
        return user
    return _change(log, user, users.enable_event(user, actor=actor, reason=reason, now_ms=times.now_ms()))


def rotate(log: AccessLog, path: Path, *, actor: str, reason: str, revoke: bool) -> SigningKey:
    """Return a new signing key: its public half is in the log, its private one in a file that no other user can read.

    `revoke`: no token of an earlier key is accepted any more. Raises SettingsError, LogError.
    """
    pem = tokens.new_private_key()
    key, before = tokens.read_private_key(pem, path), log.public_keys
    log.write(tokens.creation_event(key, actor=actor, reason=reason, now_ms=times.now_ms()))
    temporary = path.with_name(f".{path.name}.{key.kid[:8]}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as exc:
        raise SettingsError(
            f"people.signing_key {path} cannot be written: {exc.strerror}. Name a file in a folder that exists"
        ) from exc
    for previous in before if revoke else ():
        if previous.revoked_at is None:
            log.write(tokens.revocation_event(previous.kid, actor=actor, reason=reason, now_ms=times.now_ms()))
    return key


def _change(log: AccessLog, before: User, event: AccessEvent) -> User:
    """Return a user after a change. Raises RefusedError if another one came first."""
    log.write(event)
    expected = users.fold(before, event)
    return _check_user(log, before.user_id, lambda user: user == expected)


def _check_user(log: AccessLog, user_id: str, is_so: Callable[[User], bool]) -> User:
    user = log.user(user_id)
    if not is_so(user):
        raise RefusedError(f"user {user_id} was changed by another writer at the same time; look at it, and try again")
    return user
