"""A real vLLM server for tests, benchmarks and recordings; what needs one is skipped, loudly, where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from streams.engines.vllm.launch import command, environment, free_port, python_with_vllm, wait_until_up
from streams.errors import SettingsError
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
        process = subprocess.Popen(
            command(python, model, port, rank=16, options=options),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until_up(url, lambda: process.poll() is not None, lambda: log.read_text(errors="replace")[-3000:])
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its engine is a process of its own
        process.wait()
