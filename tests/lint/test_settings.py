"""Every setting reaches a child process. Which one does so is found here, and what a new one needs is said."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import SecretStr

from streams.errors import SettingsError
from streams.plugins.installed import load_plugins
from streams.settings.load import ENV_CONFIG, build, flatten, load, section_types, to_env
from tests.import_graph import ROOT, sources

CHANGED: dict[str, dict[str, Any]] = {
    "plugins": {"load": ",".join(plugin.name for plugin, _, _ in load_plugins())},
    "kafka": {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "anna",
        "sasl_password": SecretStr("hunter2"),
        "ssl_ca_location": Path("ca.pem"),
        "ssl_certificate_location": Path("me.pem"),
        "ssl_key_location": Path("key.pem"),
        "client": {"ssl.key.password": SecretStr("hunter3"), "debug": SecretStr("broker")},
    },
    "egress": {"private": "10.1.0.0/16"},
    "topics": {"prefix": "", "retention_days": 0.5},
    "advantages": {
        "eps": 1e-7,
        "ddof": 0,
        "formula": "rloo",
        "credit": "gigpo",
        "gamma": 0.95,
        "turn_weight": 0.5,
    },
    "policy": {
        "script": '{"a": "b=c"}',
        "name": "a.B-1_",
        "engine": "vllm",
        "servers": "http://a:1/v1, https://b/",
        "server_key": SecretStr("k"),
        "server_model": "m",
        "server_folder": Path("shared"),
        "server_adapters": "/mnt/shared",
        "server_timeout_s": 10,
        "server_retries": 1,
        "max_concurrent": 2,
        "verify": "listed",
    },
    "scoring": {
        "judge_url": "http://j/v1",
        "judge_model": "m",
        "judge_key": SecretStr("k"),
        "judge_prompt_usd": 0.5,
        "judge_completion_usd": 1.5,
        "judge_parameters": "max_completion_tokens",
    },
    "schemas": {
        "registry_url": "https://a:8081,https://b",
        "registry_username": "u",
        "registry_password": SecretStr("p"),
        "registry_ca_location": Path("ca.pem"),
        "own_ids": False,
    },
    "trainer": {"loss": "cispo", "epsilon_high": 5.0, "importance": "mask", "importance_cap": 3.5},
    "fleet": {"weights": "chat=2,test-*=0.5"},
    "serve": {
        "peer_url": "http://10.0.0.7:8790",
        "auth": "keys",
        "host": "localhost",
        "model_names": "gpt-4o-mini,claude-*=chat@7",
        "key_per_s": 7,
        "key_burst": 9,
        "key_at_once": 3,
        "key_tokens_per_min": 1000,
        "requests": "required",
        "key": SecretStr("sw_a_b"),
        "tenant_scorers": "exact",
        "tls_certificate": Path("certificate.pem"),
        "tls_key": Path("key.pem"),
    },
    "prices": {"prompt_usd": 0.5, "completion_usd": 0.0},
    "tracing": {"otlp_endpoint": "https://c:4318", "sample_ratio": 0.25, "queue_spans": 7, "timeout_s": 2.5},
    "guard": {
        "suite": Path("suite.yaml"),
        "confidence": 0.9,
        "max_failed": 0.5,
        "max_cost_ratio": 2.0,
        "max_recovery_loss": 0.5,
    },
    "canary": {"steps": "0.1,1", "alpha": 0.1, "max_failed": 0.5, "max_truncated": 0.5},
    "adapters": {"signing_key": Path("adapters.key"), "verify_key": Path("adapters.pub")},
    "outside": {
        "url": "https://api.example/v1",
        "parameters": "temperature",
        "tenants": "red",
        "prompt_usd": 0.5,
        "completion_usd": 1.5,
    },
}
"""Settings that mean nothing without others of their section, or do not take every value of their type."""
CHANGED |= {
    file.parent.name: runpy.run_path(str(file))["CHANGED"]
    for file in (ROOT / "tests" / "plugins").glob("*/changed_settings.py")
}


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a settings file."""
    monkeypatch.chdir(tmp_path)


def changed(key: str) -> Any:
    """Return another value for a setting, as its default and its type say."""
    default, (section, _, name) = dict(flatten(build({})))[key], key.partition(".")
    choices = get_args(section_types()[section].model_fields[name].annotation)
    if isinstance(default, str) and default in choices:
        return next(choice for choice in choices if choice != default)
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int | float) else f"{default}x"


def test_every_setting_can_be_changed_and_reaches_a_child() -> None:
    wrong: dict[str, str] = {}
    for key, _ in flatten(build({})):
        section, _, name = key.partition(".")
        if name in CHANGED.get(section, {}):
            continue
        try:
            settings = build({section: {name: changed(key)}})
        except SettingsError as refusal:
            wrong[key] = f"give it a value in CHANGED of {Path(__file__).name}: {refusal}"
            continue
        named = {ENV_CONFIG, "STREAMWARD_KAFKA__BOOTSTRAP", f"STREAMWARD_{section}__{name}".upper()}
        child = load(env=to_env(settings))
        if dict(child) != dict(settings) or set(to_env(settings)) != named or dict(child) == dict(build({})):
            wrong[key] = f"a child of a process with {changed(key)!r} has another value"
    assert wrong == {}


def test_settings_that_need_each_other_reach_a_child_together() -> None:
    settings = build(CHANGED)
    defaults, given = dict(flatten(build({}))), {f"{part}.{key}" for part, keys in CHANGED.items() for key in keys}
    assert [key for key, value in flatten(settings) if (key in given) != (value != defaults[key])] == []
    assert dict(load(env=to_env(settings))) == dict(settings)


def test_every_setting_is_read() -> None:
    read = {node.attr for source in sources() for node in source.nodes if isinstance(node, ast.Attribute)}
    unread = [key for key, _ in flatten(build({})) if key.rpartition(".")[2] not in read]
    assert unread == [], "no code reads these settings"
