"""People: what events make of a user, a login and a signing key; passwords, tokens, and how often one may try."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st
from joserfc.jwk import ECKey

from plugins.people.access import sessions, tokens, users
from plugins.people.access.keys import NewSecret
from plugins.people.access.sessions import LoginSession, Reused
from plugins.people.logins import passwords
from plugins.people.logins.attempts import A_NAME, A_NAME_THERE, AN_ADDRESS, Attempts
from plugins.people.logins.logins import KeyFile
from schemas.events import AccessEvent, problems
from streams.access.token_bucket import ROUNDING
from streams.errors import LoginRefused, SettingsError
from tests.support.factories import T0

PHC = "$argon2id$v=19$m=8,t=1,p=1$AAAA$AAAA"
DEAR = [PHC.replace("m=8,t=1,p=1", costs) for costs in ("m=262145,t=1,p=1", "m=65536,t=4294967295,p=1", "m=64,t=1,p=5")]
"""Hashes that would hold whoever checks a password against them."""
FIRST, SECOND, THIRD = (NewSecret("00112233445566ff", letter * 43) for letter in "abc")
HOUR_MS = 3_600_000
KEY = tokens.read_private_key(tokens.new_private_key(), Path("key.pem"))
OTHER = tokens.read_private_key(tokens.new_private_key(), Path("other.pem"))
SAID = {"sub": "ann", "sid": FIRST.key_id, "roles": ["trainer"], "tenant": None}


def user(**given: Any) -> users.User:
    event = users.creation_event(
        users.NewUser(user_id="ann", roles=["trainer"], password_hash=PHC, **given), actor="bob", now_ms=T0
    )
    assert list(problems(event)) == []
    made = users.fold(None, event)
    assert made is not None
    return made


def session() -> LoginSession:
    made = sessions.fold(None, sessions.start_event(FIRST, user(), reason="test", now_ms=T0, expires_at=T0 + HOUR_MS))
    assert made is not None
    return made


def after(before: LoginSession, *events: AccessEvent) -> LoginSession:
    for event in events:
        assert list(problems(event)) == []
        found = sessions.fold(before, event)
        assert found is not None
        before = found
    return before


def found(
    login: LoginSession, secret: NewSecret, of: users.User | None = None, now_ms: int = T0
) -> LoginSession | Reused | str:
    return sessions.find({login.session_id: login}, {"ann": of or user()}, sessions.token_text(secret), now_ms)


# --- users -----------------------------------------------------------------------------------------------------------


def test_each_change_to_a_user_counts_once_and_in_turn() -> None:
    one = user()
    two = users.fold(one, users.roles_event(one, ["admin"], actor="bob", reason="r", now_ms=T0))
    assert two is not None and two.roles == ("admin",) and two.epoch == 0
    late = users.disable_event(one, actor="eve", reason="r", now_ms=T0 + 1)
    assert users.fold(two, late) == two, "who wrote it did not know of the change before"
    three = users.fold(two, users.disable_event(two, actor="bob", reason="r", now_ms=T0 + 2))
    assert three is not None and (three.disabled_at, three.epoch) == (T0 + 2, 1)
    four = users.fold(three, users.enable_event(three, actor="bob", reason="r", now_ms=T0 + 3))
    assert four is not None and (four.disabled_at, four.epoch) == (None, 1)
    again = users.creation_event(
        users.NewUser(user_id="ann", roles=["admin"], password_hash=PHC), actor="eve", now_ms=T0 + 4
    )
    assert users.fold(four, again) == four
    assert users.fold(None, late) is None


def test_no_password_is_set_for_a_person_of_an_issuer() -> None:
    theirs = replace(user(), password_hash=None, issuer="https://issuer.example")
    assert users.fold(theirs, users.password_event(theirs, PHC, actor="eve", reason="r", now_ms=T0)) == theirs


@pytest.mark.parametrize("name", ["", "Ann", "-a", "a b", "oidc-1", "a" * 65, "ann\n"])
def test_what_is_no_name_of_a_user_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be the name"):
        users.checked_name(name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sequence": 1}, "what is made has 0"),
        ({"roles": ()}, "without roles"),
        ({"roles": ("viewer", "viewer")}, "roles has one twice"),
        ({"password_hash": None}, "password_hash or issuer"),
        ({"issuer": "https://issuer.example"}, "password_hash or issuer"),
        ({"password_hash": "secret of ann"}, "no PHC string"),
        *(({"password_hash": dear}, "at most m=262144, t=10, p=4") for dear in DEAR),
        ({"secret_sha256": "0" * 64}, "with secret_sha256"),
    ],
)
def test_an_event_of_a_user_that_breaks_a_rule_is_named(changes: dict[str, Any], said: str) -> None:
    whole = users.creation_event(
        users.NewUser(user_id="ann", roles=["viewer"], password_hash=PHC), actor="bob", now_ms=T0
    )
    told = list(problems(replace(whole, **changes)))
    assert any(said in problem for problem in told)
    assert "secret of ann" not in "".join(told)


# --- passwords -------------------------------------------------------------------------------------------------------


def test_a_password_is_known_by_its_hash_however_its_letters_are_composed() -> None:
    phc = passwords.hash_password("cafe\u0301 at the corner")
    assert phc.startswith("$argon2id$v=19$m=47104,t=1,p=1$") and "corner" not in phc
    assert passwords.matches("caf\u00e9 at the corner", phc)
    assert not passwords.matches("cafe at the corner", phc)
    assert not passwords.matches("whatever it is", None)


@pytest.mark.parametrize(
    "phc", [*DEAR, PHC, PHC.replace("$AAAA$", f"${'A' * 87}$"), PHC.replace("m=8", "m=\u0668"), "", "x"]
)
def test_a_password_is_never_compared_with_a_hash_that_costs_too_much_or_is_none(phc: str) -> None:
    assert not passwords.matches("correct horse battery", phc)


def test_a_password_that_gets_no_turn_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "WAIT_S", 0.01)
    with ExitStack() as held:
        for _ in range(passwords.HASHING):
            held.enter_context(passwords._turn())
        for check in (
            lambda: passwords.matches("correct horse battery", PHC),
            lambda: passwords.hash_password("x" * 12),
        ):
            with pytest.raises(LoginRefused, match="try again") as refused:
                check()
            assert refused.value.wait_ms is not None, "it was not looked at"
    assert not passwords.matches("correct horse battery", PHC)


@pytest.mark.parametrize("password", ["", "short", "x" * 11, "x" * 257])
def test_a_password_of_another_length_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(SettingsError, match="expected 12 to 256") as refused:
        passwords.hash_password(password)
    assert not password or password not in str(refused.value)


# --- logins ----------------------------------------------------------------------------------------------------------


def test_only_the_newest_refresh_token_of_a_login_is_good() -> None:
    login = after(session(), sessions.refresh_event(session(), SECOND.secret, now_ms=T0))
    assert found(login, SECOND) == login
    assert found(login, FIRST) == Reused(login)
    assert isinstance(found(login, THIRD), str)
    assert found(login, THIRD) == found(session(), NewSecret("ff" * 8, "a" * 43)), "who guesses learns which ids exist"


def test_of_two_refreshes_of_one_token_the_second_ends_the_login() -> None:
    here, there = (sessions.refresh_event(session(), secret.secret, now_ms=T0) for secret in (SECOND, THIRD))
    assert after(session(), here, here) == after(session(), here), "a record that is delivered twice is no second use"
    ended = after(session(), here, there)
    assert ended.ended_at is not None
    assert all(isinstance(found(ended, secret), str) for secret in (FIRST, SECOND, THIRD))
    assert after(ended, sessions.refresh_event(session(), FIRST.secret, now_ms=T0)) == ended


@pytest.mark.parametrize(
    ("of", "now_ms", "said"),
    [
        (user(), T0 + HOUR_MS, "has expired"),
        (replace(user(), disabled_at=T0, epoch=1), T0, "made void"),
        (replace(user(), epoch=1), T0, "made void"),
    ],
)
def test_a_login_is_void_once_it_expires_or_its_user_is_not_as_before(of: users.User, now_ms: int, said: str) -> None:
    told = found(session(), FIRST, of, now_ms)
    assert isinstance(told, str) and said in told


def test_no_secret_is_in_an_event_or_in_a_repr() -> None:
    events = [sessions.start_event(FIRST, user(), reason="r", now_ms=T0, expires_at=T0 + 1)]
    events += [
        sessions.refresh_event(session(), SECOND.secret, now_ms=T0),
        tokens.creation_event(KEY, actor="a", reason="r", now_ms=T0),
    ]
    private = KEY.private.private_numbers().private_value
    text = json.dumps([asdict(event) for event in events]) + repr((FIRST, session(), user(), KEY, *events))
    assert FIRST.secret not in text and SECOND.secret not in text and str(private) not in text and '"d"' not in text
    assert PHC not in repr(user())


# --- tokens ----------------------------------------------------------------------------------------------------------


def public(*keys: tokens.SigningKey) -> tuple[tokens.PublicKey, ...]:
    known: tuple[tokens.PublicKey, ...] = ()
    for number, key in enumerate(keys):
        event = tokens.creation_event(key, actor="ann", reason="r", now_ms=T0 + number * HOUR_MS)
        assert list(problems(event)) == []
        known = tokens.fold(known, event)
    return known


def signed(key: tokens.SigningKey = KEY, now_ms: int = T0, **claims: Any) -> str:
    return tokens.sign(key, issuer="https://here", claims={**SAID, **claims}, token_id="1", now_ms=now_ms)


def test_a_token_is_good_for_15_minutes_and_says_who_has_it() -> None:
    token = signed()
    assert tokens.verify(public(KEY), token, T0 + tokens.LASTS_MS - 1000) == (
        "ann",
        FIRST.key_id,
        T0 + tokens.LASTS_MS,
    )
    assert tokens.verify(public(KEY), token, T0 + tokens.LASTS_MS) == "the access token has expired"


def test_a_key_that_was_replaced_is_accepted_for_as_long_as_its_tokens_last() -> None:
    both = public(KEY, OTHER)
    assert [key.kid for key in tokens.accepted_keys(both, T0 + HOUR_MS)] == [KEY.kid, OTHER.kid]
    last = T0 + HOUR_MS + tokens.GRACE_MS
    assert tokens.why_not_signing(both, KEY.kid, last) is None
    assert not isinstance(tokens.verify(both, signed(now_ms=last), last + tokens.LASTS_MS - 1000), str)
    assert "was replaced" in str(tokens.why_not_signing(both, KEY.kid, last + 1))
    assert [key.kid for key in tokens.accepted_keys(both, last + tokens.LASTS_MS)] == [OTHER.kid]


def test_a_key_that_was_revoked_opens_nothing_at_once() -> None:
    gone = tokens.fold(
        public(KEY, OTHER), tokens.revocation_event(KEY.kid, actor="ann", reason="copied", now_ms=T0 + 1)
    )
    assert "not signed by a key of this log" in tokens.verify(gone, signed(), T0 + 2)
    assert not isinstance(tokens.verify(gone, signed(OTHER), T0 + 2), str)
    assert "was revoked" in str(tokens.why_not_signing(gone, KEY.kid, T0 + 2))
    assert tokens.fold(gone, tokens.creation_event(KEY, actor="eve", reason="r", now_ms=T0 + 3)) == gone


def forged() -> dict[str, str]:
    """Tokens that somebody may try; each is signed, or not, with what they have."""
    jwk = tokens.public_jwk(KEY.private)
    pem = KEY.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    whole = {
        **SAID,
        "iss": "https://here",
        "aud": tokens.AUDIENCE,
        "iat": T0 // 1000,
        "exp": T0 // 1000 + 900,
        "jti": "1",
    }
    head: dict[str, Any] = {"kid": KEY.kid, "typ": tokens.TYPE}
    body = signed().split(".")
    mac = jwt.encode(whole, json.dumps(jwk) + "x" * 32, "HS256", headers=head)
    return {
        "another key under a known id": jwt.encode(whole, OTHER.private, "ES256", headers=head),
        "no signature": jwt.encode(whole, None, "none", headers=head),
        "the public key as a password": mac,
        "a key of its own in the header": jwt.encode(
            whole, OTHER.private, "ES256", headers={**head, "kid": "own", "jwk": tokens.public_jwk(OTHER.private)}
        ),
        "an id token": jwt.encode(whole, KEY.private, "ES256", headers={**head, "typ": "JWT"}),
        "another audience": jwt.encode({**whole, "aud": "other"}, KEY.private, "ES256", headers=head),
        "no end": jwt.encode({k: v for k, v in whole.items() if k != "exp"}, KEY.private, "ES256", headers=head),
        "an end that is none": jwt.encode({**whole, "exp": "soon"}, KEY.private, "ES256", headers=head),
        "a user that is none": jwt.encode({**whole, "sub": 7}, KEY.private, "ES256", headers=head),
        "another body": ".".join((body[0], signed(roles=["admin"]).split(".")[1], body[2])),
        "the public key as PEM": f"{body[0]}.{body[1]}.{pem.hex()}",
        "too long": signed(more="x" * tokens.LONGEST),
    }


@pytest.mark.parametrize("how", forged())
def test_a_forged_token_is_none(how: str) -> None:
    told = tokens.verify(public(KEY), forged()[how], T0)
    assert isinstance(told, str) and forged()[how] not in told


@given(st.lists(st.text("eyJ0.-_A ü{}\x00", max_size=30), min_size=3, max_size=3))
def test_whatever_is_sent_as_a_token_gets_an_answer(parts: list[str]) -> None:
    assert isinstance(tokens.verify(public(KEY), ".".join(parts), T0), str)


def test_a_public_key_is_called_by_its_thumbprint_and_one_that_is_none_is_left_out() -> None:
    jwk = tokens.public_jwk(KEY.private)
    assert jwk["kid"] == ECKey.import_key({name: jwk[name] for name in ("crv", "kty", "x", "y")}).thumbprint()
    good = tokens.creation_event(KEY, actor="a", reason="r", now_ms=T0)
    for text in ("", "[]", "{}", json.dumps({**jwk, "x": "AA"}), json.dumps({**jwk, "d": "AA"}), "[" * 100_000):
        assert tokens.fold((), replace(good, public_jwk=text)) == ()
    assert tokens.fold((), replace(good, subject_id=OTHER.kid)) == ()


def test_a_key_file_is_read_again_when_it_is_another_and_no_error_quotes_it(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    with pytest.raises(SettingsError, match="signing-key rotate"):
        KeyFile(path)
    path.write_bytes(tokens.new_private_key())
    keys = KeyFile(path)
    first = keys.key()
    beside = tmp_path / "next"
    beside.write_bytes(tokens.new_private_key())
    beside.replace(path)
    assert keys.key().kid != first.kid
    other = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for bad in (other, b"hunter2 is no key"):
        with pytest.raises(SettingsError, match="P-256") as refused:
            tokens.read_private_key(bad, path)
        assert bad.decode() not in str(refused.value)


# --- attempts --------------------------------------------------------------------------------------------------------


def test_a_name_and_an_address_run_out_of_attempts_each_by_itself() -> None:
    of_name, of_address = Attempts(), Attempts()
    assert [of_name.wait_ms("ann", f"10.0.0.{n}", T0) for n in range(A_NAME.size + 1)][-2:] == [0, A_NAME.every_ms]
    assert of_name.wait_ms("bob", "10.0.0.99", T0) == 0
    assert [of_address.wait_ms(f"u{n}", "10.0.0.1", T0) for n in range(AN_ADDRESS.size + 1)][-2:] == [
        0,
        AN_ADDRESS.every_ms,
    ]
    assert of_address.wait_ms("u0", "10.0.0.1", T0 + AN_ADDRESS.every_ms) == 0


def test_who_guesses_at_an_address_locks_out_nobody_but_the_name_there() -> None:
    """Behind a proxy everyone has one address."""
    counted = Attempts()
    assert [counted.wait_ms("ann", "10.0.0.1", T0) for _ in range(A_NAME_THERE.size + 1)][-2:] == [
        0,
        A_NAME_THERE.every_ms,
    ]
    assert counted.wait_ms("ann", "10.0.0.2", T0) == 0
    for number in range(40):
        counted.wait_ms(f"u{number}", "10.0.0.1", T0)
    assert counted.wait_ms("bob", "10.0.0.1", T0) == 0
    for hour in range(24):
        while counted.wait_ms("carl", "10.0.0.3", T0 + hour * 3_600_000) == 0:
            pass
    assert counted.wait_ms("carl", "10.0.0.4", T0 + 24 * 3_600_000) == 0


def test_what_has_no_name_waits_for_its_address_alone() -> None:
    counted = Attempts()
    assert [counted.wait_ms(None, "10.0.0.1", T0) for _ in range(AN_ADDRESS.size + 1)][-2:] == [0, AN_ADDRESS.every_ms]


def test_who_knows_the_password_never_waits() -> None:
    counted = Attempts()
    for number in range(3 * AN_ADDRESS.size):
        assert counted.wait_ms("ann", "2001:db8::1", T0 + number) == 0
        counted.give_back_tokens("ann", "2001:db8::2", T0 + number)


def test_buckets_are_limited_and_the_one_used_longest_ago_is_forgotten() -> None:
    counted = Attempts(limit=4)
    for _ in range(A_NAME.size):
        counted.wait_ms("ann", "10.0.0.1", T0)
    assert counted.wait_ms("ann", "10.0.0.1", T0) > 0
    for name in "bc":
        counted.wait_ms(name, "10.0.0.2", T0)
    assert counted.wait_ms("ann", "10.0.0.1", T0) == 0


@given(st.lists(st.integers(0, 100_000), max_size=60))
def test_no_series_of_attempts_gets_more_than_the_rule_allows(pauses: list[int]) -> None:
    counted, now, granted = Attempts(), T0, 0
    for number, pause in enumerate(pauses):
        now += pause
        granted += counted.wait_ms("ann", f"10.0.0.{number}", now) == 0
    assert granted <= A_NAME.size + (now - T0) / A_NAME.every_ms + len(pauses) * ROUNDING
