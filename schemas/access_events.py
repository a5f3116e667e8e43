"""Who may call, as what, and what came of each call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import KIB, SHA256, Int, Millis, derive_id

MAX_HASH_COSTS = {"m": 256 * 1024, "t": 10, "p": 4}
"""What checking a password may cost by its hash: KiB of memory, passes and lanes of argon2id."""
AccessKind = Literal[
    "key_created",
    "key_revoked",
    "user_created",
    "roles_set",
    "password_set",
    "user_disabled",
    "user_enabled",
    "session_begun",
    "session_refreshed",
    "session_ended",
    "signing_key_created",
    "signing_key_revoked",
    "tenant_created",
    "tenant_changed",
    "tenant_removed",
]
AccessRole = Literal["viewer", "submitter", "trainer", "promoter", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEvent:
    """A key, a person, a login, a signing key or a tenant's log was made, changed or withdrawn; never with a secret."""

    MOST_BYTES: ClassVar[int] = 64 * KIB
    event_id: Annotated[str, "uuid5(subject_id, kind), and the sequence behind them if there is one"]
    subject_id: Annotated[str, "key of the record: the id of the key, user, session or signing key, or the tenant"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: AccessKind
    actor: Annotated[str, "the person who did it"]
    reason: str
    name: Annotated[str | None, "key_created, user_created: what people call it"] = None
    secret_sha256: Annotated[str | None, "key_created, session_*: SHA-256 of the secret, 64 hexadecimal digits"] = None
    role: Annotated[AccessRole | None, "key_created: what it may do"] = None
    tenant: Annotated[str | None, "key_created, user_created: whose jobs and files it sees; null: all of them"] = None
    agent_id: Annotated[str | None, "key_created: the only agent that it may be; null: any"] = None
    expires_at: Annotated[Millis | None, "key_created, session_begun: from when on it is refused; null: never"] = None
    sequence: Annotated[
        Int | None, "user_*, session_*, tenant_*: 0 when made, one more with each change; the first counts"
    ] = None
    user_id: Annotated[str | None, "session_begun: who logged in"] = None
    epoch: Annotated[Int | None, "session_begun: how often what the user had before was made void"] = None
    password_hash: Annotated[str | None, "user_created, password_set: argon2id, as a PHC string"] = None
    issuer: Annotated[str | None, "user_created: URL of who vouches for a person without a password here"] = None
    public_jwk: Annotated[str | None, "signing_key_created: the public key, JSON as in RFC 7517"] = None
    roles: Annotated[tuple[AccessRole, ...], "user_created, roles_set: what the person may do"] = ()
    principals: Annotated[
        tuple[str, ...], "tenant_created, tenant_changed: who has rights on its topics at the broker, as User:NAME"
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """Somebody asked the server for something, and got it or did not. It has no body, of request or answer."""

    event_id: Annotated[str, "uuid5(start of the server, number of the request, of the call in a batch)"]
    subject_id: Annotated[str, "key of the record: the id of the key; anonymous: none that is valid"]
    created_at: Annotated[Millis, "when its answer ended"]
    traceparent: Annotated[str | None, "as the client sent it"] = None
    metadata: Annotated[
        dict[str, str],
        "lost, skipped: how many requests before this one have no event, for want of room or by their rate",
    ] = field(default_factory=dict)
    role: AccessRole | None = None
    tenant: Annotated[str | None, "of the key; null: none"] = None
    agent_id: Annotated[str | None, "whom path or header name"] = None
    action: Annotated[str, "what the role has to allow"]
    method: Annotated[str, "of HTTP, or of JSON-RPC"]
    resource: Annotated[str, "the path, without its query; no part of it is a key"]
    allowed: Annotated[bool, "whether the key may; false, too, without a valid key and beyond a limit"]
    reason: Annotated[str, "why it is allowed or not"]
    status: Annotated[Int, "of the answer over HTTP"]
    duration_ms: Annotated[Int, "until its answer ended"]
    prompt_tokens: Annotated[Int | None, "of a model call; null: none"] = None
    completion_tokens: Annotated[Int | None, "sampled for it; null: none"] = None


ANONYMOUS = "anonymous"
"""Who asks without a key that is valid."""
_ACCESS_FIELDS: dict[AccessKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "key_created": (("role", "secret_sha256"), ("name", "tenant", "agent_id", "expires_at")),
    "key_revoked": ((), ()),
    "user_created": (("sequence", "roles"), ("name", "tenant", "password_hash", "issuer")),
    "roles_set": (("sequence", "roles"), ()),
    "password_set": (("sequence", "password_hash"), ()),
    "user_disabled": (("sequence",), ()),
    "user_enabled": (("sequence",), ()),
    "session_begun": (("sequence", "user_id", "epoch", "secret_sha256", "expires_at"), ()),
    "session_refreshed": (("sequence", "secret_sha256"), ()),
    "session_ended": ((), ()),
    "signing_key_created": (("public_jwk",), ()),
    "signing_key_revoked": ((), ()),
    "tenant_created": (("sequence", "principals"), ()),
    "tenant_changed": (("sequence", "principals"), ()),
    "tenant_removed": (("sequence",), ()),
}
"""What each kind needs, and what it may have; the rest is of other kinds."""
_ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,10}),t=([0-9]{1,10}),p=([0-9]{1,10})\$[A-Za-z0-9+/]{1,86}\$[A-Za-z0-9+/]{1,86}"
)
"""RFC 9106 as a PHC string: memory, passes and lanes, then salt and hash of 64 bytes at most."""
_ACCESS_FIRST = ("user_created", "session_begun", "tenant_created")
"""The kinds that begin what has a sequence."""
_ACCESS_OWN = sorted({name for needed, may in _ACCESS_FIELDS.values() for name in needed + may})


def password_hash_problem(phc: str) -> str | None:
    """Return why a password hash cannot be used; None if it can. Checking a password costs what its hash says."""
    parts = _ARGON2ID.fullmatch(phc)
    if parts is None:
        return "password_hash is no PHC string of argon2id"
    costs = dict(zip(MAX_HASH_COSTS, map(int, parts.groups()), strict=True))
    if all(cost <= MAX_HASH_COSTS[name] for name, cost in costs.items()):
        return None
    expected = ", ".join(f"{name}={limit}" for name, limit in MAX_HASH_COSTS.items())
    return f"password_hash costs {', '.join(f'{name}={cost}' for name, cost in costs.items())}; at most {expected}"


def access_problems(event: AccessEvent) -> Iterator[str]:
    """Return one sentence for each rule that an access breaks."""
    parts = () if event.sequence is None else (event.sequence,)
    if event.event_id != derive_id(event.subject_id, event.kind, *parts):
        yield "event_id is not uuid5(subject_id, kind, sequence if any); use schemas.events.derive_id"
    needed, may = _ACCESS_FIELDS[event.kind]
    given = {name for name in _ACCESS_OWN if getattr(event, name) not in (None, ())}
    if missing := [name for name in needed if name not in given]:
        yield f"kind is {event.kind} without {', '.join(missing)}; it needs {', '.join(needed)}"
    if others := sorted(given.difference(needed, may)):
        yield f"kind is {event.kind} with {', '.join(others)}, which it cannot have; leave them out"
    if event.secret_sha256 is not None and not SHA256.fullmatch(event.secret_sha256):
        yield "secret_sha256 is no SHA-256; expected 64 hexadecimal digits in lower case"
    if event.sequence is not None and (event.sequence == 0) != (event.kind in _ACCESS_FIRST):
        yield f"kind is {event.kind} and sequence {event.sequence}; what is made has 0, what changes it more"
    if event.sequence is not None and event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if event.password_hash is not None and (problem := password_hash_problem(event.password_hash)) is not None:
        yield problem
    if event.kind == "user_created" and (event.password_hash is None) == (event.issuer is None):
        yield "kind is user_created; it needs password_hash or issuer, and not both"
    for field_name, several in (("roles", event.roles), ("principals", event.principals)):
        if len(set(several)) != len(several):
            yield f"{field_name} has one twice ({', '.join(several)}); name each once"


def request_problems(event: RequestEvent) -> Iterator[str]:
    """Return one sentence for each rule that a request breaks."""
    if not 100 <= event.status <= 599:
        yield f"status is {event.status}; expected one of HTTP, 100 to 599"
    if event.allowed and event.subject_id != ANONYMOUS and event.role is None:
        yield "it is allowed to a key without a role; every key has one"
    for name in ("duration_ms", "prompt_tokens", "completion_tokens"):
        if (getattr(event, name) or 0) < 0:
            yield f"{name} is {getattr(event, name)}; expected 0 or more"
