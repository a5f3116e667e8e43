"""The parts of the chart: replicas by lag, topics by Strimzi, monitors, GPUs, helm test, vLLM, signed adapters.

    helm template ──► objects, held to streams/kafka/topics.py, the settings and the table of metrics

Not covered: what an operator (KEDA, Strimzi, Prometheus) does with its resources; whether their definitions take them
is asked in test_cluster.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from pydantic import SecretStr, ValidationError
from yaml import safe_load_all

from streams.errors import LogError, NotFoundError, RefusedError, SettingsError
from streams.evaluation import suite_tasks as evaluate
from streams.kafka import topics
from streams.observability import catalog
from streams.settings.model import Kafka, Schemas, Serve, Topics
from streams.stages.tasks import suites
from tests.support.deploy.command_lines import loaded
from tests.support.deploy.rendered_chart import (
    BOOTSTRAP,
    VALUES,
    Object,
    component,
    configs_of,
    each_case,
    helm,
    mounted,
    name_of,
    needs_helm,
    objects,
    of_kind,
    settings_of,
    spec_of,
)
from tests.support.thoroughness import examples

pytestmark = needs_helm


# --- replicas by lag -------------------------------------------------------------------------------------------------


def test_what_scales_has_no_replicas_of_its_own_and_the_rest_has() -> None:
    replicas = {name_of(one): one["spec"].get("replicas") for one in of_kind("scaled", "Deployment")}
    assert {name for name, count in replicas.items() if count is None} == {
        f"Deployment/one-streamward-{name}" for name in ("streams", "scoring", "policy", "serve")
    }
    scaled = {
        one["spec"]["scaleTargetRef"]["name"] for one in of_kind("scaled", "HorizontalPodAutoscaler", "ScaledObject")
    }
    assert scaled == {f"one-streamward-{name}" for name in ("streams", "scoring", "policy", "serve")}


@each_case
def test_a_trainer_never_scales(case: str) -> None:
    targets = [
        one["spec"]["scaleTargetRef"]["name"] for one in of_kind(case, "HorizontalPodAutoscaler", "ScaledObject")
    ]
    assert not [name for name in targets if name.endswith(("-trainer", "-audit", "-archive", "-vllm"))]


def test_an_hpa_goes_by_the_lag_of_each_pod() -> None:
    spec = component("scaled", "HorizontalPodAutoscaler", "policy")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 8)
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == catalog.LAG_RECORDS.name
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "50"}
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def test_keda_asks_prometheus_for_the_lag_of_that_component() -> None:
    spec = component("scaled", "ScaledObject", "scoring")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 12)
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus" and trigger["metadata"]["serverAddress"].endswith("svc:9090")
    wanted = f'sum({catalog.LAG_RECORDS.name}{{namespace="ns",pod=~"one-streamward-scoring-.+"}})'
    assert trigger["metadata"]["query"] == wanted
    assert trigger["metadata"]["threshold"] == "1000" and trigger["metadata"]["ignoreNullValues"] == "false"


def test_a_budget_goes_by_the_most_replicas() -> None:
    budgets = {name_of(one).rpartition("-")[2] for one in of_kind("scaled", "PodDisruptionBudget")}
    assert budgets == {"streams", "scoring", "policy", "jobs", "tuner", "calls", "curate", "serve"}
    assert {name_of(one).rpartition("-")[2] for one in of_kind("least", "PodDisruptionBudget")} == {
        "streams",
        "scoring",
    }


# --- topics ----------------------------------------------------------------------------------------------------------


def rendered_topics(found: Any) -> dict[str, tuple[int, int, dict[str, str]]]:
    """Return partitions, replicas and config of each KafkaTopic, by its name in Kafka."""
    specs = [one["spec"] for one in found if one is not None and one["kind"] == "KafkaTopic"]
    return {
        spec["topicName"]: (
            spec["partitions"],
            spec["replicas"],
            {key: str(value) for key, value in spec["config"].items()},
        )
        for spec in specs
    }


def wanted_topics(said: Topics) -> dict[str, tuple[int, int, dict[str, str]]]:
    """Return the same of what every process wants."""
    return {topic.name: (topic.partitions, said.replication, topic.config) for topic in topics.topics(said).values()}


@pytest.mark.parametrize("case", ["scaled", "vllm"])
def test_kafka_topics_are_those_of_the_program(case: str) -> None:
    said = Topics(**VALUES[case]["settings"]["topics"])
    assert rendered_topics(objects(case)) == wanted_topics(said)
    for one in of_kind(case, "KafkaTopic"):
        assert one["metadata"]["labels"]["strimzi.io/cluster"] == "events"
        assert one["metadata"].get("namespace") == ("kafka" if case == "scaled" else None)


@hypothesis_settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(
    said=st.fixed_dictionaries(
        {},
        optional={
            "prefix": st.from_regex(r"\A[a-z_.A-Z0-9-]{0,8}\Z"),
            "partitions": st.integers(1, 200),
            "policy_partitions": st.integers(1, 200),
            "replication": st.integers(1, 9),
            "retention_days": st.integers(0, 4000) | st.sampled_from([0.25, 1.5, 365.25]),
            "max_record_bytes": st.integers(1 << 16, 1 << 28),
        },
    )
)
def test_kafka_topics_are_those_of_the_program_for_any_settings(said: Object) -> None:
    values = {
        **BOOTSTRAP,
        "settings": {"topics": said},
        "topics": {"kind": "strimzi", "strimzi": {"cluster": "events"}},
    }
    done = helm(values, "--show-only", "templates/kafkatopics.yaml")
    assert done.returncode == 0, done.stderr
    assert rendered_topics(safe_load_all(done.stdout)) == wanted_topics(Topics(**said))


@each_case
def test_topics_are_made_in_one_way(case: str) -> None:
    kind = VALUES[case].get("topics", {}).get("kind", "job")
    assert any(name_of(one).endswith("-topics") for one in of_kind(case, "Job")) is (kind == "job")
    assert bool([*of_kind(case, "KafkaTopic")]) is (kind == "strimzi")


@each_case
def test_what_cannot_be_made_again_outlives_the_release(case: str) -> None:
    for one in of_kind(case, "KafkaTopic", "PersistentVolumeClaim"):
        is_kept = one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
        assert is_kept is not one["metadata"]["name"].endswith("-served")


@pytest.mark.parametrize(
    ("there", "version"),
    [([], "v1"), (["v1beta2"], "v1beta2"), (["v1beta2", "v1"], "v1"), (["v1"], "v1")],
    ids=["unknown", "old", "both", "new"],
)
def test_kafka_topics_have_the_newest_version_that_the_cluster_knows(there: list[str], version: str) -> None:
    values = {**BOOTSTRAP, "topics": {"kind": "strimzi", "strimzi": {"cluster": "events"}}}
    known = [argument for one in there for argument in ("--api-versions", f"kafka.strimzi.io/{one}")]
    found = [one for one in safe_load_all(helm(values, *known).stdout) if one is not None]
    assert {one["apiVersion"] for one in found if one["kind"] == "KafkaTopic"} == {f"kafka.strimzi.io/{version}"}


# --- the archive -----------------------------------------------------------------------------------------------------


def test_the_archive_follows_the_log_into_a_volume_that_outlives_the_release(tmp_path: Path) -> None:
    found = component("scaled", "Deployment", "archive")
    assert found["spec"]["replicas"] == 1 and found["spec"]["strategy"] == {"type": "Recreate"}
    spec = spec_of(found)
    (container,) = spec["containers"]
    assert "--follow" in container["args"] and container["image"].endswith("-cpu")
    said = settings_of("scaled", "archive", tmp_path)
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == said.archive.store]
    (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert (
        volume["persistentVolumeClaim"]["claimName"]
        == component("scaled", "PersistentVolumeClaim", "archive")["metadata"]["name"]
    )
    assert said.archive.follow_s == 300 and said.metrics.port == 9464


@pytest.mark.parametrize(("policy", "trainer", "kind"), [(0, 0, "cpu"), (0, 1, "cpu"), (1, 0, "cpu"), (1, 2, "cuda")])
def test_the_archive_takes_an_image_that_policy_or_trainer_have(policy: int, trainer: int, kind: str) -> None:
    values = {**BOOTSTRAP, "archive": {"enabled": True}, "policy": {"gpus": policy}, "trainer": {"gpus": trainer}}
    found = [one for one in safe_load_all(helm(values).stdout) if one is not None and one["kind"] == "Deployment"]
    images = {one["metadata"]["name"].rpartition("-")[2]: spec_of(one)["containers"][0]["image"] for one in found}
    assert images["archive"].endswith(f"-{kind}") and images["archive"] in (images["policy"], images["trainer"])


def test_an_archive_in_an_object_store_has_credentials_of_its_own(tmp_path: Path) -> None:
    assert settings_of("object store", "archive", tmp_path / "archive").archive.store == "s3://bucket/archive"
    settings_of("object store", "trainer", tmp_path / "trainer")
    read = {name: (tmp_path / name / "etc/streamward/store/credentials").read_text() for name in ("archive", "trainer")}
    assert read == {"archive": "aws-archive/credentials", "trainer": "aws/credentials"}
    assert not any(
        one["metadata"]["name"].endswith("-archive") for one in of_kind("object store", "PersistentVolumeClaim")
    )


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_controllers_of_jobs_share_them_and_are_replaced_one_by_one(tmp_path: Path) -> None:
    found = component("scaled", "Deployment", "jobs")
    assert found["spec"]["replicas"] == 2 and "Recreate" not in str(found["spec"]["strategy"])
    (container,) = spec_of(found)["containers"]
    assert container["args"] == ["jobs", "run"] and container["image"].startswith("streamward-streams:")
    assert component("scaled", "PodDisruptionBudget", "jobs")["spec"]["maxUnavailable"] == 1
    assert settings_of("scaled", "jobs", tmp_path).metrics.port == 9464
    assert not any(name_of(one).endswith("-jobs") for one in objects("bare"))


def test_who_tunes_has_the_store_the_key_and_a_place_for_the_model_and_none_of_the_trainers_checkpoints(
    tmp_path: Path,
) -> None:
    found = component("scaled", "Deployment", "tuner")
    assert found["spec"]["replicas"] == 2 and "Recreate" not in str(found["spec"]["strategy"])
    (container,) = spec_of(found)["containers"]
    assert container["args"] == ["tune", "--jobs"] and container["image"].endswith("-cpu")
    assert {probe: container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    claims = {
        one["persistentVolumeClaim"]["claimName"]
        for one in spec_of(found)["volumes"]
        if len(one) == 2 and "persistentVolumeClaim" in one
    }
    assert claims == {"one-streamward-adapters"}
    settings = settings_of("scaled", "tuner", tmp_path)
    assert (settings.metrics.port, str(settings.adapters.signing_key)) == (9464, "/etc/streamward/signing/adapters.key")
    assert not any(name_of(one).endswith("-tuner") for one in objects("least"))


def test_the_worker_of_training_loops_has_the_key_and_the_volumes_of_versions_and_of_states(tmp_path: Path) -> None:
    deployment = component("scaled", "Deployment", "calls")
    assert deployment["spec"]["replicas"] == 2 and "Recreate" not in str(deployment["spec"]["strategy"])
    (container,) = spec_of(deployment)["containers"]
    assert container["args"] == ["calls"] and container["image"].endswith("-cpu")
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec_of(deployment)["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"one-streamward-adapters", "one-streamward-checkpoints"}
    settings = settings_of("scaled", "calls", tmp_path)
    assert (settings.metrics.port, str(settings.adapters.signing_key)) == (9464, "/etc/streamward/signing/adapters.key")
    assert not any(name_of(each).endswith("-calls") for each in objects("least"))


# --- the server, and fleets -------------------------------------------------------------------------------------------


def test_one_server_of_the_chart_ends_before_its_successor_starts(tmp_path: Path) -> None:
    found = component("fleet", "Deployment", "serve")
    assert found["spec"]["replicas"] == 1 and found["spec"]["strategy"] == {"type": "Recreate"}
    said = settings_of("fleet", "serve", tmp_path)
    assert said.serve.peer_url == "" and said.serve.address_connections == Serve().address_connections
    assert "lifecycle" not in spec_of(found)["containers"][0]
    assert not [*of_kind("fleet", "HorizontalPodAutoscaler")]


@pytest.mark.parametrize(("case", "replicas"), [("vllm", 3), ("scaled", None)])
def test_each_of_several_servers_tells_the_others_where_it_is(case: str, replicas: int | None, tmp_path: Path) -> None:
    found = component(case, "Deployment", "serve")
    assert found["spec"].get("replicas") == replicas
    assert found["spec"]["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    (container,) = spec_of(found)["containers"]
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert container["env"][0] == pod_ip, "a reference reads variables before it"
    assert container["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    said = settings_of(case, "serve", tmp_path).serve
    assert (said.peer_url, said.address_connections) == ("http://0.0.0.0:8790", 0)
    (out,) = [one for one in of_kind(case, "NetworkPolicy") if name_of(one) == "NetworkPolicy/one-streamward"]
    assert {"protocol": "TCP", "port": 8790} in out["spec"]["egress"][0]["ports"]
    assert component(case, "PodDisruptionBudget", "serve")["spec"]["maxUnavailable"] == 1


def test_servers_scale_by_the_cpu_that_they_ask_for() -> None:
    spec = component("scaled", "HorizontalPodAutoscaler", "serve")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 3)
    target = {"type": "Utilization", "averageUtilization": 70}
    assert spec["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    assert spec_of(component("scaled", "Deployment", "serve"))["containers"][0]["resources"]["requests"]["cpu"] == "1"


def test_the_server_asks_for_keys_where_its_service_sends_them(tmp_path: Path) -> None:
    found, service = (component("scaled", kind, "serve") for kind in ("Deployment", "Service"))
    said = settings_of("scaled", "serve", tmp_path)
    assert (said.serve.host, said.serve.port, said.serve.auth) == ("0.0.0.0", 8790, "keys")  # noqa: S104
    (container,) = spec_of(found)["containers"]
    assert {"name": "http", "containerPort": 8790} in container["ports"]
    assert service["spec"]["ports"] == [{"name": "http", "port": 8790, "targetPort": "http"}]
    assert service["spec"]["selector"].items() <= found["spec"]["template"]["metadata"]["labels"].items()
    assert str(said.adapters.verify_key) == "/etc/streamward/signing/adapters.pub" and said.adapters.signing_key is None
    with pytest.raises(ValidationError, match="without keys any client may call it"):
        Serve(host=said.serve.host)


def test_an_ingress_ends_tls_where_people_are_sent_to_log_in(tmp_path: Path) -> None:
    ingress = component("scaled", "Ingress", "serve")["spec"]
    assert ingress["tls"] == [{"hosts": ["streamward.example.org"], "secretName": "certificate"}]
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("streamward.example.org", "/")
    assert path["backend"]["service"] == {"name": "one-streamward-serve", "port": {"name": "http"}}
    people = dict(settings_of("scaled", "serve", tmp_path))["people"]
    assert (people.public_url, str(people.signing_key)) == (
        "https://streamward.example.org",
        "/etc/streamward/login/signing.pem",
    )
    assert (tmp_path / "etc/streamward/login/signing.pem").read_text() == "login/signing.pem"
    of_fleet = dict(settings_of("fleet", "serve", tmp_path / "2"))["people"]
    assert not [*of_kind("fleet", "Ingress")] and of_fleet.signing_key is None


def test_only_the_server_is_reached_at_its_port() -> None:
    found = component("scaled", "NetworkPolicy", "serve")["spec"]
    reached = [
        name_of(one)
        for one in of_kind("scaled", "Deployment")
        if found["podSelector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert reached == ["Deployment/one-streamward-serve"]
    assert found["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8790}]}]


def test_a_fleet_is_every_process_that_holds_the_base_model(tmp_path: Path) -> None:
    args = {
        one["metadata"]["name"].rpartition("-")[2]: spec_of(one)["containers"][0]["args"]
        for one in of_kind("fleet", "Deployment")
    }
    assert {name for name, told in args.items() if "--fleet" in told} == {"policy", "trainer", "serve"}
    trainer = component("fleet", "Deployment", "trainer")["spec"]
    assert trainer["replicas"] == 2 and component("fleet", "PodDisruptionBudget", "trainer")["spec"]["maxUnavailable"]
    (claim,) = [one for one in of_kind("fleet", "PersistentVolumeClaim") if name_of(one).endswith("-checkpoints")]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert settings_of("fleet", "trainer", tmp_path).fleet.policies == "math-*"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"trainer": {"replicas": 2}}, "trainer.replicas is 2: one trainer makes the versions of one policy"),
        (
            {"fleet": {"enabled": True}, "settings": {"policy": {"name": "a"}}},
            "policy.name is a and fleet.enabled true",
        ),
        ({"serve": {"enabled": True, "ingress": {"enabled": True}}}, "serve.ingress.host is not set"),
        (
            {"serve": {"enabled": True, "settings": {"serve": {"auth": "none"}}}},
            "settings: serve.auth is determined by",
        ),
        (
            {"serve": {"enabled": True, "replicas": 2, "settings": {"serve": {"peer_url": "http://me:1"}}}},
            "settings: serve.peer_url is determined by",
        ),
        (
            {"serve": {"enabled": True, "autoscaling": {"kind": "hpa", "min": 5}}},
            "serve.autoscaling.min is 5 and max 4",
        ),
    ],
)
def test_what_cannot_be_together_is_said_before_anything_starts(values: Object, said: str) -> None:
    done = helm({**BOOTSTRAP, **values})
    assert done.returncode != 0 and said in done.stderr


# --- a Schema Registry ------------------------------------------------------------------------------------------------


def test_schemas_are_registered_before_any_process_and_after_the_topics() -> None:
    jobs = {
        one["metadata"]["name"].rpartition("-")[2]: one["metadata"]["annotations"] for one in of_kind("registry", "Job")
    }
    assert {jobs[name]["helm.sh/hook"] for name in ("topics", "schemas")} == {"pre-install,pre-upgrade"}
    weights = [int(jobs[name]["helm.sh/hook-weight"]) for name in ("topics", "schemas")]
    assert weights == sorted(weights) and weights[0] != weights[1]
    assert not any(one["metadata"]["name"].endswith("-schemas") for one in objects("registry by others"))


def test_what_no_other_try_can_change_ends_a_hook_at_once() -> None:
    decisions = {error.exit_code for error in (SettingsError, NotFoundError, RefusedError)}
    for job in of_kind("registry", "Job"):
        (rule,) = job["spec"]["podFailurePolicy"]["rules"]
        (container,) = spec_of(job)["containers"]
        assert rule["action"] == "FailJob" and rule["onExitCodes"]["containerName"] == container["name"]
        assert set(rule["onExitCodes"]["values"]) == decisions and LogError.exit_code not in decisions


@pytest.mark.parametrize("name", ["streams", "scoring", "policy", "trainer", "jobs", "audit", "test", "schemas"])
def test_every_process_asks_the_registry_as_its_own_user_with_files(name: str, tmp_path: Path) -> None:
    said = settings_of("registry", name, tmp_path).schemas
    user = "registers" if name == "schemas" else "reads"
    assert said.registry_url == VALUES["registry"]["schemas"]["registryUrl"] and said.own_ids is False
    assert (said.registry_username, said.registry_password) == (f"{user}/username", SecretStr(f"{user}/password"))
    assert said.registry_ca_location == Path("/etc/streamward/registry/ca.crt")
    assert (tmp_path / "etc/streamward/registry/ca.crt").read_text() == "registry-authority/ca.crt"


def test_who_registers_has_no_password_of_kafka_and_who_makes_topics_none_of_the_registry(tmp_path: Path) -> None:
    schemas, made = (settings_of("registry", name, tmp_path / name) for name in ("schemas", "topics"))
    assert schemas.kafka == Kafka() and schemas.topics == made.topics == Topics(prefix="rl.")
    assert made.schemas == Schemas() and made.kafka.sasl_username == "for-topics/username"
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert not any(file.startswith(("schemas/etc/streamward/sasl", "topics/etc/streamward/registry")) for file in files)


def test_ports_of_what_the_values_name_are_let_out() -> None:
    """The registry's, the judge's, those of collectors of traces, for all and for one component."""
    named = {"registry": {443, 8443, 8100}, "registry by others": {8081}, "settings": {4318, 14318}, "secured": {8100}}
    for case, wanted in named.items():
        for one in of_kind(case, "NetworkPolicy"):
            assert wanted <= {port["port"] for rule in one["spec"]["egress"] for port in rule["ports"]}


# --- who is looked at ------------------------------------------------------------------------------------------------


@each_case
def test_every_process_listens_where_its_pod_says(case: str, tmp_path: Path) -> None:
    for one in of_kind(case, "Deployment"):
        name = one["metadata"]["labels"]["app.kubernetes.io/component"]
        (container,) = spec_of(one)["containers"]
        ports = [port["containerPort"] for port in container.get("ports", [])]
        if name == "audit":
            assert container["args"][container["args"].index("--listen") + 1] == f"0.0.0.0:{ports[0]}"
            continue
        said = settings_of(case, name, tmp_path / name)
        metrics = said.metrics
        assert ports == ([] if case == "bare" else [metrics.port, *([said.serve.port] if name == "serve" else [])])
        assert metrics.host == ("127.0.0.1" if case == "bare" else "0.0.0.0")  # noqa: S104


def test_a_pod_monitor_finds_every_process_by_its_port() -> None:
    (monitor,) = of_kind("scaled", "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for one in of_kind("scaled", "Deployment"):
        template = one["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]


def test_a_service_monitor_finds_one_service_and_that_every_process() -> None:
    (monitor,) = of_kind("vllm", "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [one for one in of_kind("vllm", "Service") if wanted <= one["metadata"]["labels"].items()]
    assert [port["name"] for port in service["spec"]["ports"]] == [monitor["spec"]["endpoints"][0]["port"]]
    assert service["spec"]["clusterIP"] == "None"
    for one in of_kind("vllm", "Deployment"):
        assert service["spec"]["selector"].items() <= one["spec"]["template"]["metadata"]["labels"].items()


@each_case
def test_liveness_does_not_ask_for_the_broker(case: str) -> None:
    for one in of_kind(case, "Deployment"):
        (container,) = spec_of(one)["containers"]
        for probe in ("livenessProbe", "startupProbe"):
            assert "readyz" not in str(container.get(probe)) and "topics" not in str(container.get(probe))


# --- the trainer -----------------------------------------------------------------------------------------------------


def test_a_trainer_with_several_gpus_is_as_many_processes(tmp_path: Path) -> None:
    done = helm({**BOOTSTRAP, "trainer": {"gpus": 4}})
    found = [one for one in safe_load_all(done.stdout) if one is not None]
    configs = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    pods = {one["metadata"]["name"].rpartition("-")[2]: spec_of(one) for one in found if one["kind"] == "Deployment"}
    processes = {name: loaded(mounted(spec, configs, tmp_path / name)).trainer.processes for name, spec in pods.items()}
    assert processes == {"streams": 1, "scoring": 1, "policy": 1, "jobs": 1, "trainer": 4}
    assert pods["trainer"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4


# --- helm test ------------------------------------------------------------------------------------------------------


def test_the_round_trip_of_helm_test_is_a_suite(tmp_path: Path) -> None:
    (found,) = of_kind("least", "Pod")
    mounted(spec_of(found), configs_of("least"), tmp_path)
    (container,) = spec_of(found)["containers"]
    suite = suites.load(tmp_path / container["args"][container["args"].index("--suite") + 1][1:], Topics())
    assert len(suite.questions) == 4 and suite.name.startswith("one-revision-1@")


def test_helm_test_asks_each_revision_anew(tmp_path: Path) -> None:
    (found,) = [one for one in of_kind("least", "ConfigMap") if one["metadata"]["name"].endswith("-test")]
    asked = []
    for revision in (1, 2):
        file = tmp_path / f"{revision}.yaml"
        file.write_text(found["data"]["suite.yaml"].replace("revision-1", f"revision-{revision}"))
        questions = evaluate.in_turns(suites.load(file, Topics()), policy="default", versions=[0], now_ms=0)
        asked.append({task.task_id for task in questions})
    assert asked[0].isdisjoint(asked[1])


# --- vLLM, signatures ------------------------------------------------------------------------------------------------


def test_the_policy_asks_each_server_by_its_own_name(tmp_path: Path) -> None:
    policy = settings_of("vllm", "policy", tmp_path).policy
    (servers,) = of_kind("vllm", "StatefulSet")
    service = servers["spec"]["serviceName"]
    assert policy.engine == "vllm" and servers["spec"]["replicas"] == 2
    assert policy.server_urls == tuple(f"http://{servers['metadata']['name']}-{i}.{service}:8000" for i in range(2))
    assert settings_of("vllm", "trainer", tmp_path).policy.engine == "transformers"


def test_a_server_serves_the_base_of_the_settings_and_adapters_of_the_trainer(tmp_path: Path) -> None:
    (servers,) = of_kind("vllm", "StatefulSet")
    (container,) = spec_of(servers)["containers"]
    settings = settings_of("vllm", "trainer", tmp_path)
    said = dict(argument.removeprefix("--").partition("=")[::2] for argument in container["args"])
    assert (said["model"], said["dtype"]) == (settings.model.base, settings.model.dtype)
    assert int(said["max-lora-rank"]) == settings.trainer.lora_rank == 16
    assert said["tensor-parallel-size"] == "2" and container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert said["max-model-len"] == "2048" and "enable-lora" in said
    assert {"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "1"} in container["env"]


def test_without_more_settings_a_server_is_as_the_trainer_is_by_default(tmp_path: Path) -> None:
    values = {**BOOTSTRAP, "vllm": {"enabled": True}, "settings": {"model": {"base": "example/model"}}}
    done = helm(values, "--show-only", "templates/vllm.yaml")
    (servers,) = [one for one in safe_load_all(done.stdout) if one is not None and one["kind"] == "StatefulSet"]
    (container,) = spec_of(servers)["containers"]
    settings = settings_of("least", "trainer", tmp_path)
    wanted = {f"--dtype={settings.model.dtype}", f"--max-lora-rank={settings.trainer.lora_rank}"}
    assert wanted <= set(container["args"])


@pytest.mark.parametrize("case", ["vllm", "other servers"])
def test_policy_and_servers_share_the_folder_of_adapters(case: str, tmp_path: Path) -> None:
    folder = settings_of(case, "policy", tmp_path).policy.server_folder
    found = [component(case, "Deployment", "policy"), *of_kind(case, "StatefulSet")]
    claims = set()
    for one in found:
        spec = spec_of(one)
        (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == str(folder)]
        (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
        claims.add(volume["persistentVolumeClaim"]["claimName"])
    assert claims == {"served" if case == "other servers" else "one-streamward-served"}


def test_servers_of_a_fleet_hold_as_many_adapters_as_it_serves() -> None:
    wanted = {False: ("2", "8"), True: ("4", "32")}
    for is_fleet, loras in wanted.items():
        values = {
            **BOOTSTRAP,
            "fleet": {"enabled": is_fleet},
            "vllm": {"enabled": True},
            "settings": {"model": {"base": "example/model"}, "fleet": {"states": 32}},
        }
        found = [one for one in safe_load_all(helm(values).stdout) if one is not None]
        (servers,) = [one for one in found if one["kind"] == "StatefulSet"]
        args = dict(one.removeprefix("--").partition("=")[::2] for one in spec_of(servers)["containers"][0]["args"])
        assert (args["max-loras"], args["max-cpu-loras"]) == loras


def test_only_agents_get_through_to_the_servers() -> None:
    (found,) = [one for one in of_kind("vllm", "NetworkPolicy") if one["metadata"]["name"].endswith("-vllm")]
    (rule,) = found["spec"]["ingress"]
    selectors = [source["podSelector"]["matchLabels"].items() for source in rule["from"]]
    let_in = [
        name_of(one)
        for one in of_kind("vllm", "Deployment")
        if any(selector <= one["spec"]["template"]["metadata"]["labels"].items() for selector in selectors)
    ]
    assert let_in == ["Deployment/one-streamward-policy", "Deployment/one-streamward-serve"] and rule["ports"] == [
        {"protocol": "TCP", "port": 8000}
    ]


def test_ports_of_servers_elsewhere_are_let_out() -> None:
    (found,) = [one for one in of_kind("other servers", "NetworkPolicy") if one["metadata"]["name"] == "one-streamward"]
    assert {443, 8001} <= {port["port"] for rule in found["spec"]["egress"] for port in rule["ports"]}


def test_the_trainer_has_the_private_key_and_agents_the_public_one(tmp_path: Path) -> None:
    trainer, policy = (settings_of("scaled", name, tmp_path / name).adapters for name in ("trainer", "policy"))
    assert trainer.verify_key is None and policy.signing_key is None
    assert str(trainer.signing_key) == "/etc/streamward/signing/adapters.key"
    assert str(policy.verify_key) == "/etc/streamward/signing/adapters.pub"
    assert (tmp_path / "trainer/etc/streamward/signing/adapters.key").read_text() == "private/adapters.key"
    assert (tmp_path / "policy/etc/streamward/signing/adapters.pub").read_text() == "public/adapters.pub"
    for name in ("streams", "scoring", "audit"):
        volumes = {volume["name"] for volume in spec_of(component("scaled", "Deployment", name))["volumes"]}
        assert "signing" not in volumes
