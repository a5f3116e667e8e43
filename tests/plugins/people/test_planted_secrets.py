"""Secrets are planted in a server that runs, and looked for in everything that it leaves behind.

    a Kafka password, a client's secret at an issuer, a signing key ──► settings ─┐
    a key, a password, refresh and access tokens ──► requests, good and bad ──────┴─► `streamward serve`, at its most
    talkative ──► its log, answers, metrics, arguments, events ──► none of them

That each secret was in use is checked, too: otherwise nothing would be found in any case.

Not covered: the memory of the process, and its environment, which its user alone may read; core files, of which there
are none (tests/unit/test_core_files.py).
"""

from __future__ import annotations

import base64
import http.server
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import psutil
import pytest
from pydantic import SecretStr

from plugins.people.settings import People
from streams.kafka import admin
from streams.processes import core_files
from streams.settings.model import Adapters, Kafka, Metrics, Policy, Serve, Settings, Topics
from tests.support.commands import invoke
from tests.support.log.secured_node import free_ports, running_node
from tests.support.processes import command, environment, spawn, until

pytestmark = pytest.mark.kafka
KAFKA_PASSWORD = "planted-kafka-password"
CLIENT_SECRET = "planted-client-secret"
PASSWORD = "planted password of eve"
WRONG = "planted wrong password"


class Served(NamedTuple):
    """A server that was asked everything, and has ended."""

    secrets: dict[str, str]
    """What is looked for, by what it is."""
    in_use: dict[str, bool]
    """Whether something went well that needs it."""
    left: dict[str, str]
    """Everything that was left behind, by what it is."""


@contextmanager
def own_issuer(sent: list[str]) -> Iterator[str]:
    """Run an issuer that knows no code, and notes who asks for a token; yield its address."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = f"http://127.0.0.1:{listening.server_port}"
            names = {"authorization_endpoint": "/page", "token_endpoint": "/token", "jwks_uri": "/keys"}
            self.say(200, {"issuer": url, **{name: url + path for name, path in names.items()}})

        def do_POST(self) -> None:
            sent.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.say(400, {"error": "invalid_grant"})

        def say(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, sent = tmp_path_factory.mktemp("planted"), list[str]()
    with (
        running_node(tmp_path_factory.mktemp("node"), {"streamward": KAFKA_PASSWORD}) as node,
        own_issuer(sent) as issuer,
    ):
        port, metrics_port = free_ports(2)
        settings = Settings(
            kafka=Kafka(
                bootstrap=node.bootstrap["SASL_PLAINTEXT"],
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_username="streamward",
                sasl_password=SecretStr(KAFKA_PASSWORD),
            ),
            topics=Topics(prefix="planted.", partitions=1, policy_partitions=1),
            adapters=Adapters(store=str(folder / "adapters")),
            policy=Policy(name="sums", engine="scripted", script='{"replies": [{"when": "?", "reply": "fine"}]}'),
            serve=Serve(port=port, auth="keys"),
            metrics=Metrics(port=metrics_port),
        )
        people = People(
            signing_key=folder / "signing.pem",
            public_url=f"http://127.0.0.1:{port}",
            oidc_issuer=issuer,
            oidc_client_id="streamward",
            oidc_client_secret=SecretStr(CLIENT_SECRET),
            oidc_roles="lab=trainer",
        )
        settings = settings.model_copy(update={"people": people})
        admin.apply_topics(settings)
        said = [
            run(settings, "admin", "access", "signing-key", "rotate"),
            run(settings, "admin", "access", "users", "create", "eve", "--role", "admin", typed=PASSWORD),
        ]
        key = run(settings, "admin", "access", "keys", "create", "--role", "admin").splitlines()[0]
        asked = Asked(settings, key)
        with server(settings, folder) as process:
            asked.everything(process)
        basic = base64.b64encode(f"streamward:{CLIENT_SECRET}".encode()).decode()
        secrets = {
            "Kafka's password": KAFKA_PASSWORD,
            "the client's secret": CLIENT_SECRET,
            "the client's secret, encoded": basic,
            "a password": PASSWORD,
            "a wrong password": WRONG,
            "a key": key.split("_", 2)[2],
            "the signing key": (folder / "signing.pem").read_text().splitlines()[1],
            **asked.tokens,
        }
        said += [run(settings, "config", "show", "--output", output) for output in ("table", "jsonl")]
        said += [
            run(settings, *args)
            for args in (("admin", "access", "audit"), ("admin", "access", "users", "list"), ("doctor",))
        ]
        records = [record for label in ("access", "requests", "turns") for record in admin.read_topic(settings, label)]
    yield Served(
        secrets=secrets,
        in_use={**asked.in_use, "the client's secret": f"Basic {basic}" in sent},
        left={
            "the server's log": (folder / "serve.log").read_text(),
            "what commands print": "\n".join(said),
            "events": b"".join((record.payload or b"") + (record.key or b"") for record in records).decode("latin-1"),
            **asked.left,
        },
    )


def run(settings: Settings, *args: str, typed: str | None = None) -> str:
    found = invoke(settings, *args, input=typed)
    assert found.exit_code == 0, found.output
    return found.output


@contextmanager
def server(settings: Settings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `streamward serve`, which prints as much as it can."""
    with (folder / "serve.log").open("wb") as log:
        process = spawn(
            command("--log-level", "debug", "serve"),
            env=environment(settings),
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "serve.log").read_text()
            try:
                return httpx.get(f"{settings.serve.url}/healthz", timeout=300).is_success
            except httpx.TransportError:
                return False

        until(answers, "the server to answer")
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()


class Asked:
    """Everything that is asked of the server, and what it answers."""

    def __init__(self, settings: Settings, key: str) -> None:
        self._settings, self._key = settings, key
        self._answers: list[str] = []
        self._whole: list[str] = []
        """Tokens as they are sent; of each, a part is secret."""
        self.tokens: dict[str, str] = {}
        self.in_use: dict[str, bool] = {}
        self.left: dict[str, str] = {}

    def everything(self, process: subprocess.Popen[bytes]) -> None:
        """Ask, with secrets where they belong and where they do not."""
        with httpx.Client(base_url=self._settings.serve.url, timeout=300) as http:
            self._log_in(http)
            for secret in (self._key, *self._whole, PASSWORD):
                self._misplace(http, secret)
            for secret in (self._key, *self._whole):
                self._misspell(http, secret)
            self._by_issuer(http)
            used = self._kept(
                http.post("/v1/responses", headers=bearer(self._key), json={"model": "sums", "input": "?"})
            )
            self.in_use |= {"a key": used.is_success, "Kafka's password": used.is_success}
        metrics = httpx.get(f"http://127.0.0.1:{self._settings.metrics.port}/metrics", timeout=300)
        running = psutil.Process(process.pid)
        assert running.rlimit(psutil.RLIMIT_CORE)[0] <= core_files.LEAST_BYTES
        self.left |= {
            "answers": "\n".join(self._answers),
            "metrics": metrics.text,
            "arguments": "\n".join(" ".join(each.cmdline()) for each in (running, *running.children(recursive=True))),
        }

    def _log_in(self, http: httpx.Client) -> None:
        entered = http.post("/auth/login", json={"username": "eve", "password": PASSWORD})
        assert entered.is_success, entered.text
        first = entered.json()
        second = http.post("/auth/tokens/refresh", json={"refresh_token": first["refresh_token"]}).json()
        self.tokens = {
            f"{which} {name}": pair[name].split("_", 2)[2] if name == "refresh_token" else pair[name].rpartition(".")[2]
            for which, pair in (("first", first), ("second", second))
            for name in ("access_token", "refresh_token")
        }
        self._whole = [pair[name] for pair in (first, second) for name in ("access_token", "refresh_token")]
        answer = self._kept(http.get("/auth/permissions", headers=bearer(second["access_token"])))
        self.in_use |= {"a password": True, "the signing key": answer.is_success}
        self._kept(http.post("/auth/tokens/refresh", json={"refresh_token": first["refresh_token"]}))
        for body in (
            {"username": "eve", "password": WRONG},
            {"username": WRONG, "password": PASSWORD},
            {"username": "eve", "password": [PASSWORD]},
            {"username": "eve", "password": PASSWORD, WRONG: WRONG},
        ):
            self._kept(http.post("/auth/login", json=body))
        self._kept(http.post("/auth/logout", json={"refresh_token": second["refresh_token"] + "x"}))

    def _misplace(self, http: httpx.Client, secret: str) -> None:
        for headers in (bearer(secret + "x"), {"x-api-key": secret[:-1]}, {"Authorization": f"Basic {secret}"}):
            self._kept(http.get("/v1/models", headers=headers))
        for path in ("/auth/login", "/auth/tokens/refresh", "/auth/logout"):
            for body in (secret, json.dumps(secret), json.dumps([secret]), json.dumps({secret: secret})):
                self._kept(http.post(path, content=body))
        for form in ({"username": secret, "password": WRONG}, {"username": "eve", "password": secret + "x"}):
            self._kept(http.post("/page/login", data={**form, "next": "/page/"}))
        self._kept(http.get("/page/", headers={"Cookie": f"streamward-login={secret}:{secret}"}))

    def _misspell(self, http: httpx.Client, secret: str) -> None:
        """Send a key or a token in the place of something else; a client reads what is wrong, and may write it down."""
        own = bearer(self._key)
        for body in (secret, json.dumps([secret]), json.dumps({"model": secret, "input": 7, secret: secret})):
            for path in ("/v1/responses", "/v1/chat/completions", "/v1/messages", "/jsonrpc", "/finetune/jobs"):
                self._kept(http.post(path, headers=own, content=body))
        self._kept(http.get("/v1/models", headers=own, params={"after": secret}))
        self._kept(http.get("/v1/files", headers=own, params={"after": secret}))
        for path in ("/v1/models/", "/v1/files/", "/v1/fine_tuning/jobs/", "/nowhere/"):
            self._kept(http.get(path + secret, headers=own))
        call = {"jsonrpc": "2.0", "method": "training.get_status", "params": {"job_id": secret, secret: 1}, "id": 1}
        self._kept(http.post("/jsonrpc", headers=own, json=call))

    def _by_issuer(self, http: httpx.Client) -> None:
        begun = self._kept(http.get("/auth/oidc/login"))
        state = dict(parse_qsl(urlsplit(begun.headers["location"]).query))["state"]
        for code in ("planted-code", CLIENT_SECRET):
            self._kept(http.get("/auth/oidc/callback", params={"code": code, "state": state}))

    def _kept(self, answer: httpx.Response) -> httpx.Response:
        headers = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
        self._answers.append(f"{answer.status_code}\n{headers}\n{answer.text}")
        return answer


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_every_secret_was_in_use(served: Served) -> None:
    assert served.in_use == dict.fromkeys(
        ("a password", "the signing key", "a key", "Kafka's password", "the client's secret"), True
    )
    assert "answers at http" in served.left["the server's log"]
    assert "streamward_" in served.left["metrics"] and "serve" in served.left["arguments"]
    assert all(text for text in served.left.values())


@pytest.mark.parametrize(
    "where", ["the server's log", "answers", "metrics", "arguments", "what commands print", "events"]
)
def test_no_secret_is_left_behind(served: Served, where: str) -> None:
    assert [what for what, secret in served.secrets.items() if secret in served.left[where]] == []
