"""The files of the chart that are generated.

    helm/values.yaml, its comments ──► helm/README.md               a row for each value
    streams/kafka/topics.py        ──► helm/files/topics.yaml       what topics.kind: strimzi is rendered from
    the settings                   ──► helm/values.schema.json      what `settings` and `secretSettings` may hold

`python -m tests.chart_files` writes them; a test fails when one differs. The rest of values.schema.json is written by
hand.

Not covered: rules between settings, which the program checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from streams.kafka import topics
from streams.settings.load import Settings, Topics
from streams.settings.model import SECRET_NAME

CHART = Path(__file__).parent.parent / "helm"
VALUES, PAGE, TOPICS = CHART / "values.yaml", CHART / "README.md", CHART / "files" / "topics.yaml"
SCHEMA = CHART / "values.schema.json"
FIRST = "streams"
"""The component whose comments hold for the same values of the others."""
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?: +(?P<value>[^ #].*?))?(?: +# (?P<says>.*))?$")

INTRODUCTION = """\
# The chart

Streamward on a Kafka that is there already. [docs/install.md](../docs/install.md) tells how to install, upgrade and
roll back, and what each part does.

    helm install streamward ./helm --set kafka.bootstrap=kafka-1.example.com:9092
    helm test streamward

| what is made | when |
|---|---|
| Deployments `streams`, `scoring`, `policy`, `trainer`, a ServiceAccount each, and their settings | always |
| a Job that makes the topics before each install and upgrade | `topics.kind: job` |
| a Job that registers the schemas, after that one | `schemas.registryUrl` |
| KafkaTopic resources; they stay after `helm uninstall` | `topics.kind: strimzi` |
| volume claims for adapters and checkpoints, which stay too | unless an object store or claims are named |
| a HorizontalPodAutoscaler, or a ScaledObject of KEDA | `streams`, `scoring`, `policy`: `autoscaling.kind` |
| a StatefulSet of vLLM servers, its Service and a volume claim | `vllm.enabled` |
| a Deployment `audit` | `audit.enabled` |
| a Deployment `archive`, and a volume claim, which stays | `archive.enabled` |
| a PodMonitor, or a ServiceMonitor and its Service | `metrics.monitor` |
| PodDisruptionBudgets, NetworkPolicies | unless switched off |

## Values

Written by `python -m tests.chart_files` from the comments in `values.yaml`; do not edit. A key that is not here is
refused by `values.schema.json`.
"""


class Row(NamedTuple):
    """One value as the page shows it."""

    path: str
    default: str
    says: str


class Part(NamedTuple):
    """A key of the first level: what stands over it, and its values."""

    name: str
    about: str
    rows: list[Row]


def parts(text: str) -> list[Part]:
    """Return the parts of a values.yaml, in its order, each value with the comment beside it.

    A value without comment says what the first component's of that name does, if there is one.
    """
    read = list(_parts(text))
    known = {row.path for part in read for row in part.rows if part.name == FIRST}
    for part in read:
        for place, row in enumerate(part.rows):
            like = f"{FIRST}.{row.path.partition('.')[2]}"
            if not row.says and like in known:
                part.rows[place] = row._replace(says=f"as `{like}`")
    return read


def _parts(text: str) -> Iterator[Part]:
    path: list[str] = []
    above: list[str] = []
    part: Part | None = None
    for line in [*text.splitlines(), "end:"]:
        if line.startswith("#"):
            above.append(line[1:])
        found = _LINE.match(line)
        if found is None:
            above = above if line.startswith("#") else []
            continue
        path[len(found["indent"]) // 2 :] = [found["key"]]
        if len(path) == 1:
            if part is not None:
                yield part
            part = Part(found["key"], " ".join(line.strip() for line in above), [])
        above = []
        says = (found["says"] or "").replace("|", "\\|")
        assert part is not None
        if found["value"]:
            part.rows.append(Row(".".join(path), found["value"], says))
        elif says:
            part = part._replace(about=f"{part.about} `{path[-1]}`: {says}.".strip())


def page(text: str) -> str:
    """Return helm/README.md for a values.yaml."""
    lines: list[str] = []
    for part in parts(text):
        is_name = part.name.endswith("Override")
        if not is_name or not lines:
            lines += ["", f"### {'names' if is_name else part.name}", ""]
            lines += [part.about, ""] if part.about else []
            lines += ["| value | default | what it says |", "|---|---|---|"]
        lines += [f"| `{row.path}` | `{row.default}` | {row.says} |" for row in part.rows]
    return INTRODUCTION + "\n".join(lines) + "\n"


def topics_file() -> str:
    """Return helm/files/topics.yaml: which setting says what of each topic, found by trying `topics.topics`."""
    plain = Topics()
    small, large = (topics.topics(Topics(max_record_bytes=size)) for size in (1 << 20, 1 << 22))
    lines = ["# Written by `python -m tests.chart_files` from streams/kafka/topics.py; do not edit."]
    lines += ["# max.message.bytes = recordHalves * settings.topics.max_record_bytes / 2 + moreBytes", "defaults:"]
    lines += [f"  {key}: {value}" for key, value in plain.model_dump().items()]
    configs = [set(topic.config.items()) for one in (small, large) for topic in one.values()]
    forever = topics.topics(Topics(retention_days=0))["tasks"].config["retention.ms"]
    same = {key: text for key, text in set.intersection(*configs) if key != "retention.ms"}
    lines += ["config:", *(f"  {key}: {text}" for key, text in sorted(same.items())), "topics:"]
    for label in topics.LABELS:
        bytes_small, bytes_large = (int(one[label].config["max.message.bytes"]) for one in (small, large))
        halves = 2 * (bytes_large - bytes_small) // ((1 << 22) - (1 << 20))
        lines.append(f"  - label: {label}")
        lines.append(f"    partitions: {'partitions' if label in topics.KEYED_BY_TASK else 'policy_partitions'}")
        lines.append(f"    keptForEver: {str(small[label].config['retention.ms'] == forever).lower()}")
        lines.append(f"    recordHalves: {halves}")
        lines.append(f"    moreBytes: {bytes_small - halves * (1 << 20) // 2}")
    return "\n".join(lines) + "\n"


# --- values.schema.json ----------------------------------------------------------------------------------------------

FROM_SECRETS = {"kafka.sasl_username", "kafka.sasl_password", "schemas.registry_username", "schemas.registry_password"}
"""Settings that the chart takes from the Secrets of kafka.sasl and schemas; nothing else may give them."""
_TEXT = r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_TEXT_UP_TO_1 = r"(0(\.[0-9]+)?|1(\.0+)?|[0-9](\.[0-9]+)?[eE]-[0-9]+)"
_TEXT_OF_0 = r"^[0.]+([eE]|$)"
"""How a number is written as text."""
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def schema(text: str) -> str:
    """Return helm/values.schema.json with the definitions that follow from the settings."""
    tree = json.loads(text)
    settings: dict[str, Any] = {}
    from_files: dict[str, Any] = {}
    for section, keys in _settings():
        kept = {
            key: rule
            for key, field in keys.items()
            if (rule := _rule(field)) and f"{section}.{key}" not in FROM_SECRETS
        }
        settings[section] = {"type": "object", "additionalProperties": False, "properties": kept}
        names = "|".join(key for key in keys if f"{section}.{key}" not in FROM_SECRETS)
        from_files[f"^{section}\\.({names})$"] = {"$ref": "#/definitions/secretKey"}
    every = {"type": "object", "additionalProperties": False}
    tree["definitions"]["settings"] = {**every, "properties": settings}
    tree["definitions"]["secretSettings"] = {**every, "patternProperties": from_files}
    return json.dumps(tree, indent=2) + "\n"


def secret_variables() -> set[str]:
    """Return the variables of the environment that would hold a secret, were they set."""
    return {
        f"STREAMWARD_{section}__{key}".upper()
        for section, keys in _settings()
        for key, field in keys.items()
        if field.get("writeOnly")
    }


def _settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each section with the schema of its settings, as pydantic has it for one that is given."""
    tree = Settings.model_json_schema()
    for section, found in tree["properties"].items():
        fields = tree["$defs"][found["$ref"].rpartition("/")[2]]["properties"]
        yield section, {key: {**field, **field.get("anyOf", [{}])[0]} for key, field in fields.items()}


def _rule(field: dict[str, Any]) -> dict[str, Any] | None:
    """Return the rule for one setting in the values, or None for a secret.

    A name like 7 may be a number, since a Pod gets text.
    """
    kind = field["type"]
    if field.get("writeOnly"):
        return None
    if kind == "object":
        not_secret = {"propertyNames": {"not": {"pattern": SECRET_NAME.pattern}}}
        return {"type": kind, **not_secret, "additionalProperties": {"type": "string"}}
    rule = {key: field[key] for key in ("enum", "minLength", "pattern", *_BOUNDS) if key in field}
    if kind == "number":
        as_text = _number_as_text({name: field[name] for name in _BOUNDS if name in field})
        return {"anyOf": [{"type": kind, **rule}, as_text]} if as_text else {"type": kind, **rule}
    return {"type": ["string", "integer"] if kind == "string" and "enum" not in rule else kind, **rule}


def _number_as_text(bounds: dict[str, float]) -> dict[str, Any] | None:
    """Return the rule for a number as text, as `helm --set` gives 0.5, or None where no pattern holds the bounds."""
    rule = {"type": "string"}
    match bounds:
        case {"minimum": 0, "maximum": 1}:
            return {**rule, "pattern": f"^{_TEXT_UP_TO_1}$"}
        case {"exclusiveMinimum": 0} if len(bounds) == 1:
            return {**rule, "pattern": f"^{_TEXT}$", "not": {"pattern": _TEXT_OF_0}}
        case {"minimum": 0} if len(bounds) == 1:
            return {**rule, "pattern": f"^{_TEXT}$"}
        case _:
            return None if bounds else {**rule, "pattern": f"^-?{_TEXT}$"}


if __name__ == "__main__":
    SCHEMA.write_text(schema(SCHEMA.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(VALUES.read_text(encoding="utf-8")), encoding="utf-8")
    TOPICS.parent.mkdir(exist_ok=True)
    TOPICS.write_text(topics_file(), encoding="utf-8")
