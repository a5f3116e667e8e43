"""The settings of verdicts on runs, and of data sets."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from pydantic import Field, model_validator

from streams.settings.model import Section
from streams.settings.name_lists import split_names

GATES = (
    *("min_score", "min_feedback", "min_success", "min_completed"),
    *("max_escalations", "max_turns", "max_failed_turns", "max_malformed", "max_failed_tools", "max_retries"),
    *("max_rewrites", "max_latency_ms", "max_cost_usd", "max_prompt_tokens", "max_sampled_tokens"),
)
"""The gates of curation: a figure of a run (plugins/improve/curation/gates.py), and which end its bound is."""
MEASURE_SUCCESS = ("min_score", "min_feedback", "min_success")
"""Of them, those by which a run is known to be good."""
ANY_SCENARIO = "*"
NO_GATE = "off"
"""In place of a bound: a scenario does not have this gate."""


def _bounds(text: str, setting: str) -> dict[str, float | None]:
    """Return gates by name with their bounds, None for one that is off. Raises ValueError."""
    bounds: dict[str, float | None] = {}
    for part in split_names(text):
        name, _, bound = (piece.strip() for piece in part.partition("="))
        if name not in GATES:
            raise ValueError(f"{setting} has {part!r}; expected NAME=BOUND with a name of {', '.join(GATES)}")
        if name in bounds:
            raise ValueError(f"{setting} has {name} twice; give one bound")
        try:
            bounds[name] = None if bound == NO_GATE else float(bound)
        except ValueError:
            raise ValueError(f"{setting} has {part!r}; expected {name}= and a number, or {NO_GATE}") from None
        if bounds[name] is not None and not isfinite(bounds[name] or 0.0):
            raise ValueError(f"{setting} has {part!r}; expected a finite number, or {NO_GATE}")
    return bounds


class Improve(Section):
    """Verdicts on served runs, and data sets of the good ones."""

    rubric: str = Field(
        "useful@1",
        pattern=r"^[\w.-]+@[\w.-]+$",
        description="name@version of what good means; a new version where instructions or gates change their meaning",
    )
    instructions: str = Field(
        "A run is good if it does what the user asked, rests on what its tools returned, and invents nothing.",
        min_length=1,
        description="definition of a good run, for the judge",
    )
    gates: str = Field(
        "min_completed=1, max_escalations=0",
        description="bounds that a run has to keep, NAME=BOUND, comma separated; a figure that a run does not have "
        "keeps none; empty: no gates (docs/improve.md lists the names)",
    )
    scenario_gates: str = Field(
        "",
        description="other or further gates of a scenario, e.g. `sums: min_score=1, max_turns=off; refunds: "
        "max_turns=8`; off: without this gate",
    )
    promote_by_gates: str = Field(
        "",
        description="scenarios, comma separated, whose runs are promoted if they pass the gates, without a judge; "
        "*: all; needs a gate that measures success",
    )
    transcript_characters: int = Field(
        60_000, ge=1000, description="longest transcript that is judged, characters; a longer one is cut in the middle"
    )
    max_tokens: int = Field(1024, ge=1, description="of the judge's whole answer; a model that thinks needs thousands")
    min_kappa: float = Field(
        0.6,
        gt=0,
        le=1,
        description="lower end of the interval of Cohen's kappa between judge and people from which the judge may "
        "promote alone; below, people decide",
    )
    min_runs: int = Field(50, ge=10, description="runs that people and the judge must both have decided before")
    window: int = Field(100, ge=10, description="newest of those runs from which kappa is computed")
    review_share: float = Field(
        0.05, ge=0, le=1, description="share of the runs that the judge decided alone that people are still shown"
    )
    datasets: Path = Field(Path("data/autoretrain"), description="where each build gets a folder of its own")

    def promotes_by_gates(self, scenario: str) -> bool:
        """Return whether a run of a scenario that passes the gates is promoted without a judge."""
        return not {ANY_SCENARIO, scenario}.isdisjoint(split_names(self.promote_by_gates))

    @property
    def bounds(self) -> dict[str, float | None]:
        """The gates of every scenario."""
        return _bounds(self.gates, "gates")

    @property
    def scenario_bounds(self) -> dict[str, dict[str, float | None]]:
        """The other or further gates, by scenario."""
        scenarios: dict[str, dict[str, float | None]] = {}
        for part in filter(None, map(str.strip, self.scenario_gates.split(";"))):
            scenario, colon, gates = part.rpartition(":")
            if not colon or not scenario.strip() or scenario.strip() in scenarios:
                raise ValueError(
                    f"scenario_gates has {part!r}; expected SCENARIO: NAME=BOUND, …, separated by ; and each scenario "
                    "once"
                )
            scenarios[scenario.strip()] = _bounds(gates, f"scenario_gates of {scenario.strip()}")
        return scenarios

    def bounds_of(self, scenario: str) -> dict[str, float]:
        """Return the gates of a scenario, by name."""
        bounds = self.bounds | self.scenario_bounds.get(scenario, {})
        return {name: bounds[name] or 0.0 for name in GATES if bounds.get(name) is not None}

    @model_validator(mode="after")
    def _is_consistent(self) -> Improve:
        by_scenario, _, promoting = self.scenario_bounds, self.bounds, set(split_names(self.promote_by_gates))
        for scenario in sorted(promoting | (by_scenario.keys() if ANY_SCENARIO in promoting else set())):
            if self.bounds_of(scenario).keys().isdisjoint(MEASURE_SUCCESS):
                raise ValueError(
                    f"promote_by_gates has {scenario}, and none of its gates measures success; set one of "
                    f"{', '.join(MEASURE_SUCCESS)}"
                )
        if self.window < self.min_runs:
            raise ValueError(
                f"window is {self.window}, and min_runs {self.min_runs} would never be reached; raise window, or lower "
                "min_runs"
            )
        return self
