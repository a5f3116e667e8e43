"""The name of a consumer group has everything that decides what its members serve."""

from __future__ import annotations

import ast
import hashlib
from itertools import combinations, product

import pytest

from streams.kafka import group_names
from streams.kafka.group_names import GroupScope, agent_in, policy_in
from streams.settings.model import Fleet
from tests.import_graph import ROOT

NAMES = ("pa", "pa-b", "team-a", "default", "serve")
AGENTS = (None, "environment", "guide", "a-b", "tutor:v1")
BASES = (None, *(hashlib.sha256(name.encode()).hexdigest() for name in ("small", "large")))
FLEETS = [
    Fleet(name=name, policies=policies) for name, policies in product(("default", "serve"), ("*", "team-*", "pa"))
]
READERS = {
    "GroupConsumer",
    "TrackedConsumer",
    "KeyMembership",
    "FleetConsumer",
    "TaskReader",
    "IdleMember",
    "SoleMember",
}
"""Classes that join a group; its name, or a GroupScope, is their second argument."""


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


def test_curators_and_builders_of_data_sets_that_select_different_ones_are_in_groups_of_their_own() -> None:
    selections = list(product((None, "pa", "pb"), (None, "serve", "train")))
    names = [group_names.of_curators(*selection) for selection in selections]
    names += [group_names.of_dataset(name) for name in ("sums", "talks")]
    assert len(set(names)) == len(selections) + 2


def test_readers_take_the_names_of_their_groups_from_one_place_alone() -> None:
    """A name that is made elsewhere may lack what decides; a class that joins passes on what it was given."""
    wrong = []
    for path in sorted(path for folder in ("streams", "trainer", "gateway") for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "streams.kafka.group_names"
            for alias in node.names
        }
        for node in ast.walk(tree):
            is_reader = isinstance(node, ast.Call) and getattr(node.func, "id", None) in READERS
            if is_reader and path.name not in ("tracked.py", "task_reader.py") and not named:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if isinstance(node, ast.JoinedStr) and _is_group(node):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert [place for place in wrong if "group_names.py" not in place] == []


def _is_group(text: ast.JoinedStr) -> bool:
    """Return whether an f-string makes the name of a group: it begins with a stage and a dash."""
    first = text.values[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith(
        ("policy-@", "agents-", "trainer-@", "curate-", "datasets-")
    )


def test_a_name_says_what_its_members_serve() -> None:
    for serving in all_servings():
        if serving.agent is None:
            assert policy_in(serving.group) == serving.policy
        else:
            assert agent_in(serving.group) == (serving.agent, serving.policy)
    assert [policy_in(group) for group in ("streams", "scoring", group_names.of_calls(FLEETS[0]))] == [None] * 3
    assert agent_in("agents-adder") is None, "of a version before 1.0, which named the agent alone"


def test_a_fleet_of_any_base_model_is_the_fleet_of_the_settings_and_no_other_is() -> None:
    for one, other in combinations([serving for serving in all_servings() if serving.policy is None], 2):
        if one.base is None and one.includes(other.group):
            assert (one.stage, one.agent, one.fleet) == (other.stage, other.agent, other.fleet)
