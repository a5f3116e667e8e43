"""pytest's workers, forked from one process that has collected the tests: each would import torch and TRL again.

    pytest -n 5 ──► collect ──► a fork for each worker, which finds all modules imported
                                  ▲
    execnet starts 5 times ──► connect: gives its standard streams to the fork, and ends when that ends

Not covered: a test file that imports other modules in another worker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys


def connect(address: str, code: str) -> None:
    """Let a fork of the process at `address` run `code` with this one's standard streams, and wait for its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork gets it, too
    with socket.socket(socket.AF_UNIX) as fork:
        fork.connect(address)
        socket.send_fds(fork, [code.encode()], [0, 1, 2])
        os.closerange(0, 2)  # held by the fork alone: its end is seen at once
        fork.recv(1)


def serve(listener: socket.socket, arguments: list[str]) -> None:
    """Collect what pytest would with `arguments`, and fork for each that connects, until standard input ends."""
    import gc
    from types import ModuleType

    import pytest

    sys.path[0] = os.getcwd()  # as `python -m pytest` has it; this file's folder has packages of other names
    pytest.main([*arguments, "--numprocesses=0", "--collect-only", "--quiet"])
    gc.freeze()
    interrupted, forks = signal.signal(signal.SIGINT, signal.SIG_IGN), []
    while 0 not in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        code, streams, *_ = socket.recv_fds(connection, 4096, 3)
        if not (fork := os.fork()):
            listener.close()
            signal.signal(signal.SIGINT, interrupted)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            sys.argv, sys.modules["__main__"] = ["-c"], ModuleType("__main__")
            exec(code, vars(sys.modules["__main__"]))  # noqa: S102 - what execnet gives to `python -c`
            os._exit(0)
        forks.append(fork)
        for each in (connection.detach(), *streams):
            os.close(each)
    for fork in forks:
        os.kill(fork, signal.SIGKILL)  # most have ended; one that hangs shall not outlive the run
        os.waitpid(fork, 0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        connect(sys.argv[1], sys.argv[-1])
