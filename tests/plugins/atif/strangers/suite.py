"""What Harbor's own validator says of our ATIF documents: its verdicts, for `make test`.

documents of the test's runs ──► harbor.utils.trajectory_validator, out of its wheel ──► verdicts.json

Its wheel is read as it is, without what Harbor needs besides, which is much: its models need only pydantic.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.strangers.stage import Findings, Stage, Suite

HARBOR = "0.25.0"
FOLDER = Path(__file__).parent
VERDICTS, FINDINGS = FOLDER / "verdicts.json", FOLDER / "findings.json"
PROGRAM = """
import json, sys
from harbor.utils.trajectory_validator import TrajectoryValidator
validator, errors = TrajectoryValidator(), []
for document in json.load(sys.stdin):
    validator.validate(document)
    errors += validator.errors
print(json.dumps(errors))
"""


def atif(stage: Stage) -> Findings:
    """Return what the validator says, by document, and keep it."""
    verdicts = verdicts_of(stage.folder)
    VERDICTS.write_text(json.dumps({"harbor": HARBOR, "verdicts": verdicts}, indent=2) + "\n", encoding="utf-8")
    return {"harbor's validator": {name: verdict["errors"] for name, verdict in verdicts.items()}}


def verdicts_of(folder: Path) -> dict[str, Any]:
    """Return the digest of each document, and what Harbor says of it; `folder` gets its wheel."""
    from plugins.atif.trajectory_document import documents
    from tests.plugins.atif.test_atif import answers, with_tools

    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version", "3.12")
    subprocess.run([*pip, "--only-binary=:all:", "--dest", folder, f"harbor=={HARBOR}"], check=True)
    (wheel,) = folder.glob("harbor-*.whl")
    made = {name: list(documents(answer)) for name, answer in answers().items()}
    (broken,) = documents(with_tools())
    broken["steps"][0]["step_id"] = 7
    broken["steps"][1]["metrics"] = {}
    del broken["agent"]["name"]
    other = json.loads(json.dumps(broken)) | {"agent": {"name": "x", "version": "1"}, "invented": 1}
    made["broken"] = [broken, other]
    return {name: {"sha256": digest_of(each), "errors": _errors(wheel, each)} for name, each in made.items()}


def digest_of(made: list[dict[str, Any]]) -> str:
    """Return the sha256 of documents as JSON."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _errors(wheel: Path, made: list[dict[str, Any]]) -> list[str]:
    command = [sys.executable, "-c", PROGRAM]
    env = os.environ | {"PYTHONPATH": str(wheel)}
    done = subprocess.run(command, input=json.dumps(made), env=env, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout))


SUITES = {"atif": Suite(atif, FINDINGS)}
