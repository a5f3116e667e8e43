"""What `make mutants` is to change, and the tests that are to notice, are there."""

from __future__ import annotations

from tests.mutants import GROUPS, ROOT


def test_every_module_and_every_test_of_a_group_is_there() -> None:
    modules = [f"{module}.py" for of_group, _ in GROUPS.values() for module in of_group]
    tests = [f"tests/unit/test_{name}.py" for _, names in GROUPS.values() for name in names.split()]
    assert [path for path in (*modules, *tests) if not any(ROOT.glob(path))] == []
