"""Run the server for agents and the built-in agent as child processes, to answer tasks that are episodes.

tasks ──► `agents run --environments` ── HTTP ──► `serve` ──► turns, responses
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streams.demo.restarts import RestartedProcesses
from streams.processes.child import free_port

PLAYERS: dict[str, tuple[str, ...]] = {"serve": ("serve",), "agents": ("agents", "run", "--environments", "--server")}
"""Arguments of `streamward` by process; the address of the server follows the last."""
CHILD = {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
"""Set in the environment of every child process."""


def child_env() -> dict[str, str]:
    """Return the environment of a child, without STREAMWARD_ variables: its settings are in its file alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")} | CHILD


def command(config: Path, words: Sequence[str]) -> list[str]:
    """Return the command that runs `streamward` with a settings file."""
    return [sys.executable, "-m", "streams.cli", "--config", str(config), *words]


@contextmanager
def playing(config: Path) -> Iterator[Callable[[], list[str]]]:
    """Play the episodes of a log while the block runs; output goes to `logs` in the folder of its settings file.

    Yields a function to call now and then: it restarts processes that ended and returns a line for each, and raises
    StreamwardError with the last output of one that does not stay up.
    """
    port = free_port()
    serve, (*agents, server) = PLAYERS["serve"], PLAYERS["agents"]
    with RestartedProcesses(config.parent / "logs", child_env()) as processes:
        processes.start("serve", command(config, ("--set", f"serve.port={port}", *serve)))
        processes.start("agents", command(config, (*agents, server, f"http://127.0.0.1:{port}")))
        yield processes.check
