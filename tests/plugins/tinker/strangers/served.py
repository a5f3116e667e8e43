"""A server and its worker of training calls as processes of their own, which can be killed.

settings ──► `streamward serve`, `streamward calls` ──► kill -9 of one ──► the same again, on the same address
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Literal, Self

from streams.kafka import admin
from streams.settings.load import to_env
from streams.settings.model import Model, Settings
from tests.support.agent_server import settings_of

Part = Literal["serve", "calls"]
PARTS: tuple[Part, ...] = ("serve", "calls")
START_S = 120.0


def tinker_settings(bootstrap: str, folder: Path) -> Settings:
    """Return settings with SmolLM2 as the base of training calls, and topics of their own."""
    settings = settings_of(bootstrap, folder)
    trainer = settings.trainer.model_copy(update={"checkpoints": folder / "checkpoints"})
    return settings.model_copy(update={"model": Model(base="smollm2-135m-instruct"), "trainer": trainer})


class Served:
    """Both processes. Use as a context manager."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{settings.serve.port}"
        self._environment, self._folder = os.environ | to_env(settings), folder
        self._processes: dict[Part, subprocess.Popen[bytes]] = {}
        admin.apply_topics(settings)

    def __enter__(self) -> Self:
        for part in PARTS:
            self.start(part)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def start(self, part: Part) -> None:
        """Start a process; its output is added to PART.log."""
        with (self._folder / f"{part}.log").open("ab") as output:
            command = [sys.executable, "-m", "streams.cli", part]
            self._processes[part] = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=output, cwd=self._folder
            )

    def kill(self, part: Part) -> None:
        """Kill a process, and start it again."""
        self._processes[part].kill()
        self._processes[part].wait()
        self.start(part)

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=5):  # noqa: S310 - always http://
                    return
            except OSError:
                if time.monotonic() > until or self._processes["serve"].poll() is not None:
                    raise
                time.sleep(0.2)
