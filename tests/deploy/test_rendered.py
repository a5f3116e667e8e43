"""The processes of the chart, started as it renders them, on a real log: command, environment and mounted files.

    helm template ──► each Pod's files under a folder of the test ──► its command, with its environment and no other

The container's root is that folder: /etc/streamward and /var/lib/streamward lie there. The policy answers with the
engine `scripted`. Not covered: the image, the trainer, passwords.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from charted import Object, helm, mounted, needs_helm, spec_of
from running import said

pytestmark = [pytest.mark.kafka, needs_helm]


def started(
    pod: Object, configs: Object, folder: Path, arguments: list[str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start what a Pod's container would, in a root of its own."""
    environment = mounted(pod, configs, folder)
    for file in (folder / "etc/streamward").rglob("*.toml"):
        file.write_text(file.read_text().replace('"/var/lib/', f'"{folder}/var/lib/'))
    home = folder / "var/lib/streamward"
    home.mkdir(parents=True, exist_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
    led = [str(folder) + part if part.startswith("/etc/") else part for part in arguments]
    return subprocess.Popen([sys.executable, "-m", "streams.cli", *led], env=plain | environment, cwd=home, **options)


def test_the_hook_makes_the_topics_and_helm_test_comes_back_with_scores(kafka_bootstrap: str, tmp_path: Path) -> None:
    values = {
        "kafka": {"bootstrap": kafka_bootstrap},
        "settings": {"topics": {"prefix": "rendered.", "partitions": 2, "policy_partitions": 1}},
        "policy": {"settings": {"policy": {"engine": "scripted"}}},
        "metrics": {"port": 0},  # all are on one machine here
        "probes": {"mode": "exec"},
    }
    done = helm(values)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    configs = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    pods = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: spec_of(one)
        for one in found
        if one["kind"] in ("Deployment", "Job", "Pod")
    }

    def ends(name: str, arguments: list[str]) -> str:
        """Return what a process prints that has to end with 0."""
        with (tmp_path / f"{name}-once.log").open("ab") as log:
            process = started(pods[name], configs, tmp_path / name, arguments, stdout=subprocess.PIPE, stderr=log)
        out = process.communicate(timeout=120)[0].decode()
        assert process.returncode == 0, f"{name}: {out}\n{said(tmp_path)}"
        return out

    containers = {name: spec["containers"][0] for name, spec in pods.items()}
    assert "created" in ends("topics", containers["topics"]["args"])
    ends("streams", containers["streams"]["readinessProbe"]["exec"]["command"][1:])
    with ExitStack() as stack:
        processes = []
        for name in ("streams", "scoring", "policy"):
            log = stack.enter_context((tmp_path / f"{name}.log").open("ab"))
            process = started(pods[name], configs, tmp_path / name, containers[name]["args"], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        answer = json.loads(ends("test", containers["test"]["args"]))
        assert answer["waiting"] == [] and answer["suite"].startswith("one-revision-1@")
        (score,) = answer["scores"]
        assert (score["version"], score["n"]) == (0, 4)
        for process in processes:
            process.terminate()
        assert [process.wait(60) for process in processes] == [0, 0, 0], said(tmp_path)
