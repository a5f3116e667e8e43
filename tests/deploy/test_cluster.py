"""The chart on a real API server: what is accepted, and what install, test, upgrade, roll-back and uninstall do.

    KUBECONFIG, helm, kubectl ──► a namespace of the test's own, Pod Security restricted ──► gone again

Runs with `make test-deploy` only, since KUBECONFIG may name a cluster that is somebody's. The life of a release is for
clusters whose kubelets are fake (kwok: no image is started, the tag says what becomes of a Pod); what the API server
accepts is asked of any.

Not covered: containers, so neither probes nor mounts nor the network policy; those commands, environments and files are
held to the program in test_chart.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.kafka.topics import LABELS
from tests import skips
from tests.support.deploy.previous_release import first
from tests.support.deploy.rendered_chart import CHART, OUTSIDE, VALUES, Object, helm as rendered

pytestmark = pytest.mark.cluster

OPT_IN = "TEST_CLUSTER"
SHORT = "--timeout=15s"


def _why_not() -> str | None:
    if os.environ.get(OPT_IN) != "1":
        return skips.CLUSTER
    if any(shutil.which(name) is None for name in ("helm", "kubectl")):
        return skips.CLUSTER
    if subprocess.run(["kubectl", "get", "--raw", "/readyz"], capture_output=True).returncode != 0:
        return skips.needs("a cluster that answers at KUBECONFIG", "make test-deploy")
    return None


def run(*command: str, text: str | None = None, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command, and hold it to its exit code."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode != 0) is fails, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done


def listed(namespace: str, kinds: str, *arguments: str) -> list[Object]:
    """Return the objects of these kinds."""
    found: list[Object] = json.loads(run("kubectl", "-n", namespace, "get", kinds, "-o", "json", *arguments).stdout)[
        "items"
    ]
    return found


@pytest.fixture(scope="module")
def nodes() -> list[Object]:
    """The cluster's nodes."""
    if why := _why_not():
        pytest.skip(why)
    items: list[Object] = json.loads(run("kubectl", "get", "nodes", "-o", "json").stdout)["items"]
    return items


@pytest.fixture
def fake(nodes: list[Object]) -> None:
    """A cluster whose kubelets start nothing."""
    if not all(node["status"]["nodeInfo"]["kubeletVersion"] in ("fake", "kwok") for node in nodes):
        pytest.skip("NOT RUN: the cluster has real kubelets, and the life of a release is for fake ones (kwok)")


@pytest.fixture
def namespace(nodes: list[Object]) -> Iterator[str]:
    """A namespace of the test's own that admits restricted Pods only."""
    name = f"streamward-test-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    run("kubectl", "apply", "-f", "-", text=json.dumps(made))
    yield name
    run("kubectl", "delete", "namespace", name, "--wait=false")


def release(
    verb: str, namespace: str, *arguments: str, values: Any = None, chart_at: Path = CHART, fails: bool = False
) -> str:
    """Run a verb of helm on release `one` and return what it said, warnings included."""
    chart = [str(chart_at), "--values", "-"] if verb in ("install", "upgrade") else []
    text = json.dumps(values or VALUES["least"]) if chart else None
    done = run("helm", verb, "one", *chart, "--namespace", namespace, *arguments, text=text, fails=fails)
    return done.stdout + done.stderr


def templates(namespace: str) -> dict[str, Object]:
    """Return the Pod template of each component."""
    return {
        found["metadata"]["name"].rpartition("-")[2]: found["spec"]["template"]
        for found in listed(namespace, "deployments")
    }


def known(found: list[Object]) -> tuple[list[Object], set[str]]:
    """Return the objects whose kinds the cluster knows, in no namespace of their own, and the other kinds."""
    versions = set(run("kubectl", "api-versions").stdout.split())
    for one in found:
        one["metadata"].pop("namespace", None)
    strange = {one["kind"] for one in found if one["apiVersion"] not in versions}
    return [one for one in found if one["kind"] not in strange], strange


def with_accounts(namespace: str, text: str) -> list[Object]:
    """Return the rendered objects; the accounts, without which no Pod is admitted, are made."""
    found = [one for one in yaml.safe_load_all(text) if one is not None]
    accounts = {"apiVersion": "v1", "kind": "List", "items": [one for one in found if one["kind"] == "ServiceAccount"]}
    run("kubectl", "-n", namespace, "apply", "-f", "-", text=json.dumps(accounts))
    return found


@pytest.mark.parametrize("case", VALUES)
def test_the_api_server_takes_every_object_as_it_is(case: str, namespace: str) -> None:
    wanted, strange = known(with_accounts(namespace, rendered(VALUES[case]).stdout))
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted})
    done = run(
        *("kubectl", "-n", namespace, "apply", "--dry-run=server", "--validate=strict", "-f", "-"), text=everything
    )
    assert len(done.stdout.splitlines()) == len(wanted)
    assert "would violate PodSecurity" not in done.stderr
    if strange:
        pytest.skip(f"NOT RUN for {', '.join(sorted(strange))}: the cluster has no definition of them; the rest passed")


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("KafkaTopic", {"partitions": 0}),
        ("ScaledObject", {"triggers": "none"}),
        ("PodMonitor", {"podMetricsEndpoints": [{"interval": "often"}]}),
        ("HorizontalPodAutoscaler", {"maxReplicas": 0}),
    ],
)
def test_a_resource_that_is_wrong_would_be_refused(kind: str, spoil: Object, namespace: str) -> None:
    found, strange = known([one for one in yaml.safe_load_all(rendered(VALUES["scaled"]).stdout) if one is not None])
    if kind in strange:
        pytest.skip(f"NOT RUN: the cluster has no definition of {kind}")
    one = next(one for one in found if one["kind"] == kind)
    one["spec"] |= spoil
    run("kubectl", "-n", namespace, "apply", "--dry-run=server", "-f", "-", text=json.dumps(one), fails=True)


def test_a_pod_that_is_not_restricted_would_be_refused(namespace: str) -> None:
    found = with_accounts(namespace, rendered(VALUES["least"]).stdout)
    (pod,) = [one for one in found if one["kind"] == "Pod"]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    done = run("kubectl", "-n", namespace, "apply", "--dry-run=server", "-f", "-", text=json.dumps(pod), fails=True)
    assert "violates PodSecurity" in done.stderr


@pytest.mark.usefixtures("fake")
def test_a_release_is_installed_tested_upgraded_rolled_back_and_uninstalled(namespace: str) -> None:
    said = release("install", namespace, "--wait", SHORT)
    assert "violate" not in said
    before = templates(namespace)
    assert set(before) == {"streams", "scoring", "policy", "trainer", "jobs"}
    assert all(
        found["status"]["readyReplicas"] == found["spec"]["replicas"] for found in listed(namespace, "deployments")
    )
    assert listed(namespace, "jobs") == [], "the hook's Job goes when it is done"
    assert "Phase:          Succeeded" in release("test", namespace, SHORT)

    values = {**VALUES["least"], "scoring": {"settings": {"scoring": {"timeout_s": 20}}}}
    release("upgrade", namespace, "--wait", SHORT, values=values)
    after = templates(namespace)
    assert {name for name in after if after[name] != before[name]} == {"scoring"}, "only what changed starts again"

    release("rollback", namespace, "--wait", SHORT)
    assert templates(namespace) == before

    release("uninstall", namespace, "--wait", SHORT)
    kept = {found["metadata"]["name"] for found in listed(namespace, "deployments,pvc,networkpolicies,pdb")}
    assert kept == {"one-streamward-adapters", "one-streamward-checkpoints"}
    release("install", namespace, "--wait", SHORT)
    assert templates(namespace) == before, "a release of the same name finds its volumes again"


@pytest.mark.usefixtures("fake")
def test_an_upgrade_whose_topics_fail_changes_no_process(namespace: str) -> None:
    release("install", namespace, "--wait", SHORT)
    before = templates(namespace)
    values = {**VALUES["least"], "images": {"streams": {"tag": "fail"}}}
    said = release("upgrade", namespace, "--wait", "--timeout=5s", values=values, fails=True)
    assert "pre-upgrade hooks failed" in said
    assert templates(namespace) == before
    release("upgrade", namespace, "--wait", SHORT)


@pytest.mark.usefixtures("fake")
def test_an_upgrade_whose_schemas_are_refused_changes_no_process(namespace: str) -> None:
    """Topics are not made here, so that the Job that fails is the one that registers."""
    values = {
        **VALUES["least"],
        "topics": {"kind": "none"},
        "schemas": {"registryUrl": "http://schemas.example.com:8081", "secret": "reads"},
    }
    release("install", namespace, "--wait", SHORT, values=values)
    assert listed(namespace, "jobs") == []
    before = templates(namespace)
    broken = {**values, "images": {"streams": {"tag": "fail"}}}
    said = release("upgrade", namespace, "--wait", "--timeout=5s", values=broken, fails=True)
    assert "pre-upgrade hooks failed" in said
    assert {one["metadata"]["name"] for one in listed(namespace, "jobs")} == {"one-streamward-schemas"}
    assert templates(namespace) == before
    release("upgrade", namespace, "--wait", SHORT, values=values)
    assert listed(namespace, "jobs") == []


@pytest.mark.usefixtures("fake")
def test_an_upgrade_that_does_not_get_ready_can_roll_itself_back(namespace: str) -> None:
    release("install", namespace, "--wait", SHORT)
    before = templates(namespace)
    values = {**VALUES["least"], "images": {"model": {"tag": "unready"}}}
    release("upgrade", namespace, "--rollback-on-failure", "--wait", "--timeout=8s", values=values, fails=True)
    assert templates(namespace) == before
    last = json.loads(release("history", namespace, "--output", "json"))[-1]
    assert last["status"] == "deployed" and last["description"].startswith("Rollback")


@pytest.mark.usefixtures("fake")
def test_a_trainer_with_a_gpu_is_put_where_there_is_one(namespace: str, nodes: list[Object]) -> None:
    having = {node["metadata"]["name"] for node in nodes if int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))}
    if not having:
        pytest.skip("NOT RUN: no node of the cluster has nvidia.com/gpu")
    release("install", namespace, "--wait", SHORT, values={**VALUES["least"], "trainer": {"gpus": 1}})
    (trainer,) = listed(namespace, "pods", "-l", "app.kubernetes.io/component=trainer")
    assert trainer["spec"]["nodeName"] in having
    assert trainer["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.usefixtures("fake")
def test_a_service_account_may_do_nothing_in_the_cluster(namespace: str) -> None:
    release("install", namespace, "--wait", SHORT)
    for account in listed(namespace, "serviceaccounts"):
        who = f"system:serviceaccount:{namespace}:{account['metadata']['name']}"
        for verb, kind in (("get", "secrets"), ("list", "pods"), ("create", "pods"), ("patch", "deployments")):
            done = run("kubectl", "-n", namespace, "auth", "can-i", verb, kind, f"--as={who}", fails=True)
            assert done.stdout.strip() == "no"


@pytest.mark.usefixtures("fake")
def test_a_secured_release_names_secrets_that_it_does_not_make(namespace: str) -> None:
    release("install", namespace, "--wait", SHORT, values=VALUES["secured"])
    made = {found["metadata"]["name"] for found in listed(namespace, "secrets", "--field-selector", "type=Opaque")}
    assert made & OUTSIDE == set()


@pytest.mark.usefixtures("fake")
def test_the_first_chart_is_upgraded_to_this_one_and_rolled_back(namespace: str, tmp_path: Path) -> None:
    release("install", namespace, "--wait", SHORT, chart_at=first(tmp_path) / "helm")
    before, claims = templates(namespace), listed(namespace, "pvc")
    release("upgrade", namespace, "--wait", SHORT)
    assert templates(namespace) != before
    assert [one["metadata"]["uid"] for one in listed(namespace, "pvc")] == [one["metadata"]["uid"] for one in claims]
    assert "Phase:          Succeeded" in release("test", namespace, SHORT)
    release("rollback", namespace, "--wait", SHORT)
    assert templates(namespace) == before
    release("upgrade", namespace, "--wait", SHORT)


@pytest.mark.usefixtures("fake")
def test_an_upgrade_leaves_the_replicas_that_an_autoscaler_chose(namespace: str) -> None:
    values = {**VALUES["least"], "scoring": {"autoscaling": {"kind": "hpa"}}}
    release("install", namespace, "--wait", SHORT, values=values)
    (scaler,) = listed(namespace, "hpa")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "one-streamward-scoring"
    run("kubectl", "-n", namespace, "scale", "deployment/one-streamward-scoring", "--replicas=3")
    values["images"] = {"streams": {"tag": "0.1.1"}}
    release("upgrade", namespace, "--wait", SHORT, values=values)
    (scoring,) = listed(namespace, "deployments", "-l", "app.kubernetes.io/component=scoring")
    assert scoring["spec"]["replicas"] == 3


@pytest.mark.usefixtures("fake")
def test_vllm_servers_get_their_gpus_and_names_and_go_with_the_release(namespace: str, nodes: list[Object]) -> None:
    if not any(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) >= 2 for node in nodes):
        pytest.skip("NOT RUN: no node of the cluster has two nvidia.com/gpu")
    values = {**VALUES["vllm"], "topics": {"kind": "job"}, "metrics": {"monitor": "none"}}
    release("install", namespace, "--wait", SHORT, values=values)
    pods = listed(namespace, "pods", "-l", "app.kubernetes.io/component=vllm")
    assert {pod["metadata"]["name"] for pod in pods} == {"one-streamward-vllm-0", "one-streamward-vllm-1"}
    assert all(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2" for pod in pods)
    release("uninstall", namespace, "--wait", SHORT)
    kept = {one["metadata"]["name"] for one in listed(namespace, "pvc,statefulsets,services")}
    assert kept == {"one-streamward-adapters", "one-streamward-checkpoints"}


@pytest.mark.usefixtures("fake")
def test_three_servers_are_evicted_one_at_a_time_and_replaced_before_they_end(namespace: str) -> None:
    values: Object = {**VALUES["least"], "serve": {"enabled": True, "replicas": 3}}
    release("install", namespace, "--wait", SHORT, values=values)
    of_serve = ("-l", "app.kubernetes.io/component=serve")
    pods = listed(namespace, "pods", *of_serve)
    assert len({pod["status"]["podIP"] for pod in pods}) == 3
    (budget,) = listed(namespace, "pdb", *of_serve)
    assert (budget["status"]["currentHealthy"], budget["status"]["disruptionsAllowed"]) == (3, 1)
    values["serve"]["settings"] = {"serve": {"idle_s": 60}}
    release("upgrade", namespace, "--wait", SHORT, values=values)
    (deployment,) = listed(namespace, "deployments", *of_serve)
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["status"]["readyReplicas"] == deployment["status"]["updatedReplicas"] == 3
    values["serve"] |= {"autoscaling": {"kind": "hpa"}}
    release("upgrade", namespace, "--wait", SHORT, values=values)
    (scaler,) = listed(namespace, "hpa")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["spec"]["metrics"][0]["resource"]["name"] == "cpu"


@pytest.mark.usefixtures("fake")
def test_topics_of_strimzi_stay_when_the_release_goes(namespace: str) -> None:
    if not any(version.startswith("kafka.strimzi.io/") for version in run("kubectl", "api-versions").stdout.split()):
        pytest.skip("NOT RUN: the cluster has no definition of KafkaTopic")
    values = {**VALUES["least"], "topics": {"kind": "strimzi", "strimzi": {"cluster": "events"}}}
    release("install", namespace, "--wait", SHORT, values=values)
    before = listed(namespace, "kafkatopics")
    assert len(before) == len(LABELS)
    release("uninstall", namespace, "--wait", SHORT)
    kept = listed(namespace, "kafkatopics")
    assert [one["metadata"]["uid"] for one in kept] == [one["metadata"]["uid"] for one in before]
    release("install", namespace, "--wait", SHORT, values=values)
    assert len(listed(namespace, "kafkatopics")) == len(LABELS)
