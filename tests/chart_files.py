"""What the chart has from elsewhere, so that nothing is said twice.

    helm/values.yaml, its comments ──► helm/README.md           a row for each value
    streams/kafka/topics.py              ──► helm/files/topics.yaml   what topics.kind: strimzi is rendered from

`python -m tests.chart_files` writes both; a test fails when one differs.

Not covered: values whose mapping stands on one line are one row, and lists are shown as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streams.kafka import topics
from streams.settings.model import Topics

CHART = Path(__file__).parent.parent / "helm"
VALUES, PAGE, TOPICS = CHART / "values.yaml", CHART / "README.md", CHART / "files" / "topics.yaml"
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


if __name__ == "__main__":
    PAGE.write_text(page(VALUES.read_text(encoding="utf-8")), encoding="utf-8")
    TOPICS.parent.mkdir(exist_ok=True)
    TOPICS.write_text(topics_file(), encoding="utf-8")
