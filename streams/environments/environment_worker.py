"""The worker process of an environment by reference: it opens one, and then resets and steps it as it is asked.

    stdin   length, JSON {"id", "do": "open" | "reset" | "step", …}       from the parent, which is trusted
    stdout  length, JSON {"id", …} with "version" | "shown" | "result" | "reason", "error"

As with scorers, what is printed goes to stderr, and this contains accidents, not attackers: an environment runs with
the rights of the user. Unless it may use the network, Python's own sockets refuse to connect, but for the one host that
a reference names; a program that it starts, or a library in C, is not stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from streams.environments.protocol import Action, Environment, EpisodeError
from streams.environments.references import load
from streams.environments.wire import ACTION
from streams.scorers.sandbox import MAX_ANSWER_BYTES
from streams.scorers.scorer_worker import limit_memory, send, serve

TO_ADDRESS = ("socket.connect", "socket.sendto", "socket.sendmsg")
NETWORK = (*TO_ADDRESS, "socket.getaddrinfo", "socket.gethostbyname")
_open: dict[str, Environment] = {}
"""The environment of this process, under its name."""


def main() -> None:
    """Serve until stdin ends. Arguments: 1 if it may use the network, the host of its server, folders with modules."""
    network, host, *folders = sys.argv[1:]
    sys.path.extend(folders)
    if network != "1":
        sys.addaudithook(_refuse_network_but(host))
    serve(_one)


def _refuse_network_but(host: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that lets sockets connect to one host; to none if it is empty."""
    allowed: set[Any] = {host, host.encode()}
    if host:
        with contextlib.suppress(OSError):  # a host that has no address is reported when it is connected to
            allowed |= {found[4][0] for found in socket.getaddrinfo(host, None)}

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in NETWORK:
            return
        target = arguments[1] if event in TO_ADDRESS else arguments[0]
        if event in TO_ADDRESS and isinstance(target, str | bytes):  # a socket that is a file
            return
        if (target[0] if isinstance(target, tuple) else target) not in allowed or not host:
            raise PermissionError("environments may not use the network; set environments.network to allow it")

    return refuse


def _one(outbox: BinaryIO, frame: bytes) -> None:
    pid = os.getpid()
    asked = json.loads(frame)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * asked["limit_s"] + 1)  # ends a worker whose parent is gone
        answer = _answer(asked)
        if len(json.dumps(answer)) > MAX_ANSWER_BYTES:
            raise EpisodeError(f"{asked['name']}: {asked['do']} shows more than 1 MiB", reason="too_large")
    except EpisodeError as exc:
        answer = {"reason": exc.reason, "error": str(exc)}
    except MemoryError:
        answer = {"reason": "memory", "error": f"{asked['name']} needed more than {asked['memory_bytes']} bytes"}
    except BaseException as exc:  # SystemExit and KeyboardInterrupt too
        at = traceback.extract_tb(exc.__traceback__)[-1]
        said = f"{asked['do']} raised {type(exc).__name__}: {str(exc)[:1000]} ({at.filename}, line {at.lineno})"
        answer = {"reason": "exception", "error": f"{asked['name']}: {said}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if os.getpid() != pid:  # the environment forked, and this is its child
        os._exit(0)
    send(outbox, asked["id"], answer)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["do"] == "open":
        limit_memory(asked["memory_bytes"])
        if (before := _open.pop(asked["name"], None)) is not None and (close := getattr(before, "close", None)):
            close()
        _open[asked["name"]] = load(asked["name"], asked["settings"])
        return {"version": _open[asked["name"]].version}
    environment = _open[asked["name"]]
    if asked["do"] == "reset":
        return {"shown": _plain(asked, environment.reset(asked["seed"]))}
    action: Action = ACTION.validate_python(asked["action"])
    return {"result": _plain(asked, environment.step(action))}


def _plain(asked: dict[str, Any], given: Any) -> dict[str, Any]:
    """Return what an environment gave as JSON knows it. Raises EpisodeError(bad_result)."""
    try:
        plain = asdict(given)
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        said = f"{asked['name']}: {asked['do']}: what it gives cannot be stored: {exc}"
        raise EpisodeError(said, reason="bad_result") from exc
    return plain
