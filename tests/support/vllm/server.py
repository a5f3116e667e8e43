"""A real vLLM server for tests, benchmarks and recordings; what needs one is skipped, loudly, where there is none."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.engines.vllm.launch import command, environment, python_with_vllm, wait_until_up
from streams.errors import SettingsError
from streams.processes.child import ChildProcess, free_port
from tests import skips


def vllm_or_skip() -> Path:
    """Return a python that has vllm."""
    try:
        return python_with_vllm()
    except SettingsError as exc:
        pytest.skip(skips.needs(f"vLLM ({exc})", "make setup-vllm"))


@contextmanager
def vllm_server(python: Path, model: Path, log: Path, *options: str, port: int | None = None) -> Iterator[str]:
    """Run a server for the model in folder `model`; yield its URL. What it prints goes to the file `log`."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        process = ChildProcess(
            command(python, model, port, rank=16, options=options),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.signal_group(signal.SIGTERM)
        process.wait_at_most(30)
        process.signal_group(signal.SIGKILL)  # its engine is a process of its own
        process.wait()
