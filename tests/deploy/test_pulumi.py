"""The program of deploy/pulumi asks for the chart with values that the chart takes, by Pulumi's own mocks.

    config ──► deploy/pulumi/__main__.py ──► a namespace, and a release ──► its values before values.schema.json

Runs with `make test-deploy`; `make setup-deploy` installs Pulumi.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests import skips

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-pulumi" / "bin" / "python"
PROGRAM = ROOT / "deploy" / "pulumi" / "__main__.py"


def planned(**config: str) -> subprocess.CompletedProcess[str]:
    """Run the program with this configuration."""
    if os.environ.get("TEST_CLUSTER") != "1":
        pytest.skip(skips.ASKED_FOR)
    if not PYTHON.exists():
        pytest.skip(skips.needs("Pulumi"))
    mocks = ROOT / "tests" / "deploy" / "tools" / "pulumi_mocks.py"
    return subprocess.run([PYTHON, mocks, json.dumps(config)], capture_output=True, text=True, timeout=300)


def test_a_release_of_the_chart_has_the_values_of_the_configuration() -> None:
    values = {"settings": {"topics": {"replication": 3}}, "kafka": {"securityProtocol": "SSL"}}
    done = planned(kafka="k:9092", values=json.dumps(values), namespace="lab")
    assert done.returncode == 0, done.stderr
    namespace, release = (json.loads(line)["inputs"] for line in done.stdout.splitlines())
    assert namespace["metadata"] == {"name": "lab"} and release["namespace"] == "lab" and release["atomic"]
    assert Path(release["chart"]) == ROOT / "helm"
    assert release["values"] == {**values, "kafka": {"securityProtocol": "SSL", "bootstrap": "k:9092"}}
    schema: dict[str, Any] = json.loads((ROOT / "helm" / "values.schema.json").read_text())
    jsonschema.validate(release["values"], schema)


def test_without_kafka_nothing_is_asked_for() -> None:
    done = planned()
    assert done.returncode != 0 and "pulumi config set streamward:kafka" in done.stderr
    assert not done.stdout


def test_the_program_is_one_that_a_team_reads_at_once() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 40
