"""Passwords: slow hashes, and comparisons that take the same time for known and unknown users.

    password ──► NFKC ──► argon2id, a salt of its own ──► PHC string, in the log        RFC 9106
    password, PHC string or none ──► matches ──► yes or no, after one argon2id either way

cryptography's argon2id is OpenSSL's, and reads the strings of any other (argon2-cffi's, for one). Parameters are the
first that OWASP's Password Storage Cheat Sheet names: 46 MiB, one pass, one lane. At most HASHING are computed at once,
so many logins take time, not memory; one that waits longer than WAIT_S is refused for the moment. A hash that asks
for more than `schemas.events.MAX_HASH_COSTS` is never computed.

Not covered: lists of passwords that are known to have leaked.
"""

from __future__ import annotations

import os
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from schemas.events import password_hash_problem
from streams.errors import LoginRefused, SettingsError

MEMORY_KIB, PASSES, LANES = 47_104, 1, 1
LEAST, MOST = 12, 256
"""How many characters a password has. NIST SP 800-63B asks for length, and for no mixture of characters."""
HASHING = 2
WAIT_S = 10.0
"""How long a password may wait for its turn."""
_AT_ONCE = threading.BoundedSemaphore(HASHING)
_NO_PHC = f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}$" + "A" * 22 + "$" + "A" * 43
"""Hash that passwords of unknown users are compared with, so that both cases take equally long."""


def hash_password(password: str) -> str:
    """Return what the log keeps of a password. Raises SettingsError if it is too short or too long, LoginRefused."""
    if not LEAST <= len(_normal(password)) <= MOST:
        raise SettingsError(f"the password has {len(password)} characters; expected {LEAST} to {MOST}")
    derive = Argon2id(salt=os.urandom(16), length=32, iterations=PASSES, lanes=LANES, memory_cost=MEMORY_KIB)
    with _turn():
        return derive.derive_phc_encoded(_normal(password).encode())


def matches(password: str, phc: str | None) -> bool:
    """Return whether a password matches a hash; without a hash it does not, after the same time.

    A hash that costs too much is none. Raises LoginRefused if too many others are checked at the moment.
    """
    sent = _normal(password[: MOST + 1]).encode("utf-8", "replace")
    if phc is not None and password_hash_problem(phc) is not None:
        phc = None
    with _turn():
        try:
            Argon2id.verify_phc_encoded(sent, _NO_PHC if phc is None else phc)
        except (InvalidKey, ValueError):  # ValueError: its salt is too short, or its memory too little
            return False
    return phc is not None and len(password) <= MOST


@contextmanager
def _turn() -> Iterator[None]:
    """Hold one of the places for passwords that are hashed. Raises LoginRefused if none is free within WAIT_S."""
    if not _AT_ONCE.acquire(timeout=WAIT_S):
        message = f"too many passwords are checked at the moment; this one was not within {WAIT_S:g} s, so try again"
        raise LoginRefused(message, wait_ms=round(1000 * WAIT_S))
    try:
        yield
    finally:
        _AT_ONCE.release()


def _normal(password: str) -> str:
    return unicodedata.normalize("NFKC", password)
