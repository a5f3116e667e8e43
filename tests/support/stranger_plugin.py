"""The plugin of docs/examples/plugin-thumbs, installed as a stranger installs it, and `streamward` with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from streams.settings.model import Settings
from tests.import_graph import ROOT
from tests.support.processes import command, environment

ROOM = '''
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import TASKS_LISTED
from gateway.http.route import REST
from schemas.events import derive_id
from streams.kafka.producer import Producer
from thumbs.topics import Thumb


class ThumbBody(Body):
    task_id: str
    answer_id: str
    up: bool


class ThumbAnswer(Answer):
    """A thumb that is in the log."""

    thumb_id: str


class Thumbs:
    def __init__(self, settings, log):
        self.settings, self.log = settings, log

    @REST.post(
        "/thumbs", may="feedback.give", ids=TASKS_LISTED, example=ThumbAnswer(thumb_id="a"), tools={"rate": ""}
    )
    def rate_answer(self, request: Request, body: ThumbBody) -> ThumbAnswer:
        """Rate an answer."""
        created_at = self.log.find_task(request, body.task_id).timestamp_ms
        thumb_id = derive_id(body.answer_id, "web", created_at)
        with Producer(self.settings) as producer:
            producer.send(Thumb(thumb_id=thumb_id, created_at=created_at, actor="web", **body.model_dump()))
        return ThumbAnswer(thumb_id=thumb_id)


ROOMS = (Thumbs,)
'''
RATE = '"rate": PluginCommand("thumbs.rooms:Thumbs", "Rate an answer.", "rate_answer", arguments="answer_id")'
SOURCE = ROOT / "docs" / "examples" / "plugin-thumbs"


def install_thumbs(folder: Path) -> Path:
    """Build and install the plugin into a folder of packages, and return it."""
    built = shutil.copytree(SOURCE, folder / "source")
    packages = folder / "packages"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", packages, built], check=True)
    return packages


def add_room(packages: Path) -> None:
    """Give the plugin a route, which is a tool of MCP and a command, too."""
    declared = packages / "thumbs" / "__init__.py"
    text = declared.read_text().replace("    views=", '    rooms="thumbs.rooms:ROOMS",\n    views=')
    declared.write_text(text.replace("    commands={", f"    commands={{{RATE}, "))
    (packages / "thumbs" / "rooms.py").write_text(ROOM)


def environment_with(packages: Path, settings: Settings | None = None) -> dict[str, str]:
    """Return the environment of a process where these packages are installed, too."""
    return environment(settings) | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(packages)))}


def run_with(packages: Path, *args: str, settings: Settings | None = None) -> subprocess.CompletedProcess[str]:
    """Run `streamward` where these packages are installed, too."""
    env = environment_with(packages, settings)
    return subprocess.run(command(*args), env=env, cwd=packages, capture_output=True, text=True, timeout=300)
