"""The chart, rendered by the real helm for a matrix of values, and what its Pods would find on their disks.

    CASES[case] ──► helm template ──► objects(case)     each case is rendered once
    a Pod's volumes, the ConfigMaps ──► mounted ──► files in a folder, and the environment that leads there

Not covered: helm's own functions for a cluster (lookup, capabilities); it renders without one here.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from streams.settings.model import Settings
from tests import skips
from tests.support.deploy.command_lines import loaded
from tests.support.deploy.container import EVERYWHERE, variables

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm"
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason=skips.HELM)

Object = dict[str, Any]
BOOTSTRAP = {"kafka": {"bootstrap": "kafka-0.example.com:9093,kafka-1.example.com:9094"}}
SECURED: Object = {
    "kafka": {
        **BOOTSTRAP["kafka"],
        "securityProtocol": "SASL_SSL",
        "sasl": {"mechanism": "SCRAM-SHA-512", "secret": "loop"},
        "tls": {"caSecret": "authority", "clientSecret": "client"},
    },
    "trainer": {"saslSecret": "for-trainer", "gpus": 1},
    "topics": {"saslSecret": "for-topics"},
    "scoring": {
        "settings": {"scoring": {"judge_url": "http://judge:8100/v1", "judge_model": "judge"}},
        "secretSettings": {"scoring.judge_key": {"secret": "judge", "key": "api-key"}},
    },
}
IMPROVE: Object = {
    "curate": {"enabled": True, "replicas": 2, "args": ["--policy", "coach"]},
    "datasets": {"enabled": True, "name": "good", "args": ["--new", "50"], "existingClaim": "mine"},
    "retrain": {
        "enabled": True,
        "rule": 'name = "good"\npolicy = "p"\nactions = ["tune"]\n[when]\npromotable = 50\n[tune]\nmethod = "sft"\n',
    },
    "selfplay": {
        "enabled": True,
        "catalogue": "name: sums\nscenarios:\n  - {name: s, questions: [{question: '1 + 1 =', expected: 2}]}\n",
        "every": "6h",
    },
    "settings": {"scoring": {"judge_url": "http://judge:8200/v1", "judge_model": "judge"}},
}
VALUES: dict[str, Object] = {
    "least": BOOTSTRAP,
    "secured": SECURED,
    "object store": {
        **BOOTSTRAP,
        "adapterStore": {"url": "s3://bucket/path", "credentialsSecret": "aws"},
        "archive": {"enabled": True, "url": "s3://bucket/archive", "credentialsSecret": "aws-archive"},
        "trainer": {"checkpoints": {"existingClaim": "mine"}},
        "metrics": {"port": 9200},
    },
    "settings": {
        **BOOTSTRAP,
        "nameOverride": "rl",
        "settings": {
            "kafka": {"client": {"debug": "broker", "client.rack": 'a "b" <c> $(HOME) $$'}, "outage_s": 30},
            "topics": {"prefix": "rl.", "replication": 3, "partitions": 16},
            "trainer": {"learning_rate": 1e-7, "off_policy": True},
            "tracing": {"otlp_endpoint": "http://collector.observability:4318", "sample_ratio": 0.1},
        },
        "policy": {"replicas": 3, "settings": {"policy": {"engine": "scripted", "name": "other"}}},
        "trainer": {"settings": {"tracing": {"otlp_endpoint": "http://near:14318/v1/traces"}}},
        "probes": {"mode": "exec"},
    },
    "scaled": {
        **BOOTSTRAP,
        "streams": {"autoscaling": {"kind": "hpa", "max": 6}},
        "policy": {"autoscaling": {"kind": "hpa", "min": 2, "lag": 50}},
        "scoring": {"autoscaling": {"kind": "keda", "max": 12}},
        "autoscaling": {"prometheusUrl": "http://prometheus.monitoring.svc:9090"},
        "metrics": {"monitor": "PodMonitor", "labels": {"release": "prometheus"}},
        "settings": {
            "topics": {"partitions": 12, "replication": 3, "retention_days": 0.5, "max_record_bytes": 1000001}
        },
        "topics": {"kind": "strimzi", "strimzi": {"cluster": "events", "namespace": "kafka"}},
        "signing": {"privateSecret": "private", "publicSecret": "public"},
        "jobs": {"replicas": 2, "settings": {"jobs": {"max_budget_usd": 100.0}}},
        "tuner": {"enabled": True, "replicas": 2},
        "calls": {"enabled": True, "replicas": 2},
        "improve": IMPROVE,
        "serve": {
            "enabled": True,
            "autoscaling": {"kind": "hpa", "max": 3},
            "loginSecret": "login",
            "ingress": {"enabled": True, "host": "streamward.example.org", "tlsSecret": "certificate"},
        },
        "audit": {"enabled": True},
        "archive": {"enabled": True, "settings": {"archive": {"follow_s": 300}}},
    },
    "fleet": {
        **BOOTSTRAP,
        "fleet": {"enabled": True},
        "trainer": {"replicas": 2, "checkpoints": {"accessModes": ["ReadWriteMany"]}},
        "serve": {"enabled": True, "port": 8080},
        "settings": {"fleet": {"policies": "math-*", "states": 8}},
    },
    "vllm": {
        **BOOTSTRAP,
        "serve": {"enabled": True, "replicas": 3},
        "vllm": {"enabled": True, "replicas": 2, "gpus": 2, "args": ["--max-model-len=2048"]},
        "trainer": {"settings": {"trainer": {"lora_rank": 16}}},
        "metrics": {"monitor": "ServiceMonitor"},
        "settings": {"model": {"base": "example/model", "dtype": "bfloat16"}, "topics": {"retention_days": 0}},
        "topics": {"kind": "strimzi", "strimzi": {"cluster": "events"}},
    },
    "ray": {
        **SECURED,
        "trainer": {"saslSecret": "for-trainer", "gpus": 4, "ray": {"workers": 2}},
        "settings": {"model": {"base": "example/model"}, "trainer": {"shard_base": True, "threads": 2}},
    },
    "other servers": {
        **BOOTSTRAP,
        "vllm": {"servers": "https://one.example.com,http://two:8001", "shared": {"existingClaim": "served"}},
    },
    "registry": {
        **SECURED,
        "schemas": {
            "registryUrl": "https://schemas.example.com:8443,https://schemas-2.example.com",
            "secret": "reads",
            "registerSecret": "registers",
            "caSecret": "registry-authority",
        },
        "settings": {"topics": {"prefix": "rl."}, "schemas": {"own_ids": False}},
        "audit": {"enabled": True},
    },
    "registry by others": {
        **BOOTSTRAP,
        "schemas": {"registryUrl": "http://schemas:8081/apis/ccompat/v7", "register": False},
        "topics": {"kind": "none"},
    },
    "bare": {
        **BOOTSTRAP,
        "jobs": {"enabled": False},
        "topics": {"kind": "none"},
        "metrics": {"port": 0},
        "probes": {"mode": "none"},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "images": {"model": {"digest": "sha256:" + "0" * 64}, "pullSecrets": ["pull"]},
    },
}
FACTORS: dict[str, tuple[Object, ...]] = {
    "kafka": (
        {},
        {"kafka": SECURED["kafka"]},
        {"kafka": {**BOOTSTRAP["kafka"], "securityProtocol": "SSL", "tls": {"caSecret": "authority"}}},
    ),
    "store": ({}, {"adapterStore": {"url": "s3://bucket/path", "credentialsSecret": "aws"}}),
    "checkpoints": ({}, {"trainer": {"checkpoints": {"existingClaim": "mine"}}}),
    "topics": ({}, {"topics": {"kind": "strimzi", "strimzi": {"cluster": "events"}}}, {"topics": {"kind": "none"}}),
    "scaling": (
        {},
        {name: {"autoscaling": {"kind": "hpa"}} for name in ("streams", "scoring", "policy")},
        {"scoring": {"autoscaling": {"kind": "keda"}}, "autoscaling": {"prometheusUrl": "http://prometheus:9090"}},
    ),
    "metrics": ({}, {"metrics": {"monitor": "PodMonitor"}}, {"metrics": {"monitor": "ServiceMonitor"}}),
    "vllm": (
        {},
        {"vllm": {"enabled": True, "gpus": 0}, "settings": {"model": {"base": "example/model"}}},
        {"vllm": {"servers": "http://one:8000", "shared": {"existingClaim": "served"}}},
    ),
    "registry": (
        {},
        {"schemas": {"registryUrl": "http://schemas:8081", "secret": "reads"}},
        {"schemas": {"registryUrl": "https://schemas:8081", "caSecret": "registry-authority", "register": False}},
    ),
    "signing": ({}, {"signing": {"privateSecret": "private", "publicSecret": "public"}}),
    "jobs": ({}, {"jobs": {"replicas": 2}}, {"jobs": {"enabled": False}}),
    "tuner": ({}, {"tuner": {"enabled": True, "gpus": 1}}),
    "calls": ({}, {"calls": {"enabled": True}, "tuner": {"gpus": 1, "cache": {"size": "40Gi"}}}),
    "improve": ({}, {"improve": IMPROVE}),
    "serve": (
        {},
        {"serve": {"enabled": True, "replicas": 2}},
        {"serve": {"enabled": True, "loginSecret": "login", "ingress": {"enabled": True, "host": "example.org"}}},
    ),
    "audit": ({}, {"audit": {"enabled": True}}),
    "archive": (
        {},
        {"archive": {"enabled": True}},
        {"archive": {"enabled": True, "url": "s3://bucket/archive", "credentialsSecret": "aws-archive"}},
    ),
    "probes": ({}, {"probes": {"mode": "exec"}}),
    "gpus": ({}, {"trainer": {"gpus": 1}, "policy": {"gpus": 1, "replicas": 2}}),
    "ray": ({}, {"trainer": {"ray": {"workers": 3}}}),
    "network": ({}, {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}),
    "images": ({}, {"images": {"streams": {"tag": "1.2.3"}, "pullSecrets": ["pull"]}}),
    "name": ({}, {"fullnameOverride": "loop"}),
}
"""What may be chosen independently of the rest, each with its choices."""


def merged(values: Object, more: Object) -> Object:
    """Return `values` with `more` laid over them, mappings key by key."""
    both = {**values, **more}
    for key in values.keys() & more.keys():
        if isinstance(values[key], dict):
            both[key] = merged(values[key], more[key])
    return both


def every_pair() -> Iterator[Object]:
    """Yield values in which any two choices of two factors come together at least once."""
    choices = [(factor, place) for factor, options in FACTORS.items() for place in range(len(options))]
    left = {frozenset(two) for two in itertools.combinations(choices, 2) if two[0][0] != two[1][0]}
    while left:
        chosen = dict(min(left, key=sorted))
        for factor in FACTORS:
            if factor not in chosen:
                new = [
                    sum(frozenset({(factor, place), one}) in left for one in chosen.items())
                    for place in range(len(FACTORS[factor]))
                ]
                chosen[factor] = new.index(max(new))
        left -= {frozenset(two) for two in itertools.combinations(chosen.items(), 2)}
        values = BOOTSTRAP
        for factor, place in chosen.items():
            values = merged(values, FACTORS[factor][place])
        yield values


CASES = {**VALUES, **{f"pairs {number}": values for number, values in enumerate(every_pair(), start=1)}}
PODS = ("Deployment", "Job", "Pod")
"""What runs the program."""
EVERY_POD = (*PODS, "StatefulSet")


def helm(values: Object, *arguments: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Render the chart with these values."""
    assert HELM is not None
    return subprocess.run(
        [HELM, "template", "one", str(chart), "--namespace", "ns", "--values", "-", *arguments],
        input=json.dumps(values), capture_output=True, text=True, check=False,
    )  # fmt: skip


@cache
def objects(case: str) -> tuple[Object, ...]:
    """Return every object of a case."""
    done = helm(CASES[case])
    assert done.returncode == 0, done.stderr
    return tuple(found for found in yaml.safe_load_all(done.stdout) if found is not None)


def of_kind(case: str, *kinds: str) -> Iterator[Object]:
    """Yield the objects of these kinds."""
    yield from (found for found in objects(case) if found["kind"] in kinds)


def spec_of(found: Object) -> Object:
    """Return the Pod that an object is or makes."""
    spec: Object = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    return spec


def name_of(found: Object) -> str:
    """Return kind and name."""
    return f"{found['kind']}/{found['metadata']['name']}"


def configs_of(case: str) -> Object:
    """Return the files of each ConfigMap."""
    return {found["metadata"]["name"]: found["data"] for found in of_kind(case, "ConfigMap")}


def mounted(spec: Object, configs: Object, folder: Path) -> dict[str, str]:
    """Lay a Pod's mounted files out under `folder`, and return its environment with every file it names led there.

    A Secret's value is `NAME/KEY`, so that a test sees which one was read.
    """
    (container,) = spec["containers"]
    at = {mount["name"]: PurePosixPath(mount["mountPath"]) for mount in container["volumeMounts"]}
    for volume in spec["volumes"]:
        files: dict[str, str] = {}
        if "configMap" in volume:
            files = configs[volume["configMap"]["name"]]
        secrets = [volume["secret"]] if "secret" in volume else []
        secrets += [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
        for secret in secrets:
            name = secret.get("secretName") or secret["name"]
            files |= {item["path"]: f"{name}/{item['key']}" for item in secret["items"]}
        for path, text in files.items():
            file = folder / at[volume["name"]].relative_to("/") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    given = variables({variable["name"]: variable.get("value", EVERYWHERE) for variable in container["env"]})
    given.pop("POD_IP", None)
    return {name: str(folder / text[1:]) if name.endswith("_FILE") else text for name, text in given.items()}


def settings_of(case: str, name: str, folder: Path) -> Settings:
    """Return the settings that the process of a Pod would load."""
    (found,) = [one for one in of_kind(case, *PODS) if one["metadata"]["name"].endswith(f"-{name}")]
    return loaded(mounted(spec_of(found), configs_of(case), folder))


each_case = pytest.mark.parametrize("case", VALUES)
each_pair = pytest.mark.parametrize("case", CASES)
"""The cases, and any two choices together."""
OUTSIDE = {
    "loop",
    "authority",
    "client",
    "for-trainer",
    "for-topics",
    "judge",
    "aws",
    "aws-archive",
    "pull",
    "mine",
    "private",
    "public",
    "served",
    "reads",
    "registers",
    "registry-authority",
    "login",
    "certificate",
}
"""What the values of the matrix name and the chart does not make."""


def component(case: str, kind: str, name: str) -> Object:
    """Return the one object of a kind that belongs to a component."""
    (found,) = [
        one for one in of_kind(case, kind) if one["metadata"]["labels"].get("app.kubernetes.io/component") == name
    ]
    return found
