"""The trainer as a RayJob: what KubeRay would make of it, against the operator's own definition.

    values ──► helm template ──► RayJob ──► rayjobs-1.7.0.json.xz     every field is one that KubeRay knows
                                   └──► the Pods of its two groups ──► settings, command, security

The definition is `ray.io_rayjobs.yaml` of https://github.com/ray-project/kuberay at v1.7.0 (Apache License 2.0): the
schema of version v1, without descriptions. Not covered: the operator itself, which makes Pods of it.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from plugins.distributed.settings import Distributed
from streams.settings.model import Settings
from tests.support.deploy.command_lines import loaded, parsed
from tests.support.deploy.rendered_chart import (
    BOOTSTRAP,
    CASES,
    OUTSIDE,
    ROOT,
    Object,
    configs_of,
    each_pair,
    helm,
    merged,
    mounted,
    name_of,
    needs_helm,
    objects,
    of_kind,
    spec_of,
)

DEFINITION = Path(__file__).with_name("rayjobs-1.7.0.json.xz")


def strict(schema: Any) -> Any:
    """Return a schema of Kubernetes as a JSON schema that refuses a field which Kubernetes would silently leave out."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


@pytest.fixture(scope="module")
def kuberay() -> jsonschema.Draft7Validator:
    """What KubeRay takes."""
    schema = strict(json.loads(lzma.decompress(DEFINITION.read_bytes())))
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(schema)


def wrong(kuberay: jsonschema.Draft7Validator, job: Object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in kuberay.iter_errors(job)]


def rendered(values: Object) -> Object:
    done = helm(merged(BOOTSTRAP, values))
    assert done.returncode == 0, done.stderr
    (job,) = [one for one in yaml.safe_load_all(done.stdout) if one is not None and one["kind"] == "RayJob"]
    return dict(job)


def pods(job: Object) -> dict[str, Object]:
    """Return the Pods of the head and of the ranks."""
    cluster = job["spec"]["rayClusterSpec"]
    (ranks,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"]["template"]["spec"], "ranks": ranks["template"]["spec"]}


@needs_helm
@each_pair
def test_a_rayjob_is_what_kuberay_takes_and_its_pods_are_restricted_and_whole(
    case: str, kuberay: jsonschema.Draft7Validator
) -> None:
    jobs = list(of_kind(case, "RayJob"))
    assert len(jobs) == bool(CASES[case].get("trainer", {}).get("ray"))
    there = {name_of(found) for found in objects(case)}
    for job in jobs:
        assert wrong(kuberay, job) == []
        assert len(job["metadata"]["name"]) <= 47, "KubeRay takes no longer one"
        for spec in pods(job).values():
            assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
            (container,) = spec["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
            claims = {
                one["persistentVolumeClaim"]["claimName"] for one in spec["volumes"] if "persistentVolumeClaim" in one
            }
            assert {one for one in claims - OUTSIDE if f"PersistentVolumeClaim/{one}" not in there} == set()


@needs_helm
def test_a_field_that_kuberay_does_not_know_would_be_found(kuberay: jsonschema.Draft7Validator) -> None:
    job = rendered({"trainer": {"ray": {"workers": 2}}})
    assert wrong(kuberay, job) == []
    job["spec"]["rayClusterSpec"]["workerGroupSpec"] = []
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["enviroment"] = []
    job["spec"]["backoffLimit"] = "often"
    found = wrong(kuberay, job)
    assert len(found) == 3 and {"backoffLimit", "workerGroupSpec", "enviroment"} == {
        word for word in ("backoffLimit", "workerGroupSpec", "enviroment") if any(word in one for one in found)
    }


@needs_helm
def test_the_ranks_are_as_many_as_the_pods_have_gpus_and_each_pod_says_what_ray_may_use(tmp_path: Path) -> None:
    (job,) = of_kind("ray", "RayJob")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    settings: dict[str, Settings] = {
        name: loaded(mounted(spec, configs_of("ray"), tmp_path / name)) for name, spec in pods(job).items()
    }
    assert settings["head"].trainer == settings["ranks"].trainer
    assert (settings["head"].trainer.processes, settings["head"].trainer.shard_base) == (8, True)
    assert settings["head"].model.device == "cuda" and settings["head"].of_plugin(Distributed).wait_s == 3600
    assert group["rayStartParams"] | {"object-store-memory": ""} == {
        "num-cpus": "8", "num-gpus": "4", "object-store-memory": "",
    }  # fmt: skip
    assert pods(job)["ranks"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert "nvidia.com/gpu" not in str(pods(job)["head"]["containers"][0]["resources"]), "the head computes nothing"
    assert {one["containers"][0]["image"].rpartition("-")[2] for one in pods(job).values()} == {"cuda"}


@needs_helm
def test_what_the_job_runs_is_what_the_program_takes() -> None:
    for fleet in (False, True):
        program, *words = rendered({"fleet": {"enabled": fleet}, "trainer": {"ray": {"workers": 1}}})["spec"][
            "entrypoint"
        ].split()
        assert program == "streamward" and parsed(words) == "train" and ("--fleet" in words) is fleet
        assert words[-2:] == ["--launcher", "ray"]


@needs_helm
def test_other_settings_make_another_job_and_the_same_settings_the_same() -> None:
    values: Object = {"trainer": {"ray": {"workers": 2}}}
    changed = merged(values, {"settings": {"trainer": {"learning_rate": 1e-5}}})
    names = [rendered(one)["metadata"]["name"] for one in (values, changed, values)]
    assert names[0] == names[2] != names[1]


@needs_helm
def test_ranks_reach_each_other_on_every_port_and_only_the_operator_the_head() -> None:
    (policy,) = [one for one in of_kind("ray", "NetworkPolicy") if one["metadata"]["name"].endswith("-trainer")]
    ranks = {"podSelector": {"matchLabels": policy["spec"]["podSelector"]["matchLabels"]}}
    between, operator = policy["spec"]["ingress"]
    assert between == {"from": [ranks]} and policy["spec"]["egress"] == [{"to": [ranks]}]
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert operator["from"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "kuberay-operator"
    }
    (job,) = of_kind("ray", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert ranks["podSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()


# --- the page ---------------------------------------------------------------------------------------------------------


@needs_helm
def test_the_values_on_the_page_are_one_trainer_of_many_gpus_and_many_samplers(
    kuberay: jsonschema.Draft7Validator, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    done = helm(yaml.safe_load(block))
    assert done.returncode == 0, done.stderr
    found = {name_of(one): one for one in yaml.safe_load_all(done.stdout) if one is not None}
    configs = {one["metadata"]["name"]: one["data"] for name, one in found.items() if name.startswith("ConfigMap/")}
    (job,) = [one for name, one in found.items() if name.startswith("RayJob/")]
    assert wrong(kuberay, job) == [] and "Deployment/one-streamward-trainer" not in found
    trainer = loaded(mounted(pods(job)["ranks"], configs, tmp_path / "trainer"))
    assert (trainer.trainer.processes, trainer.trainer.shard_base, trainer.model.device) == (16, True, "cuda")
    (ranks,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert ranks["replicas"] * int(ranks["rayStartParams"]["num-gpus"]) == 16
    servers = found["StatefulSet/one-streamward-vllm"]
    assert servers["spec"]["replicas"] == 6
    (server,) = spec_of(servers)["containers"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 2 and "--tensor-parallel-size=2" in server["args"]
    policy = loaded(mounted(spec_of(found["Deployment/one-streamward-policy"]), configs, tmp_path / "policy"))
    assert len(policy.policy.server_urls) == 6 and policy.model.base == trainer.model.base
    scaled = {name.rpartition("-")[2]: one["spec"] for name, one in found.items() if name.startswith("ScaledObject/")}
    assert {name: one["maxReplicaCount"] for name, one in scaled.items()} == {"policy": 16, "scoring": 8}
