"""Logging in by way of an issuer: what is asked, what of its answer is checked, and what it makes of a person."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import SecretStr, ValidationError

from plugins.people.logins.logins import Vouched
from plugins.people.logins.oidc import Issuer, identity_of, is_safe
from plugins.people.settings import People
from streams.errors import LogError, LoginRefused
from tests.support.doubles.issuer import CLIENT, URL, OwnIssuer

SECRET = "it's a secret"
OTHER_KEY = rsa.generate_private_key(65537, 2048)


def rule(**given: Any) -> People:
    whole: dict[str, Any] = {
        "signing_key": Path("signing.pem"),
        "public_url": "https://streamward.example",
        "oidc_issuer": URL,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SecretStr(SECRET),
        "oidc_roles": "lab=trainer, leads=promoter",
    }
    return People(**{**whole, **given})


def logged_in(own: OwnIssuer, *, rule: People, **brought: str) -> Vouched:
    issuer = Issuer(rule, transport=own.transport)
    begun = issuer.begin()
    return issuer.finish({**own.let_in(begun.url), **brought}, begun.kept)


def test_whom_the_issuer_vouches_for_has_the_roles_that_its_claims_give() -> None:
    own = OwnIssuer()
    assert logged_in(own, rule=rule()) == Vouched(URL, "17", "ann", ("trainer",), None)
    assert own.asked["code_challenge_method"] == "S256" and own.asked["response_type"] == "code"
    assert own.asked["redirect_uri"] == "https://streamward.example/auth/oidc/callback"
    assert own.asked["a"] == "b", "a query of the issuer's page is kept"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"claims": {"sub": "17", "nonce": "another"}}, "of another login"),
        ({"claims": {"sub": "17", "nonce": None}}, "MissingRequiredClaim"),
        ({"claims": {"sub": "17", "iss": "https://other.example"}}, "InvalidIssuer"),
        ({"claims": {"sub": "17", "aud": "other"}}, "InvalidAudience"),
        ({"claims": {"sub": "17", "aud": [CLIENT, "other"]}}, "for another client"),
        ({"claims": {"sub": "17", "azp": "other"}}, "for another client"),
        ({"claims": {"sub": "17", "exp": int(time.time()) - 3600}}, "ExpiredSignature"),
        ({"claims": {"sub": None}}, "MissingRequiredClaim"),
        ({"claims": {"sub": 17}}, "InvalidSubject"),
        ({"key": OTHER_KEY}, "InvalidSignature"),
        ({"header": {"kid": "two"}}, "no key of its own"),
        ({"key": None, "algorithm": "none"}, "InvalidAlgorithm"),
        ({"key": "a password that is thirty-two bytes", "algorithm": "HS256"}, "InvalidAlgorithm"),
    ],
)
def test_an_id_token_that_is_not_good_lets_nobody_in(changes: dict[str, Any], said: str) -> None:
    own = OwnIssuer(**changes)
    with pytest.raises(LoginRefused, match=said):
        logged_in(own, rule=rule())


def test_a_browser_that_did_not_begin_the_login_does_not_finish_it() -> None:
    own = OwnIssuer()
    issuer = Issuer(rule(), transport=own.transport)
    begun, other = issuer.begin(), issuer.begin()
    brought = own.let_in(begun.url)
    for cookie in ("", "a.b", other.kept, "..", begun.kept + ".x"):
        with pytest.raises(LoginRefused, match="not begun by this browser"):
            issuer.finish(brought, cookie)
    with pytest.raises(LoginRefused, match="another issuer"):
        issuer.finish({**brought, "iss": "https://other.example"}, begun.kept)
    with pytest.raises(LoginRefused, match="access_denied"):
        issuer.finish({"state": brought["state"], "error": "access_denied"}, begun.kept)
    assert own.used == set(), "nothing was asked of the issuer"
    mixed = ".".join((begun.kept.split(".")[0], *other.kept.split(".")[1:]))
    with pytest.raises(LoginRefused, match="invalid_grant"):
        issuer.finish(brought, mixed)


def test_a_code_that_was_used_is_refused() -> None:
    own = OwnIssuer()
    issuer = Issuer(rule(), transport=own.transport)
    begun = issuer.begin()
    brought = own.let_in(begun.url)
    assert issuer.finish(brought, begun.kept).subject == "17"
    with pytest.raises(LoginRefused, match="invalid_grant"):
        issuer.finish(brought, begun.kept)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"discovery": {"issuer": "https://other.example"}}, "calls itself https://other.example"),
        ({"discovery": {"token_endpoint": "http://issuer.example/token"}}, "token_endpoint that begins with https"),
        ({"discovery": {"jwks_uri": 7}}, "jwks_uri that begins with https"),
        ({"discovery": {"jwks_uri": URL + "/nowhere"}}, "status 404"),
        ({"status": 500}, "status 500"),
    ],
)
def test_an_issuer_that_answers_otherwise_is_an_error_that_names_it(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LogError, match=said) as refused:
        logged_in(OwnIssuer(**changes), rule=rule())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("claims", "changes", "roles"),
    [
        ({"roles": "leads"}, {}, ("promoter",)),
        ({"roles": ["leads", "lab", "lab", "admin", 7]}, {}, ("trainer", "promoter")),
        ({"roles": [{"lab": 1}], "groups": ["lab"]}, {}, ()),
        ({"realm_access": {"roles": ["lab"]}}, {"oidc_roles_claim": "realm_access.roles"}, ("trainer",)),
        ({"https://lab.example/roles": ["lab"]}, {"oidc_roles_claim": "https://lab.example/roles"}, ("trainer",)),
        ({"roles": ["CN=lab,OU=x"]}, {"oidc_roles": "CN=lab,OU=x=viewer"}, None),
    ],
)
def test_claims_give_the_roles_that_the_setting_names(claims: Any, changes: Any, roles: Any) -> None:
    if roles is None:
        with pytest.raises(ValidationError, match="expected comma separated VALUE=ROLE"):
            rule(**changes)
        return
    assert identity_of({"sub": "17", **claims}, rule(**changes)).roles == roles


def test_the_tenant_is_in_the_claims_or_nobody_is_let_in() -> None:
    of_tenant = rule(oidc_tenant_claim="team")
    assert identity_of({"sub": "17", "team": "red"}, of_tenant).tenant == "red"
    for claims in ({}, {"team": ""}, {"team": ["red"]}):
        with pytest.raises(LoginRefused, match="names no tenant"):
            identity_of({"sub": "17", **claims}, of_tenant)


def test_only_tls_or_this_machine_is_safe() -> None:
    assert [is_safe(url) for url in ("https://a", "http://127.0.0.1:1/x", "http://localhost", "http://[::1]:2")] == [
        True
    ] * 4
    assert [is_safe(url) for url in ("http://a", "ftp://localhost", "http://localhost.a", "", "file:///etc")] == [
        False
    ] * 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"oidc_issuer": "http://issuer.example"}, "begins with https"),
        ({"oidc_issuer": ""}, "no effect without oidc_issuer"),
        ({"public_url": ""}, "needs public_url"),
        ({"signing_key": None}, "needs signing_key"),
        ({"oidc_roles": "lab=king"}, "with ROLE one of viewer"),
        ({"public_url": "https://streamward.example/"}, "without a / at the end"),
    ],
)
def test_an_issuer_that_is_half_set_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        rule(**given)
