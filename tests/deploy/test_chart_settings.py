"""The settings in the chart's values: what is refused before a Pod starts, and what each Pod keeps.

    values ──► values.schema.json, generated from the settings ──► refused, or ──► variables of the Pod template

The schema is held to the settings themselves without helm, by asking both about the same values. Not covered: rules
between settings, which only the program checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from streams.settings.load import build, flatten, section_types
from tests.support.deploy.chart_files import FROM_SECRETS, SCHEMA
from tests.support.deploy.command_lines import loaded
from tests.support.deploy.rendered_chart import (
    BOOTSTRAP,
    CHART,
    PODS,
    Object,
    helm,
    merged,
    mounted,
    needs_helm,
    spec_of,
)

jsonschema = pytest.importorskip("jsonschema", reason="NOT RUN: jsonschema is not installed; `make setup-test` does")

TRIED: tuple[Any, ...] = (
    -1,
    0,
    0.3,
    1,
    2,
    1e-7,
    10**9,
    True,
    "",
    "abc",
    "0.5",
    "-2.5",
    "7.0.1",
    "nan",
    {"a": "b"},
    [1],
)
"""Values for every setting. Those of its default and of its choices are tried too."""


def refused(values: Object) -> list[str]:
    """Return where the schema refuses these values, and why."""
    tree = json.loads(SCHEMA.read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    found = jsonschema.Draft7Validator(tree).iter_errors(merged(chart, merged(BOOTSTRAP, values)))
    return [f"{error.json_path}: {error.message}" for error in found]


BAD = [
    ({"settings": {"trainer": {"learnin_rate": 1}}}, "'learnin_rate'"),
    ({"settings": {"trainer": {"learning_rate": "abc"}}}, "'abc'"),
    ({"trainer": {"settings": {"trainer": {"learning_rate": -1}}}}, "-1"),
    ({"settings": {"trainr": {"learning_rate": 1}}}, "'trainr'"),
    ({"settings": {"trainer": {"loss": "ppo"}}}, "dapo"),
    ({"settings": {"topics": {"partitions": 0}}}, "partitions"),
    ({"settings": {"topics": {"partitions": "many"}}}, "partitions"),
    ({"audit": {"settings": {"guard": {"max_failed": "1.5"}}}}, "'1.5'"),
    ({"settings": {"guard": {"confidence": 1}}}, "confidence"),
    ({"scoring": {"settings": {"scoring": {"judge_key": "a"}}}}, "'judge_key'"),
    ({"settings": {"kafka": {"client": {"ssl.key.password": "a"}}}}, "'ssl.key.password'"),
    ({"settings": {"kafka": {"sasl_username": "a"}}}, "'sasl_username'"),
    ({"scoring": {"secretSettings": {"scoring.judg_key": {"secret": "a", "key": "b"}}}}, "'scoring.judg_key'"),
    ({"scoring": {"secretSettings": {"kafka.sasl_password": {"secret": "a", "key": "b"}}}}, "'kafka.sasl_password'"),
]
each_bad = pytest.mark.parametrize(("values", "says"), BAD, ids=[says.strip("'") for _, says in BAD])


@each_bad
def test_a_setting_that_the_program_would_refuse_is_refused_by_the_schema(values: Object, says: str) -> None:
    (found,) = refused(values)
    assert says in found


@needs_helm
@each_bad
def test_helm_names_the_value_and_where_it_is(values: Object, says: str) -> None:
    done = helm(merged(BOOTSTRAP, values))
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr and says in done.stderr


@needs_helm
def test_what_set_makes_of_numbers_is_taken(tmp_path: Path) -> None:
    sets = ("settings.trainer.learning_rate=1e-4", "settings.canary.max_failed=0.01", "settings.policy.name=7")
    done = helm(BOOTSTRAP, *(argument for one in sets for argument in ("--set", one)))
    assert done.returncode == 0, done.stderr
    (pod,) = (spec for name, spec in pods(done.stdout).items() if name.endswith("-policy"))
    settings = loaded(mounted(pod, {}, tmp_path))
    assert (settings.trainer.learning_rate, settings.canary.max_failed, settings.policy.name) == (1e-4, 0.01, "7")


def fields() -> dict[str, FieldInfo]:
    """Return every setting by its dotted key."""
    return {
        key: section_types()[key.partition(".")[0]].model_fields[key.partition(".")[2]] for key, _ in flatten(build({}))
    }


def taken(field: FieldInfo, value: Any) -> bool:
    """Return whether the program takes this value as the text that a Pod is given."""
    is_mapping = isinstance(field.get_default(call_default_factory=True), dict)
    text = value if isinstance(value, str) or is_mapping else json.dumps(value)
    try:
        TypeAdapter(Annotated[field.annotation, field]).validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("key", fields())
def test_the_schema_takes_no_value_that_the_setting_refuses(key: str) -> None:
    section, _, name = key.partition(".")
    field, rules = fields()[key], json.loads(SCHEMA.read_text(encoding="utf-8"))["definitions"]["settings"]
    rule = rules["properties"][section]["properties"].get(name)
    if rule is None:
        assert "SecretStr" in str(field.annotation) or key in FROM_SECRETS
        return
    takes = jsonschema.Draft7Validator(rule).is_valid
    by_schema = [value for value in TRIED if takes(value)]
    assert [value for value in by_schema if not taken(field, value)] == []
    default = field.get_default(call_default_factory=True)
    if default is None:
        good = rule.get("enum") or [next(value for value in ("a", 1) if taken(field, value))]
    else:
        good = [str(default) if isinstance(default, Path) else default]
    assert all(takes(value) for value in good)


# --- each Pod keeps its settings -------------------------------------------------------------------------------------


def pods(text: str) -> dict[str, Object]:
    """Return each Pod that runs the program."""
    found = [one for one in yaml.safe_load_all(text) if one is not None]
    return {one["metadata"]["name"]: spec_of(one) for one in found if one["kind"] in PODS}


def configs(text: str) -> Object:
    """Return the files of each ConfigMap."""
    found = [one for one in yaml.safe_load_all(text) if one is not None]
    return {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}


@needs_helm
def test_an_old_pod_that_starts_again_during_an_upgrade_has_the_settings_it_was_rendered_with(tmp_path: Path) -> None:
    """By then every object of the cluster is that of the new release, but for the Pods that are not replaced yet."""
    old = helm(merged(BOOTSTRAP, {"settings": {"topics": {"partitions": 4}}, "trainer": {"gpus": 1}})).stdout
    new = helm(merged(BOOTSTRAP, {"settings": {"topics": {"partitions": 6}, "trainer": {"loss": "gspo"}}})).stdout
    for name, pod in pods(old).items():
        before = loaded(mounted(pod, configs(old), tmp_path / "before" / name))
        again = loaded(mounted(pod, configs(new), tmp_path / "again" / name))
        assert before.topics.partitions == 4 and again == before, name


@needs_helm
def test_a_pod_template_changes_with_its_own_settings_only() -> None:
    one, other = (
        pods(helm(merged(BOOTSTRAP, {"scoring": {"settings": change}})).stdout)
        for change in ({"scoring": {"timeout_s": 20}}, {"scoring": {"timeout_s": 30}})
    )
    assert {name.rpartition("-")[2] for name in one if one[name] != other[name]} == {"scoring"}


@needs_helm
def test_a_setting_from_a_secret_takes_precedence_over_the_same_in_the_values(tmp_path: Path) -> None:
    values = {
        "settings": {"scoring": {"judge_url": "http://plain/v1", "judge_model": "judge"}},
        "scoring": {"secretSettings": {"scoring.judge_url": {"secret": "judge", "key": "url"}}},
    }
    done = helm(merged(BOOTSTRAP, values))
    found = {
        name.rpartition("-")[2]: mounted(pod, {}, tmp_path / name)
        for name, pod in pods(done.stdout).items()
        if not name.endswith("-test")
    }
    assert loaded(found["scoring"]).scoring.judge_url == "judge/url"
    assert loaded(found["streams"]).scoring.judge_url == "http://plain/v1"
