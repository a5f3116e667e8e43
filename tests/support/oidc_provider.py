"""A provider of OpenID Connect that others wrote, for tests: oidc-provider-mock, whose form lets anybody in by name.

folder, claims of everybody ──► a process on a free port ──► its URL, while the block runs
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes import until


@contextmanager
def provider(folder: Path, claims: dict[str, Any]) -> Iterator[str]:
    """Yield the provider's URL; its output is in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    listens = ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    command = [sys.executable, "-m", "oidc_provider_mock", *listens, "--require-nonce"]
    with (folder / "provider.log").open("wb") as log:
        process = subprocess.Popen([*command, "true", "--user-claims", json.dumps(claims)], stdout=log, stderr=log)
    try:

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{url}/jwks", timeout=300).status_code == 200
            return False

        until(answers, "the provider answers", folder=folder)
        yield url
    finally:
        process.kill()
        process.wait()
