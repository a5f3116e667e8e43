"""The Dockerfile, as far as it can be held to what it says without a container engine; where one answers, its images.

Not covered: pushing them, scanning them, a GPU in them.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import skips
from tests.support.deploy.small_image import hidden, hide, listed
from tests.support.models.tiny import save_tiny

ROOT = Path(__file__).parents[2]


def _lines(stage: str) -> str:
    """Return the lines of one stage of the Dockerfile."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no stage {stage}"
    return found[1]


@pytest.mark.parametrize("target", ["streams", "model"])
def test_an_image_runs_as_nobody_in_particular(target: str) -> None:
    assert re.search(r"^USER 10001:10001$", _lines(target), re.MULTILINE)


def test_an_image_is_built_from_files_that_are_there_and_let_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line.startswith("!")}
    copied = {
        source
        for stage in ("build", "build-streams", "build-model")
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", _lines(stage), re.MULTILINE)
        for source in sources.split()
    }
    assert copied == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_base_image_is_pinned() -> None:
    found = re.search(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None and re.fullmatch(r"python:\d+\.\d+\.\d+-[a-z-]+", found[1])


def test_what_the_small_image_installs_is_locked_and_a_requirement_of_ours() -> None:
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = [line.partition("[")[0] for line in listed()]
    assert [name for name in names if name not in locked or not re.search(rf'"{name}[=<>\[]', project)] == []
    assert [line for line in listed() if "[" in line and f'"{line}' not in project] == []


EXTRA = r"streamward\[(\w+)\]"
BY_PACKAGES = {
    "bridges": None,  # commands of somebody at a terminal, not of a deployment
    "quantized": "docs/own-data.md",
    "signing": "docs/install.md",
    "tracing": "docs/tracing.md",
}
"""Extras that no image has, and the page with the build argument that brings them. Those of a plugin: its own page."""


def test_the_images_have_what_a_message_of_the_program_asks_to_install() -> None:
    folders = ("gateway", "plugins", "schemas", "streams", "trainer")
    sources = "".join(path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    asked = set(re.findall(EXTRA, sources))
    installed = re.search(r"'\.\[([\w,]+)\]'", _lines("build-model"))
    assert installed is not None
    extras = set(installed[1].split(","))
    of_plugins = {
        extra: f"docs/{path.parts[0]}.md"
        for path in (file.relative_to(ROOT / "plugins") for file in (ROOT / "plugins").rglob("*.py"))
        for extra in set(re.findall(EXTRA, (ROOT / "plugins" / path).read_text(encoding="utf-8"))) - extras
    }
    pages = of_plugins | BY_PACKAGES
    assert asked == extras | pages.keys()
    for page in filter(None, pages.values()):
        assert "PACKAGES=" in (ROOT / page).read_text(encoding="utf-8"), page
    in_small_image = {line.partition("[")[0] for line in listed()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    needed = {
        Requirement(line).name for extra in extras - {"tinker"} for line in project[extra]
    }  # tinker needs weights
    assert needed <= in_small_image


SMALL = [
    "streams.cli.root",
    "gateway.server",
    "streams.worker.faust.faust_worker",
    "streams.worker.batched.run",
    "streams.stages.scoring.scoring_agent",
    "streams.stages.advantages.live",
    "streams.stages.advantages.loop",
    "streams.stages.batches",
    "streams.stages.rollouts.rollout_stage",
    "streams.kafka.admin",
    "streams.tools.audit.recount",
    "streams.tools.audit.reading",
    "streams.tools.audit.audit_metrics",
    "streams.kafka.registry.server",
    "streams.stages.tasks.submit",
    "streams.kafka.offsets",
    "streams.output",
    "streams.scorers.registry",
    "streams.stages.tasks.generators",
    "streams.adapters.store",
    "streams.evaluation.version_scores",
    "streams.stages.rollouts.guard",
    "streams.stages.rollouts.canary",
    "streams.kafka.registry.register",
    "streams.kafka.registry.client",
    "avro.compatibility",
    "confluent_kafka.schema_registry",
]
"""What the processes of the small image, and its commands, import; of a plugin: its tests' small_image.py."""
SMALL += [
    name
    for file in sorted((ROOT / "tests" / "plugins").glob("*/small_image.py"))
    for name in runpy.run_path(str(file))["IMPORTED"]
]


def test_the_small_image_has_all_that_its_processes_import(tmp_path: Path) -> None:
    seen = {**os.environ, "PYTHONPATH": f"{hide(tmp_path)}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import {', '.join(SMALL)}"], env=seen, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_command_in_the_small_image_says_that_no_broker_answers(tmp_path: Path) -> None:
    seen = {**os.environ, "PYTHONPATH": f"{hide(tmp_path / 'hiding')}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "streams.cli", "--set", "kafka.bootstrap=127.0.0.1:1", "admin", "topics", "list"]
    done = subprocess.run(command, env=seen, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 5 and done.stderr.startswith("Error: Kafka at 127.0.0.1:1 did not answer"), done.stderr


def test_tasks_are_submitted_in_the_small_image_though_its_model_has_no_tokenizer_there(tmp_path: Path) -> None:
    seen = {**os.environ, "PYTHONPATH": f"{hide(tmp_path / 'hiding')}{os.pathsep}{ROOT}"}
    options = ("--set", "kafka.bootstrap=127.0.0.1:1", "--set", f"model.base={save_tiny(tmp_path / 'tiny')}")
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", *options, "tasks", "submit", "-"],
        input='{"messages": [{"role": "user", "content": "1 7"}], "purpose": "serve"}',
        env=seen, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5 and "Error: Kafka at 127.0.0.1:1 did not answer" in done.stderr, done.stderr


def test_what_the_small_image_does_not_install_is_hidden() -> None:
    assert hidden() & {"faust", "yaml", "torch", "duckdb", "pytest"} == {"torch", "duckdb", "pytest"}


def _engine() -> bool:
    """Return whether a container engine answers."""
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "version"], capture_output=True).returncode == 0


@pytest.mark.docker
@pytest.mark.parametrize("target", ["streams", "model"])
def test_an_image_builds_and_its_program_starts(target: str) -> None:
    if not _engine():
        pytest.skip(skips.CONTAINERS)
    tag = f"streamward-{target}:test-{os.getpid()}"
    subprocess.run(
        ["docker", "build", "--quiet", "--target", target, "--tag", tag, str(ROOT)], check=True, timeout=3000
    )
    try:
        run = ["docker", "run", "--rm", "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp", tag, "--version"]  # noqa: S108
        assert "streamward" in subprocess.run(run, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["docker", "image", "rm", "--force", tag], check=False)
