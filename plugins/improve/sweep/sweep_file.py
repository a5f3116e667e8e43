"""A sweep: a TOML file with the recipes to compare, their training data, and the questions that compare them.

    sweep.toml ──► SweepFile ──► recipes: the settings as they are, and each combination of the grid

    name = "rates"                       its experiments are rates-base and rates-DIGEST
    first_steps = 2                      versions of each recipe in the first round; twice as many in each that follows
    samples = 8                          so many of the combinations, drawn by `seed`; default: all

    [grid]                               settings of advantages, batches, model and trainer, each with its values
    trainer.learning_rate = [1e-5, 1e-4]
    advantages.formula = ["grpo", "dr_grpo"]

    [suite]                              questions; every second one is kept for the report
    generator = "sums"                   or file = "suite.yaml"
    count = 40

    [tasks]                              which are trained on: options of `streamward replay run`
    since = "2d"

    [budget]                             any of these; without prices, those of the settings
    max_tokens = 2_000_000
    max_trainer_s = 3600
    max_budget_usd = 5.0

The name of a recipe's experiment is a digest of its values, so a larger grid pays only for what is new.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from plugins.jobs.orders.request import PRICE_SETTINGS, PricesConfig, RequestPart, prices_and_budget
from schemas.events import JobPrices, Task
from schemas.faults import faults
from streams.errors import SettingsError
from streams.evaluation.suite import Suite
from streams.settings.model import Settings
from streams.settings.toml_file import read_toml
from streams.stages.tasks import suites
from streams.tools.replay.experiments import DECIDING

BASE = "base"
"""The recipe that changes nothing."""
MOST_RECIPES = 256


class SweptTasks(RequestPart):
    """Which recorded tasks are trained on."""

    policy: str | None = Field(None, min_length=1, description="default: policy.name")
    since: str | None = Field(None, min_length=1, description="a time or an age")
    until: str | None = Field(None, min_length=1, description="a time or an age")
    from_: int | None = Field(None, ge=0, alias="from", description="first offset in every partition")
    to: int | None = Field(None, ge=0, description="the offset after the last one")
    key: str | None = Field(None, min_length=1, description="one task")
    scenario: str | None = Field(None, min_length=1, description="one family")
    where: str | None = Field(None, min_length=1, description="SQL condition over tasks")


class SweptSuite(RequestPart):
    """The questions by which recipes are compared."""

    generator: str | None = Field(None, min_length=1)
    options: dict[str, Any] = Field(default_factory=dict, description="of the generator")
    seed: int = 0
    count: int | None = Field(None, ge=4, le=suites.MAX_TASKS, description="questions of the generator; default: 100")
    file: str | None = Field(None, min_length=1, description="suite.yaml, next to the sweep")

    @model_validator(mode="after")
    def _has_one_origin(self) -> SweptSuite:
        if (self.generator is None) == (self.file is None):
            raise ValueError("give either generator or file")
        extra = self.model_fields_set & {"options", "seed", "count"}
        if self.file is not None and extra:
            raise ValueError(f"{min(extra)} is for a generator; a file has its own")
        return self


class SweepBudget(RequestPart):
    """What the sweep may use; whatever is named ends it."""

    max_tokens: int | None = Field(None, ge=1, description="trained on, read and written")
    max_trainer_s: float | None = Field(None, gt=0, description="seconds of training")
    max_budget_usd: float | None = Field(None, gt=0, description="default: jobs.max_budget_usd, if there are prices")
    prices: PricesConfig | None = Field(None, description="default: jobs.prices of the settings, if they are set")


class SweepFile(RequestPart):
    """A sweep as its file has it."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$")
    first_steps: int = Field(1, ge=1, le=10_000, description="versions of each recipe in the first round")
    samples: int | None = Field(None, ge=1, le=MOST_RECIPES, description="combinations; default: all")
    seed: int = 0
    grid: dict[str, Any] = Field(min_length=1, description="values by setting")
    suite: SweptSuite
    tasks: SweptTasks = SweptTasks()
    budget: SweepBudget = SweepBudget()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that are tried together."""

    name: str
    """Of its experiment."""
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """The budget of a sweep; None: no limit."""

    tokens: int | None
    trainer_s: float | None
    usd: float | None
    prices: JobPrices | None


def read_sweep(file: Path) -> SweepFile:
    """Return the sweep in a TOML file. Raises NotFoundError, SettingsError that names what is wrong with it."""
    fields = read_toml(file, "docs/replay.md has a sweep to begin with")
    try:
        return SweepFile.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as exc:
        raise SettingsError(f"{file}: {next(faults(exc, SweepFile, fields)).text}") from exc
    except (ValueError, RecursionError) as exc:  # nan, or endless nesting
        raise SettingsError(f"{file}: a value cannot be read: {exc}") from exc


def recipes(sweep: SweepFile, file: Path) -> tuple[Recipe, ...]:
    """Return the settings as they are, and the combinations to try. Raises SettingsError, naming `file`."""
    grid = dict(_values(sweep.grid, "", file))
    number = math.prod(map(len, grid.values()))
    wanted = min(sweep.samples or number, number)
    if wanted > MOST_RECIPES:
        raise SettingsError(f"{file}: the grid has {number} combinations, expected at most {MOST_RECIPES}; set samples")
    chosen: Sequence[int] = range(number)
    if wanted < number:
        chosen = sorted(random.Random(sweep.seed).sample(chosen, wanted))  # noqa: S311 - the same seed, the same recipes
    changes = (dict(zip(grid, _combination(list(grid.values()), place), strict=True)) for place in chosen)
    return (Recipe(f"{sweep.name}-{BASE}", {}), *(Recipe(f"{sweep.name}-{_digest(one)}", one) for one in changes))


def sides(sweep: SweepFile, file: Path, settings: Settings) -> tuple[Suite, Suite]:
    """Return the questions to search by, and those of the report; what a generator repeats is asked once.

    Raises SettingsError for too few of them, and as `suites.load` and `suites.generated`.
    """
    part = sweep.suite
    if part.generator is not None:
        suite = suites.generated(part.generator, count=part.count or 100, seed=part.seed, options=part.options)
    else:
        suite = suites.load(file.parent / (part.file or ""), settings.topics)
    first: dict[tuple[Any, ...], Task] = {}
    for task in suite.questions:
        first.setdefault((task.messages, task.verifier, str(task.environment)), task)
    questions = tuple(first.values())
    if len(questions) < 4:
        raise SettingsError(f"{file}: suite has {len(questions)} questions; expected at least 4, 2 of each side")
    search, report = questions[::2], questions[1::2]
    return suites.of_tasks(f"{sweep.name}-search", search), suites.of_tasks(f"{sweep.name}-report", report)


def limits(sweep: SweepFile, file: Path, settings: Settings) -> SweepLimits:
    """Return what the sweep may use. Raises SettingsError for a budget in USD without prices, JobRequestError as
    `prices_and_budget`."""
    budget = sweep.budget
    prices, default_usd = prices_and_budget(budget.prices, None, settings)
    if prices is None and budget.max_budget_usd is not None:
        raise SettingsError(
            f"{file}: budget.max_budget_usd is set, and a price is missing: give budget.prices, or set {PRICE_SETTINGS}"
        )
    return SweepLimits(budget.max_tokens, budget.max_trainer_s, budget.max_budget_usd or default_usd, prices)


def _values(grid: Mapping[str, Any], prefix: str, file: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield each setting of a grid and its values, by dotted key."""
    for name, value in grid.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _values(value, f"{key}.", file)
            continue
        if key.partition(".")[0] not in DECIDING:
            raise SettingsError(
                f"{file}: grid.{key} decides nothing of an experiment; expected settings of {', '.join(DECIDING)}"
            )
        if not isinstance(value, list) or not value:
            raise SettingsError(f"{file}: grid.{key}: expected a list of values to try, e.g. [1e-5, 1e-4]")
        yield key, value


def _combination(values: list[list[Any]], place: int) -> list[Any]:
    """Return a combination by its place in their product, the last list moving fastest.

    >>> [_combination([["a", "b"], [1, 2, 3]], place) for place in (0, 2, 3)]
    [['a', 1], ['a', 3], ['b', 1]]
    """
    chosen = []
    for options in reversed(values):
        place, index = divmod(place, len(options))
        chosen.append(options[index])
    return chosen[::-1]


def _digest(changes: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(changes), sort_keys=True).encode()).hexdigest()[:8]
