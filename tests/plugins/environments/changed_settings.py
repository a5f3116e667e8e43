"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

from pathlib import Path

CHANGED = {"credentials": Path("credentials.json")}
