"""Values of settings that do not take every value of their type (tests/lint/test_settings.py)."""

CHANGED = {"chains": "*=server", "engine": "vllm", "servers": "http://127.0.0.1:1"}
