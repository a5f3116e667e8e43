"""The services of docker-compose.yml, started as it says, on a Kafka that is set up as its service is.

    kafka, with its listeners ──► topics (ends) ──► streams, scoring, jobs, schemas, audit; policy, trainer, tuner,
                                                    serve, or the fleet's
                              ──► their health checks pass ──► tasks from the host ──► a version, trained and served
                              ──► a call with a key

The base model is the tiny one, as BASE_MODEL names another. It runs with `make test-deploy`, in about a minute.
Not covered: what tests/support/deploy/container.py does not do for a container; Prometheus, Grafana, the topics in a
browser, TLS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from streams.kafka.node import process as broker
from streams.observability import catalog
from streams.settings.model import Broker
from tests import skips
from tests.deploy.test_cluster import OPT_IN
from tests.deploy.test_compose import COMPOSE, ROOT
from tests.deploy.test_rendered import asked
from tests.support.deploy.container import Host, Process, of_service
from tests.support.log.secured_node import free_ports
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, until
from tests.support.scrape import parse

pytestmark = pytest.mark.kafka

ALWAYS = ("streams", "scoring", "jobs", "schemas", "tuner", "audit")
PROFILES = {"cpu": ("policy", "trainer", "serve"), "fleet": ("policy-fleet", "trainer-fleet", "serve-fleet")}
MODEL = "/models/tiny"
INSIDE, HOST, CONTROLLER = "19092", "9092", "29093"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def filled(told: Any) -> Any:
    """Return what YAML says with its variables as a user has them who names another model."""
    text = VARIABLE.sub(lambda found: {"BASE_MODEL": MODEL}.get(found[1], found[2]), json.dumps(told))
    return json.loads(text)


def properties(told: dict[str, str], ports: dict[str, str]) -> dict[str, str]:
    """Return Kafka's properties from the variables of its image, with ports that are free here."""
    found = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): re.sub(
            r"(?<=:)\d+\b", lambda port: ports.get(port[0], port[0]), value.replace("://:", "://127.0.0.1:")
        ).replace("kafka:", "127.0.0.1:")
        for name, value in told.items()
        if name.startswith("KAFKA_") and name not in ("KAFKA_HEAP_OPTS", "KAFKA_LOG_DIRS")
    }
    assert found["advertised.listeners"].count("127.0.0.1") == 2
    return found


class Project:
    """What runs, and what is asked of it."""

    def __init__(self, host: Host, bootstrap: str, profile: str) -> None:
        self.host, self.bootstrap = host, bootstrap
        self.policy, self.trainer, self.server = PROFILES[profile]
        self.stay = (*ALWAYS, *PROFILES[profile])
        self.services: dict[str, Process] = {
            name: host.put(of_service(name, filled(COMPOSE["services"][name]))) for name in ("topics", *self.stay)
        }

    def total(self, name: str, metric: catalog.Metric, **labels: str) -> float:
        """Return the sum of a metric, from where Prometheus would read it."""
        config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
        (port,) = {
            part["port"] for job in config["scrape_configs"] for part in job["dns_sd_configs"] if name in part["names"]
        }
        return parse(self.services[name].get(port, "/metrics")[1]).total(metric.name, **labels)


@pytest.fixture(scope="module", params=PROFILES)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project that is up."""
    if os.environ.get(OPT_IN) != "1":
        pytest.skip(skips.ASKED_FOR)
    folder = tmp_path_factory.mktemp("project")
    free = dict(zip((INSIDE, HOST, CONTROLLER), map(str, free_ports(3)), strict=True))
    kafka = properties(filled(COMPOSE["services"]["kafka"])["environment"], free)
    node = Broker(data_dir=tmp_path_factory.mktemp("kafka"))
    try:
        broker.start(node, port=int(free[HOST]), properties=kafka)
        addresses = {f"kafka:{INSIDE}": f"127.0.0.1:{free[INSIDE]}"}
        host = Host(folder, addresses, {MODEL: save_tiny(folder / "tiny")})
        running = Project(host, f"127.0.0.1:{free[HOST]}", request.param)
        running.services["topics"].ends()
        stay = [running.services[name] for name in running.stay]
        with running.host.running(*stay):
            running.host.until_ready(*stay)
            yield running
        assert [process.written_elsewhere() for process in stay] == [[]] * len(stay)
    finally:
        broker.stop(node)


def test_a_version_is_trained_and_served_by_what_compose_starts(project: Project) -> None:
    outside = {**environment(), "STREAMWARD_KAFKA__BOOTSTRAP": project.bootstrap}
    submit = command("tasks", "submit", "-")
    subprocess.run(submit, input=asked(48), env=outside, cwd=project.host.folder, check=True, text=True)
    until(lambda: project.total(project.trainer, catalog.VERSION) >= 1, "a version", folder=project.host.folder)
    until(
        lambda: (
            project.total(project.policy, catalog.ADAPTER, role="served") == 1
            and not project.total(project.policy, catalog.ADAPTER, role="served", version="0")
        ),
        "a version that is served",
        folder=project.host.folder,
    )
    until(lambda: project.total("audit", catalog.RECOUNTED) > 0, "a recount", folder=project.host.folder)
    assert all(project.services[name].passes("readiness") for name in project.stay)


def test_an_agent_with_a_key_is_answered(project: Project) -> None:
    server = project.services[project.server]
    made = server.execute("streamward", "admin", "access", "keys", "create", "--role", "submitter", "--name", "me")
    assert made.returncode == 0, made.stderr
    (port,) = set(re.findall(rf"import stream {project.server}:(\d+)", (ROOT / "deploy" / "Caddyfile").read_text()))
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "1 7"}]}

    def asks(headers: dict[str, str]) -> int:
        url = f"http://{server.address}:{port}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=300).status_code

    until(lambda: asks({"Authorization": f"Bearer {made.stdout.strip()}"}) == 200, "a call", folder=project.host.folder)
    assert asks({}) == 401


def test_the_schemas_are_served_where_the_host_asks_for_them(project: Project) -> None:
    (published,) = COMPOSE["services"]["schemas"]["ports"]
    status, answer = project.services["schemas"].get(int(published.rpartition(":")[2]), "/subjects")
    assert status == 200 and "streamward.tasks-value" in json.loads(answer)
