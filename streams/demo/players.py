"""Who answers tasks that are episodes: the server for agents, and the built-in agent, as child processes.

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
"""By name, what is typed behind `streamward`; the address of the server follows the last."""
CHILD = {"TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
"""Set in the environment of every child process."""


def child_env() -> dict[str, str]:
    """Return the environment of a child: what it shall do is in its settings file alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")} | CHILD


def command(config: Path, words: Sequence[str]) -> list[str]:
    """Return what runs `streamward` with a settings file."""
    return [sys.executable, "-m", "streams.cli", "--config", str(config), *words]


@contextmanager
def playing(config: Path) -> Iterator[Callable[[], list[str]]]:
    """Have the episodes of a log played while the block runs; what they print is in `logs` beside its settings file.

    Yields what restarts whoever ended and says so, to be called now and then; it raises StreamwardError with the last
    output of one that does not stay up.
    """
    port = free_port()
    serve, (*agents, server) = PLAYERS["serve"], PLAYERS["agents"]
    with RestartedProcesses(config.parent / "logs", child_env()) as processes:
        processes.start("serve", command(config, ("--set", f"serve.port={port}", *serve)))
        processes.start("agents", command(config, (*agents, server, f"http://127.0.0.1:{port}")))
        yield processes.check
