"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

CHANGED = {"trainer_hour_usd": 3.25, "max_budget_usd": 7.5}
