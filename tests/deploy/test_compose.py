"""docker-compose.yml, as far as it can be held to what it says without a container engine.

The file is what the schema of the compose specification lets through, and no more of it than our own model knows: a key
that is not in it is refused here, also where an engine would take it. What it runs is started in test_composed.py.

Not covered: what an engine does with it.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from streams.engines.vllm import launch as vllm_launch
from tests import skips
from tests.support.deploy.command_lines import loaded, parsed
from tests.support.deploy.rendered_chart import BOOTSTRAP, helm, needs_helm, spec_of
from tests.versions import version

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("streamward-")]
KEYS = {
    "build": dict, "cap_add": list, "cap_drop": list, "command": list, "depends_on": dict, "deploy": dict,
    "environment": dict, "healthcheck": dict, "image": str, "ipc": str, "logging": dict, "ports": list,
    "profiles": list, "read_only": bool, "restart": str, "security_opt": list, "shm_size": str,
    "stop_grace_period": str, "tmpfs": list, "volumes": list,
}  # fmt: skip
SERVERS = ("serve", "serve-2", "serve-3")
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def _filled(text: str) -> str:
    """Return the text with each ${NAME:-default} as its default."""
    return VARIABLE.sub(r"\1", text)


def _closure(name: str) -> set[str]:
    """Return everything that has to be there before a service starts."""
    before = set(SERVICES[name].get("depends_on", {}))
    return before.union(*(_closure(one) for one in before))


# --- the file as a whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_nothing_that_compose_would_not_understand(name: str) -> None:
    wrong = {key for key, value in SERVICES[name].items() if not isinstance(value, KEYS.get(key, ()))}
    assert wrong == set()
    assert all(isinstance(value, str) for value in SERVICES[name].get("environment", {}).values())


def test_profiles_are_those_of_the_header() -> None:
    named = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    header = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").split("name: streamward")[0]
    assert (
        named
        == set(re.findall(r"--profile (\w+)", header))
        == {
            "agents",
            "cpu",
            "fleet",
            "gpu",
            "judge",
            "observability",
            "servers",
            "ui",
        }
    )


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


def _schema() -> Any:
    """Return what checks a file against the schema of the compose specification, which check-jsonschema brings."""
    package = importlib.util.find_spec("check_jsonschema")
    if package is None or package.origin is None:
        pytest.skip(skips.needs("check-jsonschema", "make setup-test"))
    file = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(file.read_text(encoding="utf-8"))
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)(schema)


def test_the_specification_of_compose_lets_the_file_through() -> None:
    assert [error.message for error in _schema().iter_errors(COMPOSE)] == []


@pytest.mark.parametrize(
    ("service", "wrong"),
    [
        ("streams", {"healthchek": {}}),
        ("kafka", {"ports": "9092"}),
        ("policy", {"depends_on": {"topics": {"condition": "service_done"}}}),
        ("trainer", {"restart": True}),
    ],
)
def test_the_specification_would_refuse_a_file_that_is_wrong(service: str, wrong: dict[str, Any]) -> None:
    services = {**SERVICES, service: {**SERVICES[service], **wrong}}
    assert list(_schema().iter_errors({**COMPOSE, "services": services})) != []


@pytest.mark.docker
@pytest.mark.parametrize("profile", ["agents", "cpu", "fleet", "gpu", "judge", "observability", "servers", "ui"])
def test_docker_compose_takes_the_file(profile: str) -> None:
    compose = ["docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "--profile", profile]
    if shutil.which("docker") is None or subprocess.run([*compose[:2], "version"], capture_output=True).returncode != 0:
        pytest.skip(skips.needs("docker compose on PATH", "make test"))
    done = subprocess.run([*compose, "config", "--services"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = {name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}
    assert set(done.stdout.split()) == wanted


# --- our own services ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_the_program_takes_every_command_line(name: str) -> None:
    assert parsed(SERVICES[name]["command"])


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(click.UsageError):
        parsed(["admin", "topics", "aply"])
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
    if parsed(service["command"]) in ("policy", "train", "tune", "serve"):
        assert {settings.adapters.store, "/var/lib/streamward/cache"} <= mounted
    if parsed(service["command"]) in ("train", "tune"):
        assert str(settings.trainer.checkpoints) in mounted
    if settings.policy.engine == "vllm":
        assert str(settings.policy.server_folder) in mounted


@pytest.mark.parametrize("profile", ["cpu", "gpu", "fleet"])
def test_each_profile_runs_the_whole_loop_with_one_trainer(profile: str) -> None:
    running = [name for name in OURS if profile in SERVICES[name].get("profiles", [profile])]
    commands = [parsed(SERVICES[name]["command"]) for name in running]
    assert sorted(commands) == [
        "admin schemas serve",
        "admin topics apply",
        "jobs run",
        "policy",
        "scoring",
        *(["serve"] if profile == "fleet" else []),
        "streams",
        "train",
        "tune",
    ]
    of_fleets = [name for name in running if "--fleet" in SERVICES[name]["command"]]
    assert of_fleets == (["policy-fleet", "trainer-fleet", "serve-fleet"] if profile == "fleet" else [])


def test_servers_ask_for_keys_and_are_reached_through_tls_alone() -> None:
    caddy = (ROOT / "deploy" / "Caddyfile").read_text(encoding="utf-8")
    sites = dict(re.findall(r"https://localhost:(\d+) \{\s+import stream ([\w-]+:\d+)", caddy))
    assert re.findall(r"import stream (.*)", caddy)[0].split() == [f"{name}:8790" for name in SERVERS]
    assert SERVICES["tls"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in sites]
    for name in ("serve", "serve-fleet"):
        said = loaded({key: _filled(value) for key, value in SERVICES[name]["environment"].items()}).serve
        assert (said.host, said.auth) == ("0.0.0.0", "keys")  # noqa: S104, of a container
        assert f"{name}:{said.port}" in sites.values() and "ports" not in SERVICES[name]
        assert set(SERVICES[name]["profiles"]) <= set(SERVICES["tls"]["profiles"])


def test_each_server_of_agents_tells_the_others_where_it_is() -> None:
    for name in SERVERS:
        said = loaded({key: _filled(value) for key, value in SERVICES[name]["environment"].items()}).serve
        assert (said.auth, said.peer_url) == ("keys", f"http://{name}:{said.port}")
        assert "ports" not in SERVICES[name]
        assert {key: value for key, value in SERVICES[name].items() if key not in ("profiles", "environment")} == {
            key: value for key, value in SERVICES["serve"].items() if key not in ("profiles", "environment")
        }


def test_the_vllm_of_the_profile_is_started_as_the_engine_wants_it() -> None:
    server = SERVICES["vllm"]
    given = dict(part.removeprefix("--").partition("=")[::2] for part in map(_filled, server["command"]))
    wanted = vllm_launch.command(Path("python"), Path("model"), 8000, rank=loaded({}).trainer.lora_rank)
    for option in ("dtype", "max-lora-rank", "max-loras", "max-cpu-loras", "logprobs-mode"):
        assert given[option] == wanted[wanted.index(f"--{option}") + 1]
    assert "enable-lora" in given
    assert server["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    asked = loaded({key: _filled(text) for key, text in SERVICES["policy-gpu"]["environment"].items()})
    trained = loaded({key: _filled(text) for key, text in SERVICES["trainer-gpu"]["environment"].items()})
    assert asked.policy.server_urls == ("http://vllm:8000",)
    assert given["model"] == asked.model.base == trained.model.base
    assert f"served:{asked.policy.server_folder}:ro" in server["volumes"]


def test_the_judge_of_the_profile_is_the_one_that_scoring_calls() -> None:
    said = loaded({key: _filled(value) for key, value in SERVICES["scoring"]["environment"].items()}).scoring
    model = _filled(SERVICES["judge"]["command"][0]).removeprefix("--model=")
    assert (said.judge_url, said.judge_model) == ("http://judge:8000/v1", model)
    assert SERVICES["judge"]["healthcheck"] == SERVICES["vllm"]["healthcheck"]


@pytest.mark.parametrize("name", [name for name in OURS if "build" in SERVICES[name]])
def test_a_service_is_built_from_the_target_its_image_is_named_after(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    build = SERVICES[name]["build"]
    assert image == f"streamward-{build['target']}"
    assert tag.partition("-")[2] == build.get("args", {}).get("TORCH", "")
    assert tag.partition("-")[0] == version()


# --- who talks to whom -----------------------------------------------------------------------------------------------

ELSEWHERE = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*):(\d{2,5})(?!\d)")
"""NAME:PORT, of which localhost is one."""


def _named() -> list[tuple[str, str, str]]:
    """Return (where it is named, service, port) of every address of a service in this file and in deploy/."""
    texts = {
        name: " ".join(map(_filled, (*service.get("environment", {}).values(), *service.get("command", []))))
        for name, service in SERVICES.items()
    }
    texts |= {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "deploy").iterdir() if file.is_file()}
    found = [(where, *pair) for where, text in texts.items() for pair in ELSEWHERE.findall(text)]
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
    for job in config["scrape_configs"]:
        found += [
            (job["job_name"], name, str(part["port"])) for part in job["dns_sd_configs"] for name in part["names"]
        ]
    return [one for one in found if one[1] != "localhost"]


def test_who_is_named_is_a_service_that_listens_at_that_port() -> None:
    assert {"kafka", "vllm", "schemas", "prometheus", "streams", "audit"} <= {name for _, name, _ in _named()}
    for where, name, port in _named():
        assert name in SERVICES, f"{where} names {name}"
        assert re.search(rf"[:\"]{port}\b", json.dumps(SERVICES[name])), f"{where}: does {name} listen at {port}?"


def test_prometheus_asks_every_process_that_has_metrics() -> None:
    asked = {(name, port) for _, name, port in _named()}
    for name in OURS:
        environment = {key: _filled(value) for key, value in SERVICES[name]["environment"].items()}
        if port := loaded(environment).metrics.port:
            assert loaded(environment).metrics.host == "0.0.0.0"  # noqa: S104, of a container
            assert (name, str(port)) in asked


@pytest.mark.parametrize("name", [name for name in OURS if SERVICES[name]["restart"] != "no"])
def test_every_process_that_stays_says_whether_it_is_healthy(name: str) -> None:
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/\w+", test[3])
    assert port in json.dumps([SERVICES[name]["environment"], SERVICES[name]["command"]])
    compile(test[3], name, "exec")


@needs_helm
def test_the_chart_runs_the_same_commands() -> None:
    done = helm({**BOOTSTRAP, "audit": {"enabled": True, "everySeconds": 30}, "metrics": {"port": 9465}})
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] in ("Deployment", "Job")]
    commands = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: spec_of(one)["containers"][0]["args"] for one in found
    }
    assert commands == {name: SERVICES[name]["command"] for name in commands} and len(commands) == 7
