"""Values of settings that mean nothing without others (tests/lint/test_settings.py)."""

CHANGED = {"seal": "named", "key_folder": "keys"}
