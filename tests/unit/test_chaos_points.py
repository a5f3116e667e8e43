"""Every point at which the fault matrix kills a process names a function that exists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos import child


@pytest.mark.parametrize(
    ("process", "point"), [(name, point) for name, every in child.POINTS.items() for point in every]
)
def test_a_point_to_kill_at_is_a_function_of_the_product(
    process: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def look(owner: Any, name: str, **hooks: Any) -> None:
        found.append(getattr(owner, name))
        for hook in hooks.values():
            hook(None)

    monkeypatch.setattr(child, "wrap", look)
    monkeypatch.setattr(child, "die", lambda: found.append("killed"))
    child.arm(process, point, 1)
    assert found[-1] == "killed" and all(map(callable, found[:-1]))
