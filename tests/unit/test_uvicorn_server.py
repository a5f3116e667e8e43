"""The server of the gateway over TLS: a real socket and a real handshake, and files that cannot be used.

Not covered: what it answers, which is the applications' own.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gateway.http.uvicorn_server import TlsFiles, bound, quiet_server
from gateway.server import tls_files
from streams.errors import SettingsError
from streams.settings.model import Serve, Settings
from tests.support.log.secured_node import self_signed


async def scheme(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer how the request came."""
    await PlainTextResponse(Request(scope).url.scheme)(scope, receive, send)


def files(folder: Path) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    made = TlsFiles(folder / "certificate.pem", folder / "key.pem")
    for path, text in zip(made, self_signed(), strict=True):
        path.write_text(text)
    return made


def test_a_client_that_knows_the_authority_is_answered_over_tls_and_plain_http_is_not(tmp_path: Path) -> None:
    tls = files(tmp_path)

    async def asked() -> tuple[str, str]:
        with bound("serve", "127.0.0.1", 0) as listening:
            server = quiet_server(scheme, grace_s=1, tls=tls)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            where = f"127.0.0.1:{listening.getsockname()[1]}"
            known = ssl.create_default_context(cafile=tls.certificate)
            async with httpx.AsyncClient(verify=known, timeout=300) as client:
                answer = await client.get(f"https://{where}/")
                with pytest.raises(httpx.HTTPError) as refused:
                    await client.get(f"http://{where}/")
            server.should_exit = True
            await serving
        return answer.text, type(refused.value).__name__

    assert asyncio.run(asked()) == ("https", "RemoteProtocolError")


def test_files_that_cannot_be_used_are_said_before_anything_is_loaded(tmp_path: Path) -> None:
    one, other = files(tmp_path / "one"), files(tmp_path / "other")
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(one.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    for certificate, private, said in (
        (one.certificate, tmp_path / "none.pem", "none.pem: no such file"),
        (one.certificate, other.key, "the private key that belongs to it"),
        (one.key, one.key, "Expected a certificate"),
        (one.certificate, locked, "without a password"),
    ):
        settings = Settings(serve=Serve(tls_certificate=certificate, tls_key=private))
        with pytest.raises(SettingsError, match=said):
            tls_files(settings)
    with pytest.raises(ValidationError, match="belong together"):
        Serve(tls_certificate=one.certificate)
    assert tls_files(Settings()) is None
    assert Serve(tls_certificate=one.certificate, tls_key=one.key).url == "https://127.0.0.1:8790"
