"""The processes of the chart, started as it renders them, on a real log: command, environment and mounted files.

    helm template ──► hook: the topics ──► streams, scoring, policy, trainer, jobs, tuner, calls, serve, audit, archive,
                      what learns from served runs
                      all replicas ──► their probes say ready ──► tasks ──► a version, trained and served
                      ──► a call with a key ──► helm test, audit

The log is behind TLS and a password for each principal. Both come from Secrets as mounted files, as do the keys that
adapters are signed with. Each principal may do what docs/install.md says, and no more. The model is the tiny one and
lies in the image. That runs with `make test-deploy`, in one to three minutes.

Not covered: what tests/support/deploy/container.py does not do for a container; SCRAM.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from schemas.events import Message, RewardSource, Sampling
from streams import output
from streams.kafka.registry.server import serve as serve_schemas
from streams.kafka.topics import topics
from streams.observability import catalog
from streams.settings.model import Settings, Topics
from tests import skips
from tests.deploy.test_cluster import OPT_IN
from tests.support.deploy.container import Container, Host, Process, of_pod
from tests.support.deploy.rendered_chart import IMPROVE, Object, helm, merged, needs_helm, spec_of
from tests.support.doubles.guarded_http import guarding
from tests.support.factories import task
from tests.support.log.principals import rights
from tests.support.log.secured_node import running_node
from tests.support.models.tiny import save_tiny
from tests.support.processes import said, until
from tests.support.scrape import parse
from tests.unit.test_adapter_signing import key_pair

pytestmark = [pytest.mark.kafka, needs_helm]

IMPROVERS = ("curate", "datasets", "retrain", "selfplay")
COMPONENTS = (
    "streams",
    "scoring",
    "policy",
    "trainer",
    "jobs",
    "tuner",
    "calls",
    "serve",
    "audit",
    "archive",
    *IMPROVERS,
)
PREFIX = "secured."
USERS = {name: f'{name} "and"; = \\\\ü' for name in ("topics", *COMPONENTS)}
"""Passwords by user; no two are alike, and each has what a format might stumble over."""
PASSWORD = "correct horse battery staple"
LENGTH = RewardSource(name="length", settings=json.dumps({"unit": "characters", "limit": 60}))
"""Random words differ in it, so that there is something to train on."""


def containers(values: Object, secrets: Object) -> dict[str, list[Container]]:
    """Return the containers by component, each as often as it has replicas."""
    done = helm(values)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    configs = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    pods = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found if has_pod(one)}
    return {
        name: [of_pod(name, spec_of(one), configs, secrets)] * one["spec"].get("replicas", 1)
        for name, one in pods.items()
    }


def has_pod(found: Object) -> bool:
    return found["kind"] in ("Deployment", "Job", "Pod")


def asked(count: int) -> str:
    """Return tasks as `tasks submit` takes them, one a line."""
    now_ms = int(time.time() * 1000)
    tasks = (
        task(
            task_id=f"t{number}",
            created_at=now_ms,
            messages=(Message(role="user", content=f"{number} 7"),),
            reward_sources=(LENGTH,),
            sampling=Sampling(max_tokens=8),
        )
        for number in range(count)
    )
    return "".join(f"{output.json_line(one)}\n" for one in tasks)


def test_the_hook_makes_the_topics_and_helm_test_comes_back_with_scores(kafka_bootstrap: str, tmp_path: Path) -> None:
    values = {
        "kafka": {"bootstrap": "kafka.test:9092"},
        "settings": {"topics": {"prefix": "rendered.", "partitions": 2, "policy_partitions": 1}},
        "policy": {"settings": {"policy": {"engine": "scripted"}}},
        "streams": {"replicas": 1},
        "scoring": {"replicas": 1},
    }
    found = containers(values, {})
    host = Host(tmp_path, {"kafka.test:9092": kafka_bootstrap})
    assert "created" in host.put(found["topics"][0]).ends()
    loop = [host.put(found[name][0]) for name in ("streams", "scoring", "policy")]
    with host.running(*loop):
        host.until_ready(*loop)
        assert scores(host.put(found["test"][0]).ends()) == [(0, 4)]


def test_hook_and_processes_ask_a_registry_behind_tls_each_as_its_own_user(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    topics = {"prefix": "guarded.", "partitions": 2, "policy_partitions": 1}
    users = {"reads": 'r "d"; ü', "registers": "w: \\ s"}
    values = {
        "kafka": {"bootstrap": "kafka.test:9092"},
        "settings": {"topics": topics},
        "schemas": {
            "registryUrl": "https://registry.test:8443",
            "secret": "reads",
            "registerSecret": "registers",
            "caSecret": "authority",
        },
        "policy": {"settings": {"policy": {"engine": "scripted"}}},
        "streams": {"replicas": 1},
        "scoring": {"replicas": 1},
    }
    secrets = {name: {"username": name, "password": password} for name, password in users.items()}
    behind = serve_schemas(Settings(topics=Topics(**topics)))
    with behind as url, guarding(url, users, tmp_path) as door:
        found = containers(values, {**secrets, "authority": {"ca.crt": door.authority}})
        host = Host(tmp_path, {"kafka.test:9092": kafka_bootstrap, "registry.test:8443": door.address})
        host.put(found["topics"][0]).ends()
        assert door.came == [], "who makes topics needs no ids"
        for _ in range(2):
            rows = [json.loads(line) for line in host.put(found["schemas"][0]).ends().splitlines()]
            assert {row["result"] for row in rows} == {"there"}
        assert {user for user, _ in door.came} == {"registers"}
        door.came.clear()
        loop = [host.put(found[name][0]) for name in ("streams", "scoring", "policy")]
        with host.running(*loop):
            host.until_ready(*loop)
            for process in loop:
                ready = process.get(process.container.ports["metrics"], "/metrics")[1]
                assert parse(ready).total(catalog.READY.name, condition="schema_registry") == 1
            assert scores(host.put(found["test"][0]).ends()) == [(0, 4)]
        assert set(door.came) == {("reads", "GET")}, "nothing is registered by a process"


def scores(printed: str) -> list[tuple[int, int]]:
    """Return (version, answers) of what `helm test` prints, in which nothing may be missing."""
    answer = json.loads(printed)
    assert answer["waiting"] == [] and answer["suite"].startswith("one-revision-1@")
    return [(score["version"], score["n"]) for score in answer["scores"]]


# --- behind TLS and passwords ----------------------------------------------------------------------------------------


SECURED: Object = {
    "kafka": {
        "bootstrap": "kafka.test:9093",
        "securityProtocol": "SASL_SSL",
        "sasl": {"mechanism": "PLAIN"},
        "tls": {"caSecret": "authority"},
    },
    **{name: {"saslSecret": f"for-{name}"} for name in USERS if name not in IMPROVERS},
    "improve": merged(IMPROVE, {name: {"saslSecret": f"for-{name}"} for name in IMPROVERS}),
    "tuner": {"saslSecret": "for-tuner", "enabled": True},
    "calls": {"saslSecret": "for-calls", "enabled": True},
    "serve": {"saslSecret": "for-serve", "enabled": True, "replicas": 3, "loginSecret": "login"},
    "audit": {"saslSecret": "for-audit", "enabled": True, "everySeconds": 2},
    "archive": {"saslSecret": "for-archive", "enabled": True, "settings": {"archive": {"follow_s": 1}}},
    "signing": {"privateSecret": "signs", "publicSecret": "verifies"},
    "settings": {
        "topics": {"prefix": PREFIX, "partitions": 2, "policy_partitions": 1},
        "model": {"base": "/models/tiny"},
        "batches": {"groups": 4},
    },
}


class Release:
    """What runs, by component, and what is asked of it."""

    def __init__(self, host: Host, found: dict[str, list[Container]]) -> None:
        self.host, self.found = host, found
        self.by_name: dict[str, list[Process]] = {name: [host.put(one) for one in found[name]] for name in COMPONENTS}
        self.every = [process for processes in self.by_name.values() for process in processes]

    def told(self, *command: str, stdin: str = "") -> list[Any]:
        """Return the JSON lines of a command of the program in a Pod of `streams`, as the chart's NOTES have it."""
        done = self.by_name["streams"][0].execute("streamward", *command, stdin=stdin)
        assert done.returncode == 0, f"{command}: {done.stderr}\n{said(self.host.folder)}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    def total(self, name: str, metric: catalog.Metric, **labels: str) -> float:
        """Return the sum of a metric over the replicas, from the port that their Pods name."""
        return sum(
            parse(process.get(process.container.ports["metrics"], "/metrics")[1]).total(metric.name, **labels)
            for process in self.by_name[name]
        )


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release that is ready."""
    if os.environ.get(OPT_IN) != "1":
        pytest.skip(skips.ASKED_FOR)
    with running_node(tmp_path_factory.mktemp("kafka"), USERS, {name: rights(name, PREFIX) for name in USERS}) as node:
        secrets: Object = {f"for-{name}": {"username": name, "password": USERS[name]} for name in USERS}
        folder = tmp_path_factory.mktemp("release")
        private, public = key_pair(tmp_path_factory.mktemp("keys"))
        secrets["authority"] = {"ca.crt": node.authority.read_text()}
        secrets["signs"] = {"adapters.key": private.read_text()}
        secrets["verifies"] = {"adapters.pub": public.read_text()}
        secrets["login"] = {"signing.pem": key_pair(tmp_path_factory.mktemp("login"))[0].read_text()}
        model = {"/models/tiny": save_tiny(folder / "tiny")}
        host = Host(folder, {"kafka.test:9093": node.bootstrap["SASL_SSL"]}, model)
        found = containers(SECURED, secrets)
        host.put(found["topics"][0]).ends()
        running = Release(host, found)
        with host.running(*running.every):
            host.until_ready(*running.every)
            yield running
        assert [process.written_elsewhere() for process in running.every] == [[]] * len(running.every)


def test_a_version_is_trained_and_served_by_what_the_chart_renders(release: Release) -> None:
    assert [row["state"] for row in release.told("tasks", "submit", "-", stdin=asked(16))] == ["sent"] * 16
    until(lambda: release.total("trainer", catalog.VERSION) >= 1, "a version", folder=release.host.folder)
    until(
        lambda: (
            not release.total("policy", catalog.ADAPTER, role="served", version="0")
            and release.total("policy", catalog.ADAPTER, role="served") == 1
        ),
        "a version that is served",
        folder=release.host.folder,
    )
    assert release.total("trainer", catalog.TRAINED_TOKENS) > 0
    versions = {row["version"]: row["status"] for row in release.told("adapters", "list")}
    assert set(versions) >= {0, 1} and versions[0] == "superseded"
    for process in release.every:
        assert all(process.passes(kind) for kind in process.container.probes)


def test_what_plugins_add_to_a_release_does_its_work(release: Release) -> None:
    for file in sorted(Path(__file__).parents[1].glob("plugins/*/release_check.py")):
        import_module(f"tests.plugins.{file.parent.name}.release_check").check(release, LENGTH)


def test_the_server_answers_who_has_a_key_and_lets_people_log_in(release: Release) -> None:
    servers = release.by_name["serve"]
    server = servers[0]
    made = server.execute("streamward", "admin", "access", "keys", "create", "--role", "submitter", "--name", "first")
    assert made.returncode == 0, made.stderr
    user = server.execute(
        "streamward", "admin", "access", "users", "create", "ann", "--role", "viewer", stdin=f"{PASSWORD}\n"
    )
    assert user.returncode == 0, user.stderr
    urls = [f"http://{each.address}:{each.container.ports['http']}" for each in servers]
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "1 2"}]}

    def asks(headers: dict[str, str], url: str = urls[0]) -> int:
        return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300).status_code

    key = {"Authorization": f"Bearer {made.stdout.strip()}"}
    until(lambda: asks(key) == 200, "a call", folder=release.host.folder)
    assert [asks(key, url) for url in urls] == [200, 200, 200], "one answers, two forward"
    assert asks({}) == 401
    login = httpx.post(f"{urls[1]}/auth/login", json={"username": "ann", "password": PASSWORD}, timeout=300)
    assert login.status_code == 200 and asks({"Authorization": f"Bearer {login.json()['access_token']}"}) == 403


def test_helm_test_comes_back_with_scores(release: Release) -> None:
    assert scores(release.host.put(release.found["test"][0]).ends()) == [(0, 4)]


def test_the_ledger_balances_and_prometheus_could_read_that(release: Release) -> None:
    release.told("audit", "--output", "json")
    until(lambda: release.total("audit", catalog.RECOUNTED) > 0, "a recount", folder=release.host.folder)
    assert release.total("audit", catalog.IMBALANCE) == 0


def test_the_archive_has_the_log_and_queries_in_its_pod_read_it(release: Release) -> None:
    (process,) = release.by_name["archive"]
    done = process.execute("streamward", "query", "SELECT count(*) AS n FROM tasks", "--source", "archive")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] >= 16
    until(lambda: release.total("archive", catalog.ARCHIVE_LAG_RECORDS) == 0, "no lag", folder=release.host.folder)


def test_the_topics_are_those_of_the_program(release: Release) -> None:
    wanted = topics(Topics(**SECURED["settings"]["topics"]))
    made = {row["label"]: row["partitions"] for row in release.told("admin", "topics", "list")}
    assert made == {label: topic.partitions for label, topic in wanted.items()}


def test_a_principal_may_not_write_what_is_not_its_own(release: Release) -> None:
    for name in ("scoring", "policy", "trainer", "tuner", "calls", "audit", "archive", "curate", "datasets", "retrain"):
        done = release.by_name[name][0].execute("streamward", "tasks", "submit", "-", stdin=asked(17))
        assert done.returncode == 5 and "authorization failed" in done.stderr


def test_only_who_makes_versions_can_sign_and_only_agents_have_what_they_verify_with(release: Release) -> None:
    for file, who in {"adapters.key": {"trainer", "tuner", "calls"}, "adapters.pub": {"policy", "serve"}}.items():
        having = {process.container.name for process in release.every if list(process.root.rglob(f"signing/{file}"))}
        assert having == who


def test_a_password_is_in_its_file_and_nowhere_else(release: Release) -> None:
    for process in release.every:
        (file,) = process.root.rglob("password")
        assert file.read_text(encoding="utf-8") == USERS[process.container.name]
        told = [Path(f"/proc/{process.child.pid}/{what}").read_bytes() for what in ("environ", "cmdline")]
        told.append((release.host.folder / f"{process.root.name}.log").read_bytes())
        assert not any(password.encode() in text for password in USERS.values() for text in told)
