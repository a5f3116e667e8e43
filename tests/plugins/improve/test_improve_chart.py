"""What learns from served runs, as the chart renders it: its processes, their files, claims and judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from yaml import safe_load_all

from plugins.improve.selfplay.catalogue import read_catalogue
from plugins.improve.settings import Improve
from plugins.improve.triggers.rule import read_rule
from tests.support.deploy.rendered_chart import (
    BOOTSTRAP,
    Object,
    component,
    helm,
    name_of,
    needs_helm,
    objects,
    of_kind,
    settings_of,
    spec_of,
)

pytestmark = needs_helm

IMPROVERS = ("curate", "datasets", "retrain", "selfplay")


def test_each_part_that_learns_from_served_runs_is_asked_whether_it_works_and_all_are_off_by_default() -> None:
    for name in IMPROVERS:
        found = component("scaled", "Deployment", name)
        assert found["spec"]["replicas"] == (2 if name == "curate" else 1)
        (container,) = spec_of(found)["containers"]
        assert container["image"].endswith("-cpu") is (name == "datasets"), "a build needs the model image's packages"
        asked = [container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
        assert asked == ["/healthz", "/readyz"]
        assert not any(name_of(one).endswith(f"-{name}") for one in objects("least"))
    assert component("scaled", "PodDisruptionBudget", "curate")["spec"]["maxUnavailable"] == 1


def test_rule_and_catalogue_of_the_values_are_the_files_that_the_processes_read(tmp_path: Path) -> None:
    files = {}
    for name in ("retrain", "selfplay"):
        settings_of("scaled", name, tmp_path)
        (container,) = spec_of(component("scaled", "Deployment", name))["containers"]
        (file,) = [word for word in container["args"] if word.startswith("/")]
        files[name] = tmp_path / file[1:]
    assert read_rule(files["retrain"]).when.promotable == 50
    assert read_catalogue(files["selfplay"]).name == "sums"


def test_another_rule_is_another_config_map() -> None:
    def name(promotable: int) -> str:
        rule = f"[when]\npromotable = {promotable}\n"
        done = helm({**BOOTSTRAP, "improve": {"retrain": {"enabled": True, "rule": rule}}})
        made = [one for one in safe_load_all(done.stdout) if one is not None and one["kind"] == "ConfigMap"]
        (found,) = [one for one in made if "-retrain-" in one["metadata"]["name"]]
        assert found["data"] == {"retrain.toml": rule}
        return str(found["metadata"]["name"])

    assert name(50) != name(51)


def test_data_sets_are_written_to_the_claim_of_the_values(tmp_path: Path) -> None:
    found = component("scaled", "Deployment", "datasets")
    assert found["spec"]["strategy"] == {"type": "Recreate"}, "one node may hold the claim"
    (container,) = spec_of(found)["containers"]
    folder = settings_of("scaled", "datasets", tmp_path).of_plugin(Improve).datasets
    (mount,) = [one for one in container["volumeMounts"] if Path(one["mountPath"]) == folder.parent]
    (volume,) = [one for one in spec_of(found)["volumes"] if one["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"]["claimName"] == "mine"


def test_the_judge_of_runs_is_set_for_all_parts_and_its_port_is_open(tmp_path: Path) -> None:
    for name in IMPROVERS:
        settings = settings_of("scaled", name, tmp_path / name)
        assert (settings.scoring.judge_url, settings.metrics.port) == ("http://judge:8200/v1", 9464)
    policies = {name_of(one): one["spec"] for one in of_kind("scaled", "NetworkPolicy")}
    every = policies["NetworkPolicy/one-streamward"]
    assert {"protocol": "TCP", "port": 8200} in every["egress"][0]["ports"]
    for name in IMPROVERS:
        labels = component("scaled", "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert every["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"retrain": {"enabled": True}}, "improve.retrain.enabled is true and improve.retrain.rule is empty"),
        ({"selfplay": {"enabled": True}}, "improve.selfplay.enabled is true and improve.selfplay.catalogue is empty"),
        ({"datasets": {"enabled": True}}, "improve.datasets.enabled is true and improve.datasets.name is not set"),
        ({"selfplay": {"every": ""}}, "/improve/selfplay/every"),
        ({"curate": {"rule": "x"}}, "/improve/curate"),
    ],
)
def test_what_a_part_lacks_is_named(part: Object, said: str) -> None:
    done = helm({**BOOTSTRAP, "improve": part})
    assert done.returncode != 0 and said in done.stderr, done.stderr
