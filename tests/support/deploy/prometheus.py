"""A Prometheus of the tests' own: the real programs, found on PATH or in the folder PROMETHEUS_HOME.

program("promtool") ──► its path, or None          running(…) ──► a server that scrapes, and answers queries
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import skips
from tests.chaos.proxy import free_ports
from tests.support.processes import until

HOME = "PROMETHEUS_HOME"
Answer = list[dict[str, Any]]
"""Labels (`metric`) and the last `value` of each series, as the API has them."""


def program(name: str) -> str | None:
    """Return where prometheus or promtool is."""
    folder = os.environ.get(HOME)
    return shutil.which(name, path=folder) if folder else shutil.which(name)


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the program is missing from PATH and HOME."""
    return pytest.mark.skipif(program(name) is None, reason=skips.needs(name))


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    found = program("promtool")
    assert found is not None
    return subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False)


class Prometheus:
    """A server that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer. Fails with what the server says of an error."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=300) as answer:  # noqa: S310 - our own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as exc:
            with exc:
                raise AssertionError(f"{parameters}: {exc.read().decode()}") from None

    def ask(self, query: str) -> Answer:
        """Return what a query answers now."""
        found: Answer = self.get("query", query=query)["result"]
        return found

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {one["labels"]["alertname"] for one in self.get("alerts")["alerts"] if one["state"] == "firing"}


@contextmanager
def running(folder: Path, targets: Mapping[str, str], rules: Path) -> Iterator[Prometheus]:
    """Run Prometheus while the block runs. It scrapes each `host:port` of `targets`, as a job of that name."""
    found = program("prometheus")
    assert found is not None
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                found,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                return bool(server.ask("vector(1)"))
            except (OSError, AssertionError):
                return False

        until(answers, "Prometheus", folder=folder)
        yield server
    finally:
        process.kill()
        process.wait()
