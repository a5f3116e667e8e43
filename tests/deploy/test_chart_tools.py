"""The chart before tools of others: the schemas of Kubernetes from the oldest version on, and checkov's policies.

    helm template --kube-version ──► kubernetes-validate --strict    oldest, middle and newest version
                                 ──► checkov                         clean but for what deploy/checkov.yaml argues

Runs with `make test-deploy`; `make setup-deploy` installs both tools. Not covered: resources of operators, whose
definitions are asked in test_cluster.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import skips
from tests.support.deploy.rendered_chart import BOOTSTRAP, CHART, ROOT, VALUES, helm, needs_helm

OLDEST, MIDDLE, NEWEST = "1.29", "1.33", "1.37"
OF_OPERATORS = {"KafkaTopic", "PodMonitor", "ServiceMonitor", "ScaledObject", "RayJob"}
ARGUED = ROOT / "deploy" / "checkov.yaml"


def tool(name: str) -> str:
    """Return where a tool is; skip, loudly, where it is not."""
    if os.environ.get("TEST_CLUSTER") != "1":
        pytest.skip(skips.ASKED_FOR)
    found = shutil.which(name)
    if found is None:
        pytest.skip(skips.needs(name))
    return found


def rendered(folder: Path, cases: list[str], *arguments: str) -> list[str]:
    """Render these cases into files and return their names."""
    names = []
    for case in cases:
        done = helm(VALUES[case], *arguments)
        assert done.returncode == 0, done.stderr
        names.append(f"{case.replace(' ', '-')}.yaml")
        (folder / names[-1]).write_text(done.stdout, encoding="utf-8")
    return names


@needs_helm
def test_the_oldest_version_is_the_one_that_the_chart_names() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert helm(BOOTSTRAP, "--kube-version", f"{OLDEST}.0").returncode == 0
    done = helm(BOOTSTRAP, "--kube-version", "1.28.9")
    assert done.returncode != 0 and "incompatible with Kubernetes v1.28.9" in done.stderr


@needs_helm
@pytest.mark.parametrize("version", [OLDEST, MIDDLE, NEWEST])
def test_every_object_has_the_schema_of_that_version(version: str, tmp_path: Path) -> None:
    validate = tool("kubernetes-validate")
    files = rendered(tmp_path, list(VALUES), "--kube-version", f"{version}.0")
    done = subprocess.run([validate, "--strict", "-k", version, *files], cwd=tmp_path, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0, "\n".join(line for line in said if not line.startswith("INFO"))
    passed = [line for line in said if " passed for resource " in line]
    unknown = [line for line in said if "Couldn't find schema for kind " in line]
    assert {line.partition("for kind ")[2].split()[0] for line in unknown} == OF_OPERATORS
    there = [one for name in files for one in yaml.safe_load_all((tmp_path / name).read_text()) if one is not None]
    assert len(passed) + len(unknown) == len(there)


@needs_helm
def test_a_field_that_no_version_knows_would_be_found(tmp_path: Path) -> None:
    validate = tool("kubernetes-validate")
    (name,) = rendered(tmp_path, ["least"])
    text = (tmp_path / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text.replace("enableServiceLinks:", "enableServiceLink:"), encoding="utf-8")
    done = subprocess.run([validate, "--strict", "-k", NEWEST, name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "enableServiceLink" in done.stdout + done.stderr


@needs_helm
def test_checkov_finds_what_is_argued_and_nothing_else(tmp_path: Path) -> None:
    checkov = tool("checkov")
    files = rendered(tmp_path, ["secured", "scaled", "vllm", "registry"])
    command = [checkov, "--framework", "kubernetes", "--skip-download", "--output", "json", "--file", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0 and report["summary"]["passed"] > 500
    found: dict[str, set[str]] = {}
    for check in report["results"]["failed_checks"]:
        found.setdefault(check["check_id"], set()).add(check["resource"])
    argued = yaml.safe_load(ARGUED.read_text(encoding="utf-8"))["skip-check"]
    assert found.keys() == set(argued), found
