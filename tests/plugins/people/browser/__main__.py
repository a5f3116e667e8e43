"""A server with keys that people reach by an issuer which others wrote, and Chromium that logs in: of make test-page.

oidc-provider-mock ◄──► `streamward serve` on a Kafka node, at localhost, as the issuer is at 127.0.0.1: another site

    python -m tests.plugins.people.browser PICTURES     PAGE_PYTHON has Playwright; PYTHONPATH the page's walks
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from plugins.people.access.tokens import new_private_key
from plugins.people.settings import People
from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.kafka.producer import Producer
from tests.support.agent_server import serving, settings_of
from tests.support.factories import trained
from tests.support.oidc_provider import provider

PERSON = "dora@lab"


@contextmanager
def guarded(folder: Path) -> Iterator[str]:
    """Yield the server's address. Who comes by the issuer may promote, and policy `coach` has a version to promote."""
    key = folder / "signing.pem"
    key.write_bytes(new_private_key())
    claims = {"sub": PERSON, "preferred_username": "dora", "roles": ["lab"]}
    with broker.embedded(folder / "kafka") as node, provider(folder, claims) as issuer:
        settings = settings_of(node.bootstrap, folder, auth="keys")
        url = f"http://localhost:{settings.serve.port}"
        login = People(
            signing_key=key,
            public_url=url,
            oidc_issuer=issuer,
            oidc_client_id="streamward",
            oidc_client_secret=SecretStr("any is good there"),
            oidc_roles="lab=promoter",
        )
        settings = settings.model_copy(update={"people": login})
        admin.apply_topics(settings)
        with Producer(settings) as producer:
            producer.send(trained(1, policy="coach"))
        with serving(settings):
            yield url


def main(pictures: str) -> int:
    """Return the exit code of the browser."""
    with tempfile.TemporaryDirectory() as folder, guarded(Path(folder)) as address:
        walk = Path(__file__).parent / "log_in.py"
        command = [os.environ["PAGE_PYTHON"], str(walk), address, PERSON, pictures, os.environ["AXE"]]
        return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
