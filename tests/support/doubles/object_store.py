"""An object store with the part of S3's protocol that archives use, in the memory of a process of its own.

    with bucket(monkeypatch) as url ──► s3://bucket/... leads there

Delta's driver holds Python's lock while it waits, so a thread of the test's process could never answer it.

Not covered: signatures, which are taken as they come, and who may do what.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import pytest


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _S3(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each body waits for its headers to be acknowledged, 40 ms
    objects: ClassVar[dict[str, bytes]] = {}
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        split = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return unquote(split.path).removeprefix("/bucket").lstrip("/"), asked, body

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": formatdate(usegmt=True), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        key, asked, body = self._asked()
        with self.lock:
            if "uploadId" in asked:
                self.parts[asked["uploadId"]][int(asked["partNumber"])] = body
            elif self.headers.get("If-None-Match") == "*" and key in self.objects:
                return self._reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                self.objects[key] = body
        self._reply(200, ETag=_etag(body))

    def do_POST(self) -> None:
        key, asked, body = self._asked()
        with self.lock:
            if "uploads" in asked:
                self.parts[upload := f"u{len(self.parts)}"] = {}
                said = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            elif "delete" in asked:
                gone = re.findall("<Key>(.*?)</Key>", body.decode())
                for each in gone:
                    self.objects.pop(unescape(each), None)
                said = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in gone)
                said = f"<DeleteResult>{said}</DeleteResult>"
            else:
                self.objects[key] = b"".join(part for _, part in sorted(self.parts[asked["uploadId"]].items()))
                etag = escape(_etag(self.objects[key]))
                said = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        self._reply(200, said.encode())

    def do_DELETE(self) -> None:
        key, _, _ = self._asked()
        with self.lock:
            self.objects.pop(key, None)
        self._reply(204)

    def do_HEAD(self) -> None:
        key, _, _ = self._asked()
        data = self.objects.get(key)
        if data is None:
            return self._reply(404)
        self._reply(200, ETag=_etag(data), Content_Length=str(len(data)))

    def do_GET(self) -> None:
        key, asked, _ = self._asked()
        if "list-type" in asked:
            return self._reply(200, self._listing(asked).encode())
        data = self.objects.get(key)
        if data is None:
            return self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        span = self.headers.get("Range")
        if span is None:
            return self._reply(200, data, ETag=_etag(data))
        first, last = span.removeprefix("bytes=").split("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        self._reply(206, data[begin:end], ETag=_etag(data), Content_Range=f"bytes {begin}-{end - 1}/{len(data)}")

    def _listing(self, asked: dict[str, str]) -> str:
        prefix, after = asked.get("prefix", ""), asked.get("start-after", "")
        found, folders = [], set()
        for key, data in sorted(self.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if "delimiter" in asked and "/" in rest:
                folders.add(prefix + rest.split("/", 1)[0] + "/")
            else:
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>"
                    f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
                )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}{common}</ListBucketResult>"


@contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve s3://bucket while the block runs, to this process and its children; yields that URL."""
    server = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        given = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket"
    finally:
        server.kill()
        server.communicate()


def main() -> None:
    """Serve until killed; print the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _S3) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
