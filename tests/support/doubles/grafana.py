"""The part of Grafana's HTTP API that dashboards need, kept to its contract, for tests.

    GET /api/folders/UID          POST /api/folders
    GET /api/dashboards/uid/UID   POST /api/dashboards/db      everything with a token, if there is one

As Grafana 12 answers: a dashboard that exists is updated only with its own id and the version it has (412 otherwise,
unless `overwrite`), gets the next version, and comes back with `meta` beside it. A folder that is not there is 400.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, Any]]


class Grafana:
    """What it keeps, and what was asked of it."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.folders: dict[str, dict[str, Any]] = {}
        self.dashboards: dict[str, tuple[dict[str, Any], str]] = {}
        """Model and folder, by uid."""
        self.writes: list[str] = []
        """Paths of the POSTs."""
        self.url = ""
        self.before_write = lambda: None
        """What happens just before a dashboard is written."""

    def answer(self, method: str, path: str, authorization: str, body: dict[str, Any]) -> Answer:
        if self.token and authorization != f"Bearer {self.token}":
            return 401, {"message": "Unauthorized"}
        match method, path.strip("/").split("/"):
            case "GET", ["api", "folders", uid]:
                found = self.folders.get(uid)
                return (200, found) if found else (404, {"message": "folder not found", "status": "not-found"})
            case "POST", ["api", "folders"]:
                return self._make_folder(body)
            case "GET", ["api", "dashboards", "uid", uid] if uid in self.dashboards:
                model, folder = self.dashboards[uid]
                return 200, {"dashboard": model, "meta": {"folderUid": folder, "version": model["version"]}}
            case "GET", ["api", "dashboards", "uid", _]:
                return 404, {"message": "Dashboard not found", "status": "not-found"}
            case "POST", ["api", "dashboards", "db"]:
                return self._write(body)
        return 404, {"message": "Not found"}

    def _make_folder(self, body: dict[str, Any]) -> Answer:
        self.writes.append("/api/folders")
        if body["uid"] in self.folders:
            return 412, {"message": "a folder with the same uid already exists"}
        self.folders[body["uid"]] = {"id": len(self.folders) + 1, "uid": body["uid"], "title": body["title"]}
        return 200, self.folders[body["uid"]]

    def _write(self, body: dict[str, Any]) -> Answer:
        self.writes.append("/api/dashboards/db")
        self.before_write()
        model, folder = copy.deepcopy(body["dashboard"]), body.get("folderUid", "")
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        if not model.get("title"):
            return 400, {"message": "Dashboard title cannot be empty"}
        before = self.dashboards.get(model["uid"])
        if before is None and model.get("id"):
            return 404, {"message": "Dashboard not found", "status": "not-found"}
        if before is not None and not body.get("overwrite"):
            if model.get("id") != before[0]["id"]:
                return 412, {"message": "A dashboard with the same uid already exists", "status": "name-exists"}
            if model.get("version") != before[0]["version"]:
                message = "The dashboard has been changed by someone else"
                return 412, {"message": message, "status": "version-mismatch"}
        model["id"] = before[0]["id"] if before else len(self.dashboards) + 1
        model["version"] = before[0]["version"] + 1 if before else 1
        self.dashboards[model["uid"]] = (model, folder)
        return 200, {"id": model["id"], "uid": model["uid"], "version": model["version"], "status": "success"}


@contextmanager
def running(token: str = "") -> Iterator[Grafana]:
    """Serve one while the block runs."""
    grafana = Grafana(token)

    class Request(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            status, told = grafana.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        grafana.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
