"""docker-compose.yml and Dockerfile, as far as they can be held to it without a container engine.

The file is read by our own model of what we use of the compose specification: a key that is not in it is refused here,
also where an engine would take it. Not covered: what an engine does with it; building is asked of one where it runs.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from deployed import loaded, parsed

from streams.engines import vllm_start

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("streamward-")]
KEYS = {
    "build": dict, "cap_drop": list, "command": list, "depends_on": dict, "deploy": dict, "environment": dict,
    "healthcheck": dict, "image": str, "ipc": str, "logging": dict, "ports": list, "profiles": list, "read_only": bool,
    "restart": str, "security_opt": list, "shm_size": str, "stop_grace_period": str, "tmpfs": list, "volumes": list,
}  # fmt: skip
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def _filled(text: str) -> str:
    """Return the text with each ${NAME:-default} as its default."""
    return VARIABLE.sub(r"\1", text)


def _closure(name: str) -> set[str]:
    """Return everything that has to be there before a service starts."""
    before = set(SERVICES[name].get("depends_on", {}))
    return before.union(*(_closure(one) for one in before))


def _lines(stage: str) -> str:
    """Return the lines of one stage of the Dockerfile."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(rf"^FROM \S+ AS {stage}$(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no stage {stage}"
    return found[1]


# --- the file as a whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_nothing_that_compose_would_not_understand(name: str) -> None:
    wrong = {key for key, value in SERVICES[name].items() if not isinstance(value, KEYS.get(key, ()))}
    assert wrong == set()
    assert all(isinstance(value, str) for value in SERVICES[name].get("environment", {}).values())


def test_profiles_are_those_of_the_header() -> None:
    named = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    header = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").split("name: streamward")[0]
    assert named == set(re.findall(r"--profile (\w+)", header)) == {"cpu", "gpu", "observability", "ui"}


def test_every_volume_is_declared_and_used_and_every_mounted_file_is_there() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert {mount for mount in mounts if not mount.startswith(".")} == set(COMPOSE["volumes"])
    assert [mount for mount in mounts if mount.startswith(".") and not (ROOT / mount).exists()] == []


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_is_there_and_can_reach_that_state(name: str) -> None:
    profiles = set(SERVICES[name].get("profiles", []))
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        theirs = set(SERVICES[other].get("profiles", []))
        assert not theirs or profiles <= theirs, f"{other} is not there in every profile of {name}"
        match wait["condition"]:
            case "service_healthy":
                assert "healthcheck" in SERVICES[other]
            case "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no"
            case condition:
                assert condition == "service_started"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_on_the_loopback_address_only(name: str) -> None:
    ports = [port.split(":") for port in SERVICES[name].get("ports", [])]
    assert all(len(port) == 3 and port[0] == "127.0.0.1" for port in ports)


def test_no_port_of_the_host_is_taken_twice() -> None:
    ports = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    tag = _filled(SERVICES[name]["image"]).rpartition(":")[2]
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-\w+)?", tag)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_may_gain_rights(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]


def test_kafka_keeps_its_log_and_its_name() -> None:
    kafka = SERVICES["kafka"]
    assert f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}" in kafka["volumes"]
    assert len(base64.urlsafe_b64decode(kafka["environment"]["CLUSTER_ID"] + "==")) == 16


def test_kafka_listens_where_it_says_that_it_does() -> None:
    environment = SERVICES["kafka"]["environment"]
    listeners = dict(part.split("://") for part in environment["KAFKA_LISTENERS"].split(","))
    advertised = dict(part.split("://") for part in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(part.split(":") for part in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(listeners) == set(protocols) == {*advertised, environment["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    ports = {name: address.rpartition(":")[2] for name, address in listeners.items()}
    assert all(address.rpartition(":")[2] == ports[name] for name, address in advertised.items())
    assert f"127.0.0.1:{ports['HOST']}:{ports['HOST']}" in SERVICES["kafka"]["ports"]


# --- our own services ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_the_program_takes_every_command_line(name: str) -> None:
    assert parsed(SERVICES[name]["command"])


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(click.UsageError):
        parsed(["topics", "aply"])
    with pytest.raises(click.UsageError):
        parsed(["audit", "--folow"])


@pytest.mark.parametrize("name", OURS)
def test_the_settings_know_every_variable(name: str) -> None:
    environment = {key: _filled(value) for key, value in SERVICES[name]["environment"].items()}
    assert loaded(environment).kafka.bootstrap == "kafka:19092"
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert "://kafka:19092" in listeners


@pytest.mark.parametrize("name", OURS)
def test_a_process_with_a_log_starts_when_its_topics_are_there(name: str) -> None:
    if name not in ("topics", "schemas"):
        assert {"kafka", "topics"} <= _closure(name)


@pytest.mark.parametrize("name", OURS)
def test_what_a_process_writes_lies_in_a_volume_and_the_rest_is_read_only(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["tmpfs"] == ["/tmp"]  # noqa: S108, the container's own
    settings = loaded({key: _filled(value) for key, value in service["environment"].items()})
    mounted = {mount.split(":")[1] for mount in service.get("volumes", [])}
    if parsed(service["command"]) in ("policy", "train"):
        assert {settings.adapters.store, "/var/lib/streamward/cache"} <= mounted
    if parsed(service["command"]) == "train":
        assert str(settings.trainer.checkpoints) in mounted
    if settings.policy.engine == "vllm":
        assert str(settings.policy.server_folder) in mounted


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_each_profile_runs_the_whole_loop_with_one_trainer(profile: str) -> None:
    running = [name for name in OURS if profile in SERVICES[name].get("profiles", [profile])]
    commands = [parsed(SERVICES[name]["command"]) for name in running]
    assert sorted(commands) == ["policy", "schemas serve", "scoring", "streams", "topics apply", "train"]


def test_the_vllm_of_the_profile_is_started_as_the_engine_wants_it() -> None:
    server = SERVICES["vllm"]
    given = dict(part.removeprefix("--").partition("=")[::2] for part in map(_filled, server["command"]))
    wanted = vllm_start.command(Path("python"), Path("model"), 8000, rank=loaded({}).trainer.lora_rank)
    for option in ("dtype", "max-lora-rank", "max-loras", "max-cpu-loras", "logprobs-mode"):
        assert given[option] == wanted[wanted.index(f"--{option}") + 1]
    assert "enable-lora" in given
    assert server["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    asked = loaded({key: _filled(text) for key, text in SERVICES["policy-gpu"]["environment"].items()})
    trained = loaded({key: _filled(text) for key, text in SERVICES["trainer-gpu"]["environment"].items()})
    assert asked.policy.server_urls == ("http://vllm:8000",)
    assert given["model"] == asked.model.base == trained.model.base
    assert f"served:{asked.policy.server_folder}:ro" in server["volumes"]


@pytest.mark.parametrize("name", [name for name in OURS if "build" in SERVICES[name]])
def test_a_service_is_built_from_the_target_its_image_is_named_after(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    build = SERVICES[name]["build"]
    assert image == f"streamward-{build['target']}"
    assert tag.partition("-")[2] == build.get("args", {}).get("TORCH", "")
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None and tag.partition("-")[0] == version[1]


def test_prometheus_asks_services_that_are_there_where_they_listen() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [
        target for job in config["scrape_configs"] for part in job["static_configs"] for target in part["targets"]
    ]
    assert targets
    for target in targets:
        name, _, port = target.partition(":")
        assert f"0.0.0.0:{port}" in SERVICES[name]["command"]


# --- the images ------------------------------------------------------------------------------------------------------


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


def _listed() -> list[str]:
    lines = (ROOT / "requirements.streams").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_what_the_small_image_installs_is_locked_and_a_requirement_of_ours() -> None:
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = [line.partition("[")[0] for line in _listed()]
    assert [name for name in names if name not in locked or not re.search(rf'"{name}[=<>\[]', project)] == []
    assert [line for line in _listed() if "[" in line and f'"{line}' not in project] == []


SMALL = """
import sys
from importlib.metadata import packages_distributions, requires, PackageNotFoundError
from packaging.requirements import Requirement

wanted, seen = sys.argv[1:], set()
while wanted:  # what is listed, and what that requires
    asked = Requirement(wanted.pop())
    name, extras = asked.name.lower().replace("_", "-"), ["", *sorted(asked.extras)]
    if {(name, extra) for extra in extras} <= seen:
        continue
    seen |= {(name, extra) for extra in extras}
    try:
        needs = [Requirement(line) for line in requires(name) or []]
    except PackageNotFoundError:
        continue
    wanted += [
        f"{need.name}[{','.join(need.extras)}]"
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    ]
seen = {name for name, _ in seen}
of = {module: {name.lower().replace("_", "-") for name in names} for module, names in packages_distributions().items()}

class Elsewhere:
    def find_spec(self, name, path=None, target=None):
        owners = of.get(name.partition(".")[0])
        if owners and "streamward" not in owners and not owners & seen:
            raise ModuleNotFoundError(f"{name} is not in the image: {sorted(owners)}", name=name)

sys.meta_path.insert(0, Elsewhere())
import streams.cli, streams.worker, streams.scoring, streams.cluster, streams.audit, streams.audit_read
import streams.audit_metrics, streams.schema_server, streams.asking, streams.tasks, streams.positions, streams.show
import streams.scorers.registry, streams.generators, streams.adapter_store, streams.guard, streams.canary
import streams.schema_register, streams.schema_registry, avro.compatibility, confluent_kafka.schema_registry
"""


def test_the_small_image_has_all_that_its_processes_import() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SMALL, *_listed()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def _engine() -> str | None:
    """Return why no container engine answers; None if one does."""
    docker = shutil.which("docker")
    if docker is None:
        return "there is no docker"
    done = subprocess.run([docker, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"docker has no engine: {done.stderr.strip()}"


@pytest.mark.docker
@pytest.mark.parametrize("target", ["streams", "model"])
def test_an_image_builds_and_its_program_starts(target: str) -> None:
    if why := _engine():
        pytest.skip(f"NOT RUN: image {target} was not built: {why}")
    tag = f"streamward-{target}:test-{os.getpid()}"
    subprocess.run(
        ["docker", "build", "--quiet", "--target", target, "--tag", tag, str(ROOT)], check=True, timeout=3000
    )
    try:
        run = ["docker", "run", "--rm", "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp", tag, "--version"]  # noqa: S108
        assert "streamward" in subprocess.run(run, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["docker", "image", "rm", "--force", tag], check=False)
