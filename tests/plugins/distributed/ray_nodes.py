"""A Ray cluster of several nodes on this machine, on its loopback device alone.

    nodes(1, 1) ──► .venv-ray/bin/python ray_nodes.py ──► a head without CPUs, and two nodes with one each
                          ▲ add, kill, by a line of JSON

Run as a program by a python that has ray, it is that cluster, until its stdin ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-ray" / "bin" / "python"
STORE_BYTES = 80_000_000
"""Of each node; Ray takes no less."""
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as on those: every address is the loopback device's
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default its processes give way to all others
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


class Nodes:
    """The cluster, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = str(self._told())

    def add(self, cpus: int, **variables: str) -> int:
        """Add a node with so many CPUs and these variables; return its number."""
        return int(self._tell("add", cpus, variables))

    def kill(self, number: int) -> None:
        """Let a node vanish, with all that runs on it."""
        self._tell("kill", number)

    def variables(self) -> dict[str, str]:
        """Return the variables of a command that uses the cluster."""
        return {**VARIABLES, "RAY_ADDRESS": self.address}

    def _tell(self, *order: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster has ended; see its output above"
        return json.loads(line)


@contextmanager
def nodes(*cpus: int) -> Iterator[Nodes]:
    """Yield a cluster with a head, which has no CPUs, and nodes that have so many each."""
    # its sockets are files in there, whose whole names may have 107 letters
    folder = tempfile.mkdtemp(prefix="ray", dir=os.sep + "tmp")
    env = {**os.environ, **VARIABLES, "RAY_TMPDIR": folder}
    process = subprocess.Popen(
        [str(PYTHON), __file__, folder], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            found = Nodes(process)
            for each in cpus:
                found.add(each)
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(300)
            finally:
                process.kill()
                process.wait()
                shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: str) -> None:
    from ray.cluster_utils import Cluster

    answers, sys.stdout = sys.stdout, sys.stderr
    (Path(folder) / "ray").mkdir()
    cluster = Cluster()
    size = {"object_store_memory": STORE_BYTES, "include_dashboard": False, "temp_dir": folder}
    cluster.add_node(num_cpus=0, **size)
    made: list[Any] = []

    def answer(what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    answer(cluster.address)
    for line in sys.stdin:
        match json.loads(line):
            case ["add", cpus, Mapping() as variables]:
                own = {"PYTHONPATH": str(ROOT), **variables}  # Ray keeps them for the nodes that are added later
                made.append(cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES, env_vars=own))
                answer(len(made) - 1)
            case ["kill", number]:
                cluster.remove_node(made[number], allow_graceful=False)
                answer(None)
    cluster.shutdown()


if __name__ == "__main__":
    _serve(sys.argv[1])
