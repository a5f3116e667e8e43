"""An environment that does whatever can go wrong, when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from plugins.environments.episodes.environment import Action


class OddEnvironment:
    """Does what the action says."""

    version = "1"

    def reset(self, seed: int) -> str:
        """Say the seed."""
        return f"seed {seed}"

    def step(self, action: Action) -> Any:
        """Go wrong."""
        shown: Any = "next"
        match action.text:
            case "exit":
                sys.exit(3)
            case "hang":
                time.sleep(600)
            case "other type":
                return shown, {1, 2}, False, False, {}
            case "10 MB":
                shown = "x" * 10_000_000
            case "network":
                socket.create_connection(("127.0.0.1", 9), timeout=5)
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "memory":
                shown = str(len(bytearray(2 * 1024**3)))
            case "pid":
                shown = str(os.getpid())
        return shown, 0.0, False, False, {}
