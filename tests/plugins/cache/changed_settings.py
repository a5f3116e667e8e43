"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

CHANGED = {
    "exact_s": 60.0,
    "similarity": 0.5,
    "embedder": "vectors:embed",
    "most_wrong": 0.5,
    "checked": 0.5,
    "similar": "suggest",
}
