"""verl as `make setup-verl` installs it, which takes a step on an exported batch.

.venv-verl/bin/python: its own DataProto and policy loss ──► take_step.py ──► a PEFT folder
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from streams.settings.model import Settings

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-verl" / "bin" / "python"


SUITES = ("test_kv_interface_e2e.py", "test_e2e_lifecycle_consistency.py", "test_checkpoint_e2e.py")
"""TransferQueue's own tests of a backend, which its wheel carries. Its other files are of its parts, and of what single
backends have: `test_ssd_offload_e2e.py` of the files to which SimpleStorage moves what does not fit into memory."""
REGISTERS = {"runtime_env": {"worker_process_setup_hook": "plugins.verl.transfer_queue.register"}}
"""Ray's job configuration with which its workers have our backend, too."""


class NoVerl(Exception):
    """It is not installed."""


def step(file: Path, into: Path, numbers: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Have verl take a step on a batch, with these numbers, and write the adapter to `into`; return what it read.

    Raises NoVerl, and RuntimeError with its own words.
    """
    if not PYTHON.exists():
        raise NoVerl("verl in .venv-verl")
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(Path(__file__).with_name("take_step.py")), str(file), str(into)],
        input=json.dumps(numbers), env={**os.environ, "PYTHONPATH": ""}, cwd=scratch, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"verl ends with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def suite(name: str) -> Path:
    """Return a file of TransferQueue's own tests. Raises NoVerl."""
    file = next(PYTHON.parents[1].glob(f"lib/python*/site-packages/tests/e2e/{name}"), None)
    if file is None:
        raise NoVerl("TransferQueue in .venv-verl")
    return file


def page_configuration() -> dict[str, Any]:
    """Return the section of verl's configuration that the page shows."""
    text = (ROOT / "docs" / "verl.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    section: dict[str, Any] = yaml.safe_load(text)["transfer_queue"]
    assert section.pop("enable") is True, "verl's own switch"
    return section


def install_metadata(folder: Path) -> None:
    """Write what an installation of this project says of itself, entry points included, as pip would."""
    script = "import sys; from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(folder)], cwd=ROOT, check=True, capture_output=True)


def queue_environment(
    settings: Settings, *, restore: str = "live", installed: Path | None = None, **others: str
) -> dict[str, str]:
    """Return the environment of a program that uses TransferQueue on this log.

    Its folder is on the path by itself: TransferQueue's wheel has a package `tests`, too. With `installed`, a folder of
    `install_metadata`, Ray is not told of our backend: whoever wants it has to find it.
    """
    log = {"kafka.bootstrap": settings.kafka.bootstrap, "topics.prefix": settings.topics.prefix}
    log["topics.policy_partitions"] = str(settings.topics.policy_partitions)
    configuration = page_configuration()
    configuration["backend"]["Streamward"] |= {"queue": "program", "restore": restore, "settings": log}
    path = [*([str(installed)] if installed else ()), str(ROOT), str(Path(__file__).parent)]
    register = {} if installed else {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(REGISTERS)}
    return {
        **os.environ,
        **register,
        "PYTHONPATH": os.pathsep.join(path),
        "RAY_AUTH_MODE": "disabled",
        "TQ_TEST_BACKEND": "Streamward",
        "QUEUE_CONFIGURATION": json.dumps({"controller": {"polling_mode": True}, **configuration}),
        **others,
    }
