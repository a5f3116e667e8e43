"""A sweep halves its recipes by their scores alone, and reads its file as strictly as settings."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.improve.sweep import sweep_file, sweep_runner
from plugins.improve.sweep.sweep_plan import RecipeResult, Score, Side, SweepPlan, SweepVerdict, Train, next_step
from plugins.improve.sweep.sweep_runner import SweepRun, SweepUsage
from plugins.jobs.fold.state import JobUsage
from schemas.events import JobPrices, Outcome
from streams.errors import NotFoundError, SettingsError
from streams.settings.model import Settings

PLAN = SweepPlan(("base", "a", "b", "c", "d"), 2)
SKILL = {"base": 0.3, "a": 0.1, "b": 0.5, "c": 0.9, "d": 0.2}
QUESTIONS = 20


def outcomes(mean: float, shift: int = 0) -> tuple[Outcome, ...]:
    right = round(mean * QUESTIONS)
    return tuple(
        Outcome(index=index, scenario="any", reward=float((index + shift) % QUESTIONS < right))
        for index in range(QUESTIONS)
    )


def take(result: RecipeResult, step: Train | Score, batches: int) -> RecipeResult:
    """Return a recipe's result after a step, as the log has it then."""
    if isinstance(step, Train):
        return replace(result, versions=step.versions, batches=batches)
    key: tuple[Side, int] = (step.side, step.version)
    return replace(result, outcomes={**result.outcomes, key: outcomes(SKILL[step.recipe])})


def sweep(plan: SweepPlan, batches: int = 100) -> tuple[list[Train | Score], SweepVerdict]:
    results: dict[str, RecipeResult] = {}
    steps: list[Train | Score] = []
    while not isinstance(step := next_step(plan, results), SweepVerdict):
        steps.append(step)
        results[step.recipe] = take(results.get(step.recipe, RecipeResult()), step, batches)
    return steps, step


def test_the_better_half_is_trained_twice_as_long_and_the_last_is_reported_on_questions_that_chose_nothing() -> None:
    steps, verdict = sweep(PLAN)
    trained = [step for step in steps if isinstance(step, Train)]
    assert [(step.recipe, step.versions) for step in trained] == [
        *((name, 2) for name in PLAN.recipes),
        *(("base", 4), ("c", 4), ("b", 4)),
    ]
    assert [step for step in steps if isinstance(step, Score) and step.side == "report"] == [
        Score("base", 4, "report"),
        Score("c", 4, "report"),
    ]
    assert (verdict.best, verdict.version, verdict.rounds, verdict.is_better) == ("c", 4, 2, True)
    assert verdict.gain is not None and verdict.gain.gain.value == pytest.approx(0.6)
    assert max(Counter(steps).values()) == 1  # nothing is done twice


def test_a_sweep_with_fewer_batches_than_steps_ends_with_what_there_is() -> None:
    steps, verdict = sweep(PLAN, batches=2)
    assert {step.versions for step in steps if isinstance(step, Train)} == {2}
    assert (verdict.best, verdict.version) == ("c", 2)


def test_one_recipe_is_compared_with_the_settings_as_they_are() -> None:
    _, verdict = sweep(SweepPlan(("base", "a"), 1))
    assert (verdict.best, verdict.rounds, verdict.is_better) == ("a", 1, False)


@pytest.mark.parametrize(("own", "is_level"), [(0.5, True), (0.4, False)])
def test_a_sweep_names_no_best_recipe_where_all_are_equal(own: float, is_level: bool) -> None:
    level = RecipeResult(2, 2, {("search", 2): outcomes(0.5), ("report", 2): outcomes(0.5)})
    ahead = replace(level, outcomes={**level.outcomes, ("search", 2): outcomes(own)})
    verdict = next_step(SweepPlan(("base", "a", "b"), 2), {"base": level, "a": ahead, "b": level})
    assert isinstance(verdict, SweepVerdict) and verdict.is_level is is_level


def test_recipes_that_are_equally_good_are_not_called_better() -> None:
    result = RecipeResult(2, 2, {("search", 2): outcomes(0.5), ("report", 2): outcomes(0.5)})
    moved = replace(result, outcomes={**result.outcomes, ("report", 2): outcomes(0.5, shift=5)})
    verdict = next_step(SweepPlan(("base", "a"), 2), {"base": result, "a": moved})
    assert isinstance(verdict, SweepVerdict) and verdict.gain is not None
    assert verdict.gain.gain.low < 0 < verdict.gain.gain.high and not verdict.is_better


def test_a_budget_ends_a_sweep_with_who_was_ahead_and_no_report() -> None:
    results: dict[str, RecipeResult] = {}
    assert next_step(PLAN, results, "spent") == SweepVerdict(
        best=None, version=None, gain=None, rounds=0, over_budget="spent"
    )
    while (step := next_step(PLAN, results)) != Train("base", 4):
        assert not isinstance(step, SweepVerdict)
        results[step.recipe] = take(results.get(step.recipe, RecipeResult()), step, 100)
    verdict = next_step(PLAN, results, "spent")
    assert verdict == SweepVerdict(best="c", version=2, gain=None, rounds=1, over_budget="spent")


def test_a_limit_that_is_reached_is_named() -> None:
    used = SweepUsage(1_000, JobUsage(400_000, 100_000, 90.0))
    prices = JobPrices(prompt=1.0, completion=4.0, trainer_hour=8.0)
    free = sweep_file.SweepLimits(None, None, None, None)
    assert used.over(free) is None
    assert used.over(replace(free, tokens=1_000)) == "1000 of 1000 tokens are used"
    assert used.over(replace(free, trainer_s=60.0)) == "90.0 of 60 seconds of training are used"
    assert used.over(replace(free, usd=1.0, prices=prices)) == "1.0000 USD of 1.0000 are spent"
    assert used.over(replace(free, usd=1.1, prices=prices)) is None


# --- its file ---------------------------------------------------------------------------------------------------------

SWEEP = """
name = "rates"
[suite]
generator = "sums"
count = 10
[grid]
trainer.learning_rate = [1e-5, 1e-4]
"advantages.formula" = ["grpo", "dr_grpo"]
"""


def prepare(tmp_path: Path, text: str = SWEEP, **changes: object) -> sweep_runner.Sweep:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    settings = Settings.model_validate({"policy": {"engine": "transformers"}, **changes})
    return sweep_runner.prepare(settings, sweep_file.read_sweep(file), file)


def test_a_grid_is_every_combination_and_a_recipe_keeps_its_name_in_a_larger_one(tmp_path: Path) -> None:
    small = prepare(tmp_path, SWEEP.replace("1e-5", "2e-5").replace("1e-4", "3e-4"))
    assert [dict(recipe.changes) for recipe in small.recipes] == [
        {},
        *(
            {"trainer.learning_rate": rate, "advantages.formula": formula}
            for rate in (2e-5, 3e-4)
            for formula in ("grpo", "dr_grpo")
        ),
    ]
    assert [recipe.name[:6] for recipe in small.recipes] == ["rates-"] * 5 and small.recipes[0].name == "rates-base"
    large = prepare(tmp_path, SWEEP.replace("[1e-5, 1e-4]", "[2e-5, 3e-4, 1e-3]"))
    assert {recipe.name for recipe in small.recipes} < {recipe.name for recipe in large.recipes}
    drawn = prepare(tmp_path, "samples = 2\n" + SWEEP)
    assert drawn.recipes == prepare(tmp_path, "samples = 2\n" + SWEEP).recipes
    assert len(drawn.recipes) == 3 and drawn.recipes[0] == small.recipes[0]


def test_no_question_is_of_both_sides(tmp_path: Path) -> None:
    sizes = []
    for count in (10, 60):  # there are fewer held-out sums than 60, and a generator repeats itself
        suites = prepare(tmp_path, SWEEP.replace("count = 10", f"count = {count}")).suites
        search, report = ({task.messages for task in suites[side].questions} for side in ("search", "report"))
        assert not search & report
        sizes.append(len(search | report))
    assert sizes[0] == 10 < sizes[1] < 60


def test_settings_as_they_are_stand_once(tmp_path: Path) -> None:
    rate = Settings().trainer.learning_rate
    text = SWEEP.replace("[1e-5, 1e-4]", f"[{rate}, 0.5]").replace('["grpo", "dr_grpo"]', '["dr_grpo"]')
    default = Settings().advantages.formula
    recipes = prepare(tmp_path, text.replace("dr_grpo", default)).recipes
    assert [dict(recipe.changes).get("trainer.learning_rate") for recipe in recipes] == [None, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SWEEP.replace("trainer.learning_rate", "trainer.learning_rat"), "learning_rate"),
        (SWEEP.replace("trainer.learning_rate", "kafka.bootstrap"), "grid.kafka.bootstrap decides nothing of an exp"),
        (SWEEP.replace("[1e-5, 1e-4]", "1e-5"), "grid.trainer.learning_rate: expected a list of values"),
        (SWEEP.replace("[1e-5, 1e-4]", "[]"), "grid.trainer.learning_rate: expected a list of values"),
        (SWEEP.replace("1e-5", "-1.0"), "sweep.toml"),
        (SWEEP.replace('name = "rates"', 'name = "Rates!"'), "name"),
        (SWEEP.replace("count = 10", "count = 2"), "suite.count"),
        (SWEEP.replace("count = 10", 'file = "suite.yaml"'), "give either generator or file"),
        (SWEEP + "[budget]\nmax_budget_usd = 1.0\n", "budget.max_budget_usd is set, and a price is missing"),
        (SWEEP + "[tasks]\nsince = 'yesterday'\n", "--since"),
        (SWEEP + "[tasks]\nsinc = '2h'\n", "tasks.sinc"),
        ("name = ", "not TOML"),
        ("name = 'x'\n[suite]\ngenerator = 'sums'\n[grid]\n", "grid"),
    ],
)
def test_a_sweep_that_could_not_run_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        prepare(tmp_path, text)


def test_a_sweep_needs_its_file_and_an_engine_with_weights(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"docs/replay\.md has a sweep"):
        sweep_file.read_sweep(tmp_path / "none.toml")
    settings = Settings.model_validate({"policy": {"engine": "scripted"}})
    work = SweepRun(settings=settings, sweep=prepare(tmp_path), stop=threading.Event(), report=lambda *_: None)
    with pytest.raises(SettingsError, match="scripted has no weights"):
        work.run()


def test_a_grid_that_is_too_large_says_how_to_make_it_smaller(tmp_path: Path) -> None:
    values = ", ".join(f"{n}e-6" for n in range(1, 200))
    with pytest.raises(SettingsError, match="398 combinations, expected at most 256; set samples"):
        prepare(tmp_path, SWEEP.replace("1e-5, 1e-4", values))
