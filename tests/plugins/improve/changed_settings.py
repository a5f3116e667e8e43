"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

from pathlib import Path

CHANGED = {
    "gates": "max_turns=3,min_score=0.5",
    "scenario_gates": "sums: max_turns=3",
    "promote_by_gates": "sums",
    "rubric": "sums@2",
    "min_kappa": 0.7,
    "review_share": 0.1,
    "datasets": Path("sets"),
}
