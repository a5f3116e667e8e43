"""Tenants with logs of their own: their names, their rights, their fold, and what differs at the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.people.access import tenant_logs
from plugins.people.access.tenant_logs import TenantLog
from plugins.people.tenants.acls import AclRight
from plugins.people.tenants.tenant_rights import (
    OPERATIONS,
    TenantState,
    checked_principal,
    compare,
    reaches,
    rights_of,
)
from schemas.events import problems
from streams.access.tenants import tenant_names as tenants
from streams.errors import SettingsError
from streams.kafka.group_names import COMMITTING
from streams.kafka.topics import topics
from streams.settings.model import Topics
from streams.tools.replay import experiments
from tests.support.factories import T0

BASE = "streamward."
RED, BLUE = "User:red", "User:blue"
RECORDED = {"red": (RED,), "blue": (BLUE,)}
WHOLE = {*rights_of("streamward.red.", [RED]), *rights_of("streamward.blue.", [BLUE])}


def right(principal: str = RED, name: str = "streamward.red.", **changes: Any) -> AclRight:
    return AclRight(principal, "topic", name, True, "READ")._replace(**changes)


def states(found: set[AclRight], recorded: Mapping[str, tuple[str, ...]] = RECORDED) -> dict[str, TenantState]:
    return {state.tenant: state for state in compare(BASE, recorded, found)}


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "tenant", "said"),
    [
        (BASE, "", "is no name of a tenant"),
        (BASE, "acme.west", "is no name of a tenant"),
        (BASE, "acme*", "is no name of a tenant"),
        (BASE, "acme_west", "underscore"),
        (BASE, experiments.PREFIX.rstrip("."), "experiments"),
        *((BASE, f"{group}x", "consumer groups") for group in tenants.group_beginnings()),
        ("", "acme", "topics.prefix is ''"),
        ("prod", "acme", "ends with a dot"),
    ],
)
def test_a_name_that_could_mean_what_is_not_the_tenants_is_refused(prefix: str, tenant: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        tenants.own_prefix(prefix, tenant)


names = st.from_regex(tenants.NAME, fullmatch=True).filter(lambda name: tenants.why_no_log(name) is None)


@given(names, names)
def test_no_tenant_s_names_begin_as_another_s_or_as_anything_of_the_deployment(one: str, other: str) -> None:
    own = tenants.own_prefix(BASE, one)
    assert one == other or not tenants.own_prefix(BASE, other).startswith(own)
    shared = [topic.name for topic in topics(Topics(prefix=BASE)).values()]
    groups = [f"{BASE}{group}red.coach" for group in (*COMMITTING, *tenants.group_beginnings())]
    logs = [f"{BASE}{experiments.PREFIX}trial.tasks"]
    assert not [name for name in (*shared, *groups, *logs) if name.startswith(own)]


@pytest.mark.parametrize(
    "principal",
    ["", "acme", "User:", "user:acme", "Group:acme", "User:*", "User: acme", "User:acme\nUser:b", "User:" + "a" * 300],
)
def test_what_is_no_single_principal_is_refused(principal: str) -> None:
    with pytest.raises(SettingsError, match="--principal"):
        checked_principal(principal)


@pytest.mark.parametrize("principal", ["User:acme", "User:CN=acme, O=Acme Inc", "User:svc@example.com"])
def test_a_principal_is_what_the_broker_calls_it(principal: str) -> None:
    assert checked_principal(principal) == principal


# --- what differs -----------------------------------------------------------------------------------------------------


def test_what_is_as_recorded_is_enforced() -> None:
    found = states({*WHOLE, right("User:streams", BASE, operation="WRITE")})
    assert {name: (one.status, one.differences) for name, one in found.items()} == {
        "blue": ("enforced", []),
        "red": ("enforced", []),
    }
    assert found["red"].reached_by == ("User:streams",)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (right(BLUE), "READ on topic streamward.red.* for User:blue is not recorded"),
        (right("User:x", "streamward.red.tasks", is_prefix=False), "not recorded"),
        (right("User:*", BASE), "not recorded"),
        (right(operation="DELETE"), "more than a tenant gets"),
        (right(name=BASE), "more than a tenant gets"),
        (right(kind="cluster", name="kafka-cluster", is_prefix=False, operation="ALTER"), "more than a tenant gets"),
        (right(denies=True), "denied to User:red"),
        (right("User:*", "streamward.red.tasks", is_prefix=False, denies=True), "denied to User:*"),
    ],
)
def test_what_the_broker_has_beside_it_is_named(entry: AclRight, said: str) -> None:
    red = states({*WHOLE, entry})["red"]
    assert red.status == "differs"
    [named] = red.differences
    assert said in named


@pytest.mark.parametrize("gone", sorted(rights_of("streamward.red.", [RED])))
def test_each_right_that_the_broker_lacks_is_named(gone: AclRight) -> None:
    found = states(WHOLE - {gone})
    assert (found["red"].missing, found["blue"].status) == ((gone,), "enforced")


def test_a_tenant_of_the_broker_alone_is_listed_and_one_that_was_removed_is_not() -> None:
    found = states(WHOLE, {"red": (), "blue": (BLUE,)})
    assert found["red"].status == "not recorded"
    assert found["red"].unrecorded == tuple(sorted(rights_of("streamward.red.", [RED])))
    assert list(states(set(rights_of("streamward.blue.", [BLUE])), {"red": (), "blue": (BLUE,)})) == ["blue"]


def test_a_right_reaches_names_as_kafka_s_authorizer_matches_them() -> None:
    own = "streamward.red."
    reached = {
        "all": right(name="*", is_prefix=False),
        "shorter": right(name="stream"),
        "same": right(),
        "longer": right(name="streamward.red.t"),
        "one": right(name="streamward.red.tasks", is_prefix=False),
    }
    others = {
        "neighbour": right(name="streamward.red2."),
        "no dot": right(name="streamward.red", is_prefix=False),
        "a prefix that is a star": right(name="*"),
        "cluster": right(kind="cluster", name="*"),
    }
    assert [name for name, one in reached.items() if not reaches(one, own)] == []
    assert [name for name, one in others.items() if reaches(one, own)] == []


def test_a_tenant_may_neither_delete_nor_change_nor_give() -> None:
    operations = {operation for each in OPERATIONS.values() for operation in each}
    assert operations == {"CREATE", "DESCRIBE_CONFIGS", "READ", "WRITE"} and "cluster" not in OPERATIONS


# --- the fold ---------------------------------------------------------------------------------------------------------


def after(before: TenantLog | None, *principals: str, now_ms: int = T0) -> TenantLog | None:
    event = tenant_logs.change_event(before, "red", principals, actor="ann", reason="asked for", now_ms=now_ms)
    assert list(problems(event)) == []
    return tenant_logs.fold(before, event)


def test_a_tenant_gets_principals_loses_them_and_gets_some_again() -> None:
    made = after(None, RED)
    more = after(made, RED, "User:red-2")
    gone = after(more)
    again = after(gone, BLUE, now_ms=T0 + 1)
    assert made and more and gone and again
    assert [one.principals for one in (made, more, gone, again)] == [(RED,), (RED, "User:red-2"), (), (BLUE,)]
    assert (again.sequence, again.created_at, again.changed_at) == (3, T0, T0 + 1)


def test_of_two_changes_at_once_the_first_counts() -> None:
    made = after(None, RED)
    first = tenant_logs.change_event(made, "red", [BLUE], actor="ann", reason="", now_ms=T0)
    second = tenant_logs.change_event(made, "red", [], actor="bob", reason="", now_ms=T0)
    folded = tenant_logs.fold(tenant_logs.fold(made, first), second)
    assert folded is not None and folded.principals == (BLUE,)


def test_what_can_be_no_tenant_is_none_whoever_wrote_it() -> None:
    forged = tenant_logs.change_event(None, "policy-red", [RED], actor="x", reason="", now_ms=T0)
    assert tenant_logs.fold(None, forged) is None
