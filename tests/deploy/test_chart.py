"""The chart, rendered by the real helm for a small matrix of values, and every object looked at.

What a Pod would run is what the program accepts: its command line is parsed by the program's own, and its environment
and mounted files are laid out in a folder and loaded as settings. Not covered: what a cluster does with the objects,
which is tests/deploy/test_cluster.py.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from streams.kafka import topics
from streams.settings.model import Topics
from tests.support.deploy import chart_files
from tests.support.deploy.command_lines import loaded, parsed
from tests.support.deploy.rendered_chart import (
    BOOTSTRAP,
    CASES,
    CHART,
    EVERY_POD,
    FACTORS,
    HELM,
    OUTSIDE,
    PODS,
    ROOT,
    SECURED,
    VALUES,
    Object,
    configs_of,
    each_case,
    each_pair,
    helm,
    merged,
    mounted,
    name_of,
    needs_helm,
    objects,
    of_kind,
    settings_of,
    spec_of,
)

# --- what runs is what the program takes -----------------------------------------------------------------------------


@needs_helm
@each_case
def test_the_program_takes_every_command_line(case: str) -> None:
    commands = {}
    for found in of_kind(case, *PODS):
        (container,) = spec_of(found)["containers"]
        assert container["command"] == ["streamward"]
        commands[found["metadata"]["labels"]["app.kubernetes.io/component"]] = parsed(container["args"])
        for probe in ("livenessProbe", "readinessProbe"):
            probed = container.get(probe, {}).get("exec", {}).get("command", [])
            assert probed[:1] != ["streamward"] or parsed(probed[1:])
    expected = {"streams": "streams", "scoring": "scoring", "policy": "policy", "trainer": "train", "test": "evaluate"}
    if case == "ray":
        del expected["trainer"]
    expected |= {"serve": "serve"} if "serve" in VALUES[case] else {}
    expected |= {"jobs": "jobs run"} if VALUES[case].get("jobs", {}).get("enabled", True) else {}
    if VALUES[case].get("topics", {}).get("kind", "job") == "job":
        expected["topics"] = "admin topics apply"
    if "tuner" in VALUES[case]:
        expected["tuner"] = "tune"
    if "calls" in VALUES[case]:
        expected["calls"] = "calls"
    if "improve" in VALUES[case]:
        expected |= {"curate": "improve curate follow", "datasets": "improve datasets follow"}
        expected |= {"retrain": "improve retrain follow", "selfplay": "improve selfplay run"}
    if "audit" in VALUES[case]:
        expected["audit"] = "audit"
    if "archive" in VALUES[case]:
        expected["archive"] = "admin archive sync"
    if case == "registry":
        expected["schemas"] = "admin schemas register"
    assert commands == expected


@needs_helm
@each_pair
def test_the_settings_know_all_that_a_pod_is_given(case: str, tmp_path: Path) -> None:
    for found in of_kind(case, *PODS):
        folder = tmp_path / found["metadata"]["name"]
        settings = loaded(mounted(spec_of(found), configs_of(case), folder))
        asks_kafka = found["metadata"]["labels"]["app.kubernetes.io/component"] != "schemas"
        assert (settings.kafka.bootstrap == BOOTSTRAP["kafka"]["bootstrap"]) is asks_kafka


def test_any_two_choices_are_tried_together() -> None:
    tried = [values for name, values in CASES.items() if name.startswith("pairs ")]
    for one, other in itertools.combinations(FACTORS, 2):
        for first, second in itertools.product(FACTORS[one], FACTORS[other]):
            wanted = merged(first, second)
            assert any(merged(values, wanted) == values for values in tried), wanted
    assert len(tried) < 25


@needs_helm
@each_case
def test_the_topics_are_those_that_every_process_wants(case: str, tmp_path: Path) -> None:
    names = [found["metadata"]["name"] for found in of_kind(case, *PODS)]
    wanted = Topics(**VALUES[case].get("settings", {}).get("topics", {}))
    for name in names:
        settings = settings_of(case, name.partition("-")[2].removeprefix("rl-").removeprefix("streamward-"), tmp_path)
        assert topics.topics(settings.topics) == topics.topics(wanted)


@needs_helm
def test_each_component_has_its_own_principal_from_a_file(tmp_path: Path) -> None:
    for name, secret in {"streams": "loop", "trainer": "for-trainer", "topics": "for-topics", "policy": "loop"}.items():
        kafka = settings_of("secured", name, tmp_path / name).kafka
        assert (kafka.sasl_mechanism, kafka.sasl_username) == ("SCRAM-SHA-512", f"{secret}/username")
        assert kafka.sasl_password == SecretStr(f"{secret}/password")
        assert str(kafka.ssl_ca_location) == "/etc/streamward/ca/ca.crt"
        assert (tmp_path / name / "etc/streamward/client/tls.key").exists()
        assert str(kafka.ssl_key_location) == "/etc/streamward/client/tls.key"


@needs_helm
def test_any_setting_may_come_from_a_secret(tmp_path: Path) -> None:
    assert settings_of("secured", "scoring", tmp_path).scoring.judge_key == SecretStr("judge/api-key")


@needs_helm
def test_settings_reach_the_processes_as_they_were_written(tmp_path: Path) -> None:
    settings = settings_of("settings", "policy", tmp_path)
    assert settings.kafka.client["client.rack"] == SecretStr('a "b" <c> $(HOME) $$')
    assert (settings.kafka.outage_s, settings.trainer.learning_rate, settings.trainer.off_policy) == (30, 1e-7, True)
    assert (settings.topics.partitions, settings.policy.engine, settings.policy.name) == (16, "scripted", "other")
    assert settings_of("settings", "trainer", tmp_path).policy.name == "default"


@needs_helm
def test_a_component_with_a_gpu_has_its_image_and_its_device(tmp_path: Path) -> None:
    (trainer,) = [one for one in of_kind("secured", "Deployment") if one["metadata"]["name"].endswith("-trainer")]
    (container,) = spec_of(trainer)["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["image"].endswith("-cuda")
    assert settings_of("secured", "trainer", tmp_path).model.device == "cuda"
    assert settings_of("secured", "policy", tmp_path).model.device == "cpu"


# --- every object ----------------------------------------------------------------------------------------------------


@needs_helm
@each_pair
def test_every_pod_is_what_pod_security_calls_restricted(case: str) -> None:
    for found in of_kind(case, *EVERY_POD):
        spec = spec_of(found)
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not any("hostPath" in volume for volume in spec["volumes"])


@needs_helm
@each_pair
def test_every_container_says_what_it_needs_and_which_image_exactly(case: str) -> None:
    for found in of_kind(case, *EVERY_POD):
        (container,) = spec_of(found)["containers"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]) and "memory" in container["resources"][
            "limits"
        ]
        assert re.search(r":v?\d+\.\d+\.\d+(-cpu|-cuda)?$|@sha256:[0-9a-f]{64}$", container["image"])
        probes = {"livenessProbe", "readinessProbe"} & set(container)
        assert len(probes) == (2 if found["kind"] in ("Deployment", "StatefulSet") and case != "bare" else 0)


@needs_helm
def test_probes_over_http_ask_the_port_that_is_named() -> None:
    for found in of_kind("object store", "Deployment"):
        (container,) = spec_of(found)["containers"]
        assert container["ports"] == [{"name": "metrics", "containerPort": 9200}]
        assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")} == {"/healthz"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


@needs_helm
@each_pair
def test_every_reference_leads_to_an_object_of_the_chart_or_to_one_that_the_values_name(case: str) -> None:
    there = {name_of(found) for found in objects(case)}
    for found in of_kind(case, *EVERY_POD):
        spec = spec_of(found)
        wanted = {f"ServiceAccount/{spec['serviceAccountName']}"}
        for volume in spec["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                wanted.add(f"Secret/{source['secret']['name']}")
            if "configMap" in volume:
                wanted.add(f"ConfigMap/{volume['configMap']['name']}")
            if "persistentVolumeClaim" in volume:
                wanted.add(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
            if "secret" in volume:
                wanted.add(f"Secret/{volume['secret']['secretName']}")
        assert {one for one in wanted - there if one.partition("/")[2] not in OUTSIDE} == set()
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
        assert {one["name"] for one in spec.get("imagePullSecrets", [])} <= OUTSIDE
    for found in of_kind(case, "HorizontalPodAutoscaler", "ScaledObject"):
        assert f"Deployment/{found['spec']['scaleTargetRef']['name']}" in there
    for found in of_kind(case, "StatefulSet"):
        assert f"Service/{found['spec']['serviceName']}" in there
    for found in of_kind(case, "Service"):
        (port,) = found["spec"]["ports"]
        chosen = [one for one in of_kind(case, "Deployment", "StatefulSet") if serves(one, found["spec"]["selector"])]
        named = [{port["name"] for port in spec_of(one)["containers"][0].get("ports", [])} for one in chosen]
        assert any(port["targetPort"] in names for names in named), name_of(found)


def serves(found: Object, selector: Object) -> bool:
    return selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()


@needs_helm
@each_pair
def test_a_hook_needs_nothing_that_comes_after_it(case: str) -> None:
    hooks = {
        name_of(found)
        for found in objects(case)
        if "pre-install" in (found["metadata"].get("annotations") or {}).get("helm.sh/hook", "")
    }
    for found in of_kind(case, "Job"):
        spec = spec_of(found)
        configs = {f"ConfigMap/{one['configMap']['name']}" for one in spec["volumes"] if "configMap" in one}
        assert configs | {f"ServiceAccount/{spec['serviceAccountName']}"} <= hooks
        if any(of_kind(case, "NetworkPolicy")):
            assert f"NetworkPolicy/{found['metadata']['name']}" in hooks, "that of the release before has other ports"


@needs_helm
@each_pair
def test_selectors_find_the_pods_of_their_own_component_and_no_others(case: str) -> None:
    sets = ("Deployment", "StatefulSet")
    pods = {name_of(found): found["spec"]["template"]["metadata"]["labels"] for found in of_kind(case, *sets)}
    for found in of_kind(case, *sets, "PodDisruptionBudget"):
        wanted = found["spec"]["selector"]["matchLabels"].items()
        chosen = [name.partition("/")[2] for name, labels in pods.items() if wanted <= labels.items()]
        assert chosen == [found["metadata"]["name"]]
    for found in of_kind(case, "NetworkPolicy"):
        wanted = found["spec"]["podSelector"]["matchLabels"].items()
        chosen = [name for name, labels in pods.items() if wanted <= labels.items()]
        own = {name: [pod for pod in pods if pod.endswith(f"-{name}")] for name in ("vllm", "serve", "trainer")}
        others = {**own, "topics": [], "schemas": []}
        assert chosen == others.get(found["metadata"]["name"].rpartition("-")[2], [*pods])


@needs_helm
@each_pair
def test_there_is_one_trainer_and_never_two_at_once(case: str) -> None:
    found = [one for one in of_kind(case, "Deployment", "RayJob") if "-trainer" in one["metadata"]["name"]]
    (trainer,) = found
    if trainer["kind"] == "RayJob":
        return
    count = 2 if "fleet" in VALUES.get(case, {}) else 1  # of a fleet each trains policies of its own
    assert trainer["spec"]["replicas"] == count and trainer["spec"]["strategy"] == {"type": "Recreate"}


@needs_helm
@each_pair
def test_no_two_objects_have_one_name_and_none_holds_a_secret(case: str) -> None:
    names = [name_of(found) for found in objects(case)]
    assert len(names) == len(set(names)) and not any(name.startswith("Secret/") for name in names)
    secrets = chart_files.secret_variables()
    assert "STREAMWARD_KAFKA__SASL_PASSWORD" in secrets
    for found in of_kind(case, *EVERY_POD):
        (container,) = spec_of(found)["containers"]
        variables = [variable["name"] for variable in container["env"]]
        assert len(variables) == len(set(variables)) and not secrets & set(variables)


@needs_helm
def test_the_network_policy_lets_every_port_of_the_brokers_out() -> None:
    found = {one["metadata"]["name"]: one["spec"] for one in of_kind("least", "NetworkPolicy")}
    assert found["one-streamward"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9464}]}]
    assert found["one-streamward-topics"]["ingress"] == []
    for spec in found.values():
        ports = {(port["protocol"], port["port"]) for rule in spec["egress"] for port in rule["ports"]}
        assert ports == {("UDP", 53), ("TCP", 53), ("TCP", 443), ("TCP", 9093), ("TCP", 9094)}


# --- values ----------------------------------------------------------------------------------------------------------


@needs_helm
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "kafka.bootstrap is not set"),
        ({**BOOTSTRAP, "replicas": 3}, "replicas"),
        ({**BOOTSTRAP, "trainer": {"replicas": 2}}, "replicas"),
        ({**BOOTSTRAP, "trainer": {"gpus": -1}}, "gpus"),
        (
            {**BOOTSTRAP, "fleet": {"enabled": True}, "trainer": {"replicas": 2, "ray": {"workers": 2}}},
            "several Pods on Ray are one trainer",
        ),
        ({**BOOTSTRAP, "trainer": {"ray": {"version": "2.x"}}}, "version"),
        (
            {**BOOTSTRAP, "trainer": {"gpus": 2, "settings": {"trainer": {"processes": 4}}}},
            "trainer.processes is determined by other values",
        ),
        ({**BOOTSTRAP, "images": {"model": {"tag": "latest"}}}, "tag"),
        ({**BOOTSTRAP, "trainer": {"autoscaling": {"kind": "hpa"}}}, "autoscaling"),
        ({**BOOTSTRAP, "scoring": {"autoscaling": {"kind": "hpa", "max": 9}}}, "more replicas would idle; lower max"),
        ({**BOOTSTRAP, "policy": {"autoscaling": {"kind": "hpa", "min": 4, "max": 2}}}, "lower min"),
        ({**BOOTSTRAP, "streams": {"autoscaling": {"kind": "keda"}}}, "autoscaling.prometheusUrl is not set"),
        (
            {
                **BOOTSTRAP,
                "streams": {"autoscaling": {"kind": "hpa"}},
                "metrics": {"port": 0},
                "probes": {"mode": "exec"},
            },
            "needs the processes' metrics",
        ),
        ({**BOOTSTRAP, "metrics": {"port": 0}}, "nothing would answer"),
        ({**BOOTSTRAP, "settings": {"metrics": {"port": 9000}}}, "metrics.port is determined by other values"),
        ({**BOOTSTRAP, "topics": {"kind": "strimzi"}}, "topics.strimzi.cluster is not set"),
        ({**BOOTSTRAP, "schemas": {"secret": "a"}}, "no effect without schemas.registryUrl"),
        ({**BOOTSTRAP, "settings": {"schemas": {"own_ids": False}}}, "no effect without schemas.registryUrl"),
        ({**BOOTSTRAP, "schemas": {"registryUrl": "http://a:8081", "caSecret": "a"}}, "schemas.caSecret has no effect"),
        ({**BOOTSTRAP, "schemas": {"registryUrl": "http://me:pass@a:8081"}}, "registryUrl"),
        (
            {
                **BOOTSTRAP,
                "schemas": {"registryUrl": "http://a:8081"},
                "streams": {"settings": {"schemas": {"registry_url": "http://b:8081"}}},
            },
            "schemas.registry_url is determined by other values",
        ),
        ({**BOOTSTRAP, "vllm": {"enabled": True, "servers": "http://a:8000"}}, "are mutually exclusive"),
        ({**BOOTSTRAP, "vllm": {"servers": "http://a:8000"}}, "needs vllm.shared.existingClaim"),
        ({**BOOTSTRAP, "vllm": {"image": {"tag": "latest"}}}, "tag"),
        ({**BOOTSTRAP, "vllm": {"enabled": True}}, "settings.model.base is not set"),
        ({"kafka": {"bootstrap": "kafka"}}, "bootstrap"),
        (
            {**BOOTSTRAP, "settings": {"kafka": {"bootstrap": "other:9092"}}},
            "kafka.bootstrap is determined by other values (kafka,",
        ),
        ({"kafka": {**BOOTSTRAP["kafka"], "securityProtocol": "SASL_SSL"}}, "kafka.sasl.mechanism is not set"),
        ({"kafka": {**BOOTSTRAP["kafka"], "sasl": {"secret": "loop"}}}, "kafka.sasl has no effect"),
        ({"kafka": {**BOOTSTRAP["kafka"], "tls": {"caSecret": "ca"}}}, "kafka.tls has no effect"),
        (
            {"kafka": {**SECURED["kafka"], "sasl": {"mechanism": "PLAIN"}}, "streams": {"saslSecret": "a"}},
            "set kafka.sasl.secret or",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_make_no_sense_are_refused_with_the_way_out(values: Object, says: str) -> None:
    done = helm(values)
    assert done.returncode != 0 and says in done.stderr


@needs_helm
def test_helm_finds_nothing_to_mend() -> None:
    assert HELM is not None
    done = subprocess.run(
        [HELM, "lint", "--strict", str(CHART), "--set", "kafka.bootstrap=kafka:9092"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_values_and_their_schema_name_the_same_keys_and_refuse_all_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(given: Object, rule: Object, where: str) -> Iterator[str]:
        rule = schema["definitions"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
        if "properties" not in rule or rule is schema["definitions"]["settings"]:
            return
        if rule["additionalProperties"] is not False:
            yield f"{where} is open"
        for key in set(given) ^ (set(rule["properties"]) - {"global"}):
            yield f"{where}.{key} is in one of the two"
        for key in set(given) & set(rule["properties"]):
            if isinstance(given[key], dict):
                yield from compare(given[key], rule["properties"][key], f"{where}.{key}")

    assert list(compare(values, schema, "values")) == []


def test_the_generated_files_of_the_chart_are_up_to_date() -> None:
    values = chart_files.VALUES.read_text(encoding="utf-8")
    advice = "run `python -m tests.support.deploy.chart_files`, and commit helm/"
    assert chart_files.PAGE.read_text(encoding="utf-8") == chart_files.page(values), advice
    assert chart_files.TOPICS.read_text(encoding="utf-8") == chart_files.topics_file(), advice
    schema = chart_files.SCHEMA.read_text(encoding="utf-8")
    assert schema == chart_files.schema(schema), advice


def test_the_page_tells_every_value() -> None:
    def leaves(given: Object, at: str = "") -> Iterator[str]:
        for key, value in given.items():
            yield from leaves(value, f"{at}{key}.") if isinstance(value, dict) and value else [f"{at}{key}"]

    text = chart_files.VALUES.read_text(encoding="utf-8")
    told = [row for part in chart_files.parts(text) for row in part.rows]
    missing = {
        path for path in leaves(yaml.safe_load(text)) if not any(f"{path}.".startswith(f"{row.path}.") for row in told)
    }
    assert missing == set()
    parts = chart_files.parts(text)
    assert [row.path for part in parts for row in part.rows if not row.says and not part.about] == []


def test_the_values_are_few_enough_to_read() -> None:
    assert len((CHART / "values.yaml").read_text(encoding="utf-8").splitlines()) < 300


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_compose_and_chart_run_the_same_commands_from_the_same_images() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    repositories = {image["repository"] for key, image in values["images"].items() if key in ("streams", "model")}
    assert repositories == {
        name for name in (service["image"].partition(":")[0] for service in compose.values()) if "streamward" in name
    }
    assert {"topics", "streams", "scoring", "policy", "trainer", "jobs", "tuner", "calls", "serve"} <= set(compose)
