"""Start a vLLM server on this machine with the options that the engine needs.

    VLLM_PYTHON, or .venv-vllm (make setup-vllm) ──► a python that has vllm ──► command and environment ──► /health

vLLM has its own virtual environment, because it pins versions of its dependencies. The server listens on localhost
only. Start servers on other machines or with several GPUs as vLLM's documentation says.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx2

from streams.egress.http_client import new_client
from streams.engines.base_model import folder_of
from streams.errors import SettingsError, StreamwardError
from streams.processes.child import ChildProcess, last_lines
from streams.settings.model import Settings

ENV_PYTHON = "VLLM_PYTHON"
DEFAULT_PYTHON = Path(".venv-vllm/bin/python")
BASE = "base"
"""The server's name for the base model."""
MODULE = "vllm.entrypoints.openai.api_server"
START_S = 300.0
"""Time limit until it answers; a small model on a CPU takes half a minute."""
QUOTED_LINES = 30
"""Number of lines of its output that an error quotes."""


def python_with_vllm() -> Path:
    """Return a Python with vllm installed. Raises SettingsError if none is known."""
    named = os.environ.get(ENV_PYTHON)
    if named is None and importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    python = Path(named) if named is not None else DEFAULT_PYTHON
    if not python.exists():
        problem = f"there is no {DEFAULT_PYTHON}" if named is None else f"{ENV_PYTHON}={named}: there is no such file"
        raise SettingsError(
            f"no python with vllm: {problem}; run `make setup-vllm`, or set {ENV_PYTHON} to one that has"
        )
    probe = subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"])
    if probe.returncode != 0:
        raise SettingsError(f"{python} has no vllm; run `make setup-vllm`, or set {ENV_PYTHON} to one that has it")
    return python


def command(python: Path, model: Path, port: int, *, rank: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a server for the model in folder `model`; `rank` is its largest adapter's."""
    return [
        *(str(python), "-m", MODULE, "--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(model), "--served-model-name", BASE, "--dtype", "float32"),
        *("--enable-lora", "--max-lora-rank", str(next(size for size in RANKS if size >= rank))),
        *("--max-loras", "2", "--max-cpu-loras", "8", "--logprobs-mode", "processed_logprobs"),
        *("--block-size", "32"),  # 128 tokens by default on a CPU, and a task's answers share only whole blocks
        "--no-enable-chunked-prefill",  # a prompt in two parts and a seed end vLLM 0.32.0 on a CPU (no offset to set)
        *options,
    ]


RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of --max-lora-rank."""


def environment() -> dict[str, str]:
    """Return the environment of a server: this process's without our settings, plus run-time loading of adapters."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("STREAMWARD_") and name != ENV_PYTHON}
    return env | {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}"),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }


def server_for(settings: Settings) -> list[str]:
    """Return the command that starts the server in policy.servers, on this machine. Raises SettingsError."""
    (url,) = settings.policy.server_urls
    port = int(url.rpartition(":")[2])
    return command(python_with_vllm(), folder_of(settings.model.base), port, rank=settings.trainer.lora_rank)


def wait_until_up(url: str, server: ChildProcess, log: Path, stop: threading.Event | None = None) -> None:
    """Return once the server at `url` answers, or `stop` is set.

    Raises StreamwardError with the end of its log if it ends, or takes longer than START_S.
    """
    stop = stop or threading.Event()
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise StreamwardError(f"vLLM at {url} ended while it started; {_end_of(log)}")
        with suppress(httpx2.HTTPError), new_client() as client:
            if client.get(f"{url}/health", timeout=5).status_code == 200:
                return
        if stop.wait(0.5):
            return
    raise StreamwardError(f"vLLM at {url} does not answer after {START_S:g} s; {_end_of(log)}")


def _end_of(log: Path) -> str:
    return "\n".join(["the end of its output:", *last_lines(log, QUOTED_LINES)])
