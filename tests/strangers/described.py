"""What schemathesis and two generated clients make of the committed description of the interface.

    gateway/openapi.json ──► schemathesis, with a key of each role ──► a server with keys ──► checks that failed
                         └─► clients/ generated again, `tsc --strict`, both examples     ──► what they print

A role is refused most of it, and those refusals are answers that have to be described, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import httpx
from pydantic import SecretStr

from gateway.document import FILE
from streams.access.roles import ROLES
from streams.kafka import admin
from tests.support.agent_server import serving, settings_of
from tests.support.log.keys import open_keys
from tests.support.oidc_provider import provider
from tests.support.planted_log import plant
from tests.support.processes import until

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv-strangers"
CLIENTS = ROOT / "clients"
TRUE = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
"""Checks of what is answered, whoever asks."""
STRICT = (*TRUE, "negative_data_rejection", "unsupported_method")
"""Not that valid data is accepted: JSON Schema cannot say that a text has to be JSON (`arguments`)."""
RIGHT = ("Unsupported method GET returned 426, expected 405", "[413] Content Too Large:")
"""No failure, if it is the only one: a path that is a WebSocket, too, answers so (RFC 9110, section 15.5.22), and 413
rejects a body that is longer than a route takes (section 15.5.14)."""
SHOWN = 500
"""Characters of what a check says."""
UNTESTED = "not tested"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
PATIENCE_S = 300
"""For an answer: an order waits for the broker, a trial of an environment for processes, and all for a busy machine."""
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Of a job: another one in each run."""

Failed = dict[str, list[str]]


class KeyedServer(NamedTuple):
    """A server that asks for keys, and one of each role."""

    url: str
    keys: dict[str, str]


@contextmanager
def keyed(bootstrap: str, folder: Path) -> Iterator[KeyedServer]:
    """Yield a server where people can log in, by a password or by an issuer, while the block runs.

    Its log has one of everything: a route that answers with nothing may fail with something.
    """
    from plugins.people.access.tokens import new_private_key
    from plugins.people.settings import People

    signing_key = folder / "signing.pem"
    signing_key.write_bytes(new_private_key())
    found = settings_of(bootstrap, folder, auth="keys", key_per_s=0, key_at_once=0)
    with provider(folder, {"sub": "dora", "preferred_username": "dora", "roles": ["lab"]}) as issuer:
        login = People(
            signing_key=signing_key,
            public_url=found.serve.url,
            oidc_issuer=issuer,
            oidc_client_id="streamward",
            oidc_client_secret=SecretStr("any is good there"),
            oidc_roles="lab=trainer",
        )
        settings = found.model_copy(update={"people": login})
        admin.apply_topics(settings)
        with open_keys(settings) as log:
            keys = {role: log.create(role=role, actor="ann").text for role in ROLES}
        with serving(settings) as url:
            until(lambda: _knows(url, keys["admin"]), "the server knows the keys")
            plant(settings, url, keys["admin"], "planted", None)
            yield KeyedServer(url, keys)


def _knows(url: str, key: str) -> bool:
    return (
        httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S).status_code == 200
    )


def schemathesis(url: str, folder: Path, document: dict[str, Any], *options: str, examples: int = 20) -> Failed:
    """Let schemathesis make requests of a description, valid and invalid ones; return the checks that failed.

    An operation of which its report has no word was not tested, and that is a failure, too.
    """
    file, report = folder / "described.json", folder / "schemathesis.xml"
    file.write_text(json.dumps(document), encoding="utf-8")
    report.unlink(missing_ok=True)
    program = str(HOME / "bin" / "schemathesis")
    chosen = ["--seed", "1", "--max-examples", str(examples), "--generation-deterministic"]
    chosen += ["--request-timeout", str(PATIENCE_S)]
    reported = ["--report", "junit", "--report-junit-path", str(report)]
    ordered = {"PYTHONHASHSEED": "0"}  # of two parts that break a rule it names the one that it reaches first
    run([program, "run", str(file), "--url", url, *chosen, *reported, *options], folder, ordered)
    failed: Failed = {name: [UNTESTED] for name in operations(document)}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - of our own run
        found = case.findall("failure") + case.findall("error")
        told = [" ".join(f"{each.get('message') or ''} {each.text or ''}".split()) for each in found]
        failed[case.get("name") or ""] = [
            text[:SHOWN] for text in told if "2. Test Case ID" in text or not any(right in text for right in RIGHT)
        ]
    return {name: messages for name, messages in failed.items() if messages}


def operations(document: dict[str, Any]) -> list[str]:
    """Return the operations of a description: "GET /tasks"."""
    return [
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item if method in METHODS
    ]


def openly(url: str, folder: Path) -> Failed:
    """Check a server without keys by its own description; JSON-RPC answers wrong requests with status 200."""
    document = httpx.get(f"{url}/openapi.json", timeout=PATIENCE_S).raise_for_status().json()
    del document["paths"]["/api/v1/jsonrpc"]
    return schemathesis(url, folder, document, "--checks", ",".join(STRICT), "--phases", "coverage,fuzzing")


def by_role(server: KeyedServer, folder: Path) -> dict[str, Failed]:
    """Check the committed description with a key of each role."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    phases = ("--phases", "examples,coverage,fuzzing", "--checks", ",".join(TRUE))
    return {
        role: schemathesis(
            server.url, folder, document, *phases, "--header", f"Authorization: Bearer {key}", examples=8
        )
        for role, key in server.keys.items()
    }


def clients(server: KeyedServer, folder: Path) -> dict[str, Any]:
    """Make both clients anew, and run the example of the one for TypeScript; `make test` runs the other."""
    if shutil.which("node") is None:
        sys.exit(
            "tests.strangers: node is not on PATH, and the client for TypeScript is checked by it; install node 20"
        )
    python, tsc = str(HOME / "bin" / "python"), str(HOME / "node" / "node_modules" / ".bin" / "tsc")
    made = folder / "typescript"
    key = {"STREAMWARD_URL": server.url, "STREAMWARD_KEY": server.keys["trainer"]}
    drift = run([python, str(CLIENTS / "generate.py"), "--check"], folder)
    compiled = run([tsc, "--project", str(CLIENTS / "typescript"), "--outDir", str(made)], folder)
    return {
        "changed": drift,
        "tsc": compiled,
        "typescript": _said(run(["node", str(made / "examples" / "order-job.js")], folder, key)),
    }


def _said(output: str) -> list[str]:
    return ID.sub("ID", output).splitlines()


def read_by(program: Path, url: str) -> dict[str, Any]:
    """Return what a program of the strangers' Python read, the last line that it prints. Raises RuntimeError."""
    command = [str(HOME / "bin" / "python"), str(program), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program and return what it says; of a suite the exit code only says that it found something."""
    env = {**os.environ, "HOME": str(folder), **(environment or {})}
    ended = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print((ended.stdout + ended.stderr)[-1500:], flush=True)
    return ended.stdout + ended.stderr
