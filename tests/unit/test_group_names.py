"""The name of a consumer group has everything that decides what its members serve."""

from __future__ import annotations

import hashlib
from itertools import product

import pytest

from streams.kafka.group_names import GroupScope
from streams.settings.model import Fleet

NAMES = ("pa", "pa-b", "team-a", "default", "serve")
AGENTS = (None, "environment", "guide", "a-b", "tutor:v1")
BASES = (None, *(hashlib.sha256(name.encode()).hexdigest() for name in ("small", "large")))
FLEETS = [
    Fleet(name=name, policies=policies) for name, policies in product(("default", "serve"), ("*", "team-*", "pa"))
]


def all_servings() -> list[GroupScope]:
    made = [
        GroupScope(stage="policy" if agent is None else "agents", fleet=fleet, policy=policy, agent=agent, base=base)
        for fleet, policy, agent, base in product(FLEETS, (None, *NAMES), AGENTS, BASES)
    ]
    return made + [
        GroupScope(stage="trainer", fleet=fleet, policy=policy) for fleet, policy in product(FLEETS, (None, *NAMES))
    ]


def served(serving: GroupScope) -> frozenset[tuple[object, ...]]:
    """Return which of all records members serve."""
    return frozenset(what for what in product(NAMES, AGENTS, BASES) if serving.serves(*what))


def test_members_of_one_group_serve_the_same_so_that_what_one_skips_is_no_members_work() -> None:
    """The name lacked the policy: what `agents run` of one policy skipped was done for the other's, too."""
    by_group: dict[str, set[frozenset[tuple[object, ...]]]] = {}
    for serving in all_servings():
        by_group.setdefault(serving.group, set()).add(served(serving))
    assert {group for group, answers in by_group.items() if len(answers) > 1} == set()


@pytest.mark.parametrize("field", ["stage", "policy", "agent", "base", "name", "policies"])
def test_each_setting_that_decides_what_is_served_changes_the_name_of_the_group(field: str) -> None:
    fleet, one = Fleet(name="one", policies="a-*"), {"stage": "agents", "agent": "guide", "base": BASES[1]}
    other: dict[str, object] = {
        "stage": "policy", "policy": "pa", "agent": "other", "base": BASES[2],
        "fleet": Fleet(name="two", policies="a-*") if field == "name" else Fleet(name="one", policies="b-*"),
    }  # fmt: skip
    changed = "fleet" if field in ("name", "policies") else field
    first, second = GroupScope(fleet=fleet, **one), GroupScope(**({"fleet": fleet} | one | {changed: other[changed]}))  # type: ignore[arg-type]
    assert first.group != second.group
