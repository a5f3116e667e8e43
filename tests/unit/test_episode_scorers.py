"""What a run in an environment is worth, as a whole and turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Response, ResponseTurn, RewardSource
from schemas.serde import decode, encode
from streams.scorers import ScoreOutcome, Scorers
from streams.settings.model import Scoring
from streams.stages.scoring.scoring_agent import reward_of
from tests.support.factories import response, task


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    with Scorers(Scoring(modules="turn_scorers", processes=1)) as made:
        yield made


def run(*turns: dict[str, Any], **changes: Any) -> Response:
    """Return a response of these turns."""
    made = tuple(ResponseTurn(number=number, start=0, end=1, **turn) for number, turn in enumerate(turns))
    return response(turns=made, **changes)


def scored(scorers: Scorers, of: Response, name: str, settings: str = "{}") -> ScoreOutcome:
    return scorers.score(task(), of, RewardSource(name=name, settings=settings))


FOUND = run({"tool": "guess", "ok": True, "reward": 0.25}, {"ok": False}, {"ok": True, "reward": 1.0}, success=True)
UNPAID = run({"ok": True}, {"ok": True}, success=False)


@pytest.mark.parametrize(
    ("of", "name", "settings", "value", "steps"),
    [
        (FOUND, "environment", "{}", 1.25, (0.25, 0.0, 1.0)),
        (FOUND, "environment", '{"turn_penalty": 0.25}', 0.5, (0.0, -0.25, 0.75)),
        (UNPAID, "environment", "{}", 0.0, ()),
        (UNPAID, "environment", '{"turn_penalty": 0.25}', -0.5, ()),
        (FOUND, "verified", "{}", 1.0, ()),
        (UNPAID, "verified", "{}", 0.0, ()),
        (UNPAID, "tools", "{}", 1.0, (0.5, 0.5)),
    ],
)
def test_an_environment_decides_what_a_run_and_its_turns_are_worth(
    scorers: Scorers, of: Response, name: str, settings: str, value: float, steps: tuple[float, ...]
) -> None:
    found = scored(scorers, of, name, settings)
    assert (found.value, found.steps, found.error) == (value, steps, None)
    written = reward_of(of, RewardSource(name=name), found, 0)
    assert decode(encode(written), type(written)) == written


def test_what_turns_add_sums_to_the_value_so_more_turns_are_not_worth_more(scorers: Scorers) -> None:
    once, often = run({"ok": True}), run(*[{"ok": True}] * 50)
    assert scored(scorers, once, "tools").value == scored(scorers, often, "tools").value == 1.0
    found = scored(scorers, FOUND, "tools")
    assert found.value == pytest.approx(sum(found.steps)) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["environment", "tools", "verified"])
def test_a_response_without_an_environment_has_no_score_and_never_a_zero(scorers: Scorers, name: str) -> None:
    for of in (response(), run({}, {})):
        found = scored(scorers, of, name)
        assert (found.value, found.reason, found.tries) == (None, "no_environment", 1)


def test_a_mix_weighs_steps_as_it_weighs_values(scorers: Scorers) -> None:
    parts = '{"of": [{"name": "environment", "weight": 2.0}, {"name": "tools", "weight": 3.0}, {"name": "verified"}]}'
    found = scored(scorers, FOUND, "mix", parts)
    assert found.value == pytest.approx(2 * 1.25 + 3 * 2 / 3 + 1)
    assert found.steps == pytest.approx((0.5 + 1, 0, 2.0 + 1))


def test_a_function_gives_a_number_for_every_turn_and_for_no_other(
    scorers: Scorers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "from streamward import entry_point",
        "@entry_point('each/1')",
        "def each(task, response, settings):",
        "    return 1, {}, settings.get('steps', [turn.ok for turn in response.turns])",
        "@entry_point('turns/1')",
        "def turns(task, response, settings):",
        "    return 1.0, {}, [0.5 * (turn.tool is not None) for turn in response.turns]",
    ]
    (tmp_path / "turn_scorers.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert scored(scorers, FOUND, "turn_scorers:turns").steps == (0.5, 0.0, 0.0)
    for steps, reason in (("[1, 2]", "wrong_steps"), ("[1, 2, 3, 4]", "wrong_steps"), ('"abc"', "not_a_number")):
        found = scored(scorers, FOUND, "turn_scorers:each", f'{{"steps": {steps}}}')
        assert (found.value, found.reason) == (None, reason)
    assert scored(scorers, FOUND, "turn_scorers:each").steps == tuple(float(turn.ok) for turn in FOUND.turns)
