"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

CHANGED = {"flow_of": "clerk=enforce", "bias_terms": "young=old", "max_bias": 0.1}
