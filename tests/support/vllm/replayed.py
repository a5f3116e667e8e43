"""The `vllm` engine on a server that says what the real one said: fixtures of its tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from streams.engines.vllm import servers as client
from streams.engines.vllm.vllm_engine import VllmEngine
from tests.support.vllm.contract import (
    REQUESTS,
    Replay,
    replay,
    save_all,
    settings_for as settings_of,
)

BY_NAME = {r.task.task_id.removeprefix("task-"): r for r in REQUESTS}
PLAIN = BY_NAME["plain"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model and the adapters that were recorded."""
    return save_all(tmp_path_factory.mktemp("contract"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.05)


@pytest.fixture
def server() -> Iterator[Replay]:
    with replay() as running:
        yield running


@pytest.fixture
def start(files: Path, tmp_path: Path) -> Iterator[Callable[..., VllmEngine]]:
    with ExitStack() as stack:

        def starting(*servers: Replay, **changes: Any) -> VllmEngine:
            urls = ",".join(server.url for server in servers)
            return stack.enter_context(
                closing(VllmEngine(settings_of(urls, files / "model", tmp_path, **changes)))  # type: ignore[type-var]
            )

        yield starting


def serve(engine: VllmEngine, files: Path, version: int) -> None:
    engine.serve(version, files / str(version) if version else None)


def name_in(files: Path, version: int) -> str:
    """The name of an adapter, as the recording has it."""
    with replay() as recorded:
        names = {json.loads(key.partition(" ")[2]).get("lora_name") for key in recorded.exchanges if "{" in key}
    return next(name for name in names if name and name.startswith(f"default-v{version}-"))
