"""The worker process of an environment by reference: it opens one, then resets and steps it.

    stdin   JSON {"id", "do": "open" | "reset" | "step" | "end_session", …}   from the parent, which is trusted
                 "traceparent": sent with each request that the environment makes
    stdout  JSON {"id", …} with "version" | "observation" | "result" | "reason", "error"

The pipes are from streams/processes/worker_pipe.py. Unless the settings allow the network, Python's own sockets
refuse to connect, except to the host that a reference names; a program that the environment starts, or a library in C,
is not stopped.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from plugins.environments.by_reference import load
from plugins.environments.episodes.environment import ACTION, Environment, EpisodeError
from streams.egress import EgressRule, use_egress, within_trace
from streams.processes.worker_pipe import (
    MAX_ANSWER_BYTES,
    AnswerPipe,
    describe_exception,
    limit_memory,
    serve,
)

TO_ADDRESS = ("socket.connect", "socket.sendto", "socket.sendmsg")
NETWORK = (*TO_ADDRESS, "socket.getaddrinfo", "socket.gethostbyname")
_open: dict[str, Environment] = {}
"""The environment of this process, under its name."""


def main() -> None:
    """Serve until stdin ends.

    Arguments: 1 to allow the network, the host of its server, egress.hosts and egress.private, folders with modules.
    """
    network, host, hosts, private, *folders = sys.argv[1:]
    use_egress(EgressRule(hosts, private))
    sys.path.extend(folders)
    if network != "1":
        sys.addaudithook(_network_guard(host))
    serve(_answer)


def _network_guard(host: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that lets sockets connect to one host; to none if it is empty."""
    allowed: set[Any] = {host, host.encode()}
    if host:
        with contextlib.suppress(OSError):  # connecting to a host without an address reports that
            allowed |= {info[4][0] for info in socket.getaddrinfo(host, None)}

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in NETWORK:
            return
        target = arguments[1] if event in TO_ADDRESS else arguments[0]
        if event in TO_ADDRESS and isinstance(target, str | bytes):  # a socket that is a file
            return
        if (target[0] if isinstance(target, tuple) else target) not in allowed or not host:
            raise PermissionError("environments may not use the network; set environments.network to allow it")

    return refuse


def _answer(answers: AnswerPipe, body: bytes) -> None:
    request = json.loads(body)
    name, action = request["name"], request["do"]
    try:
        with within_trace(request.get("traceparent")):
            answer = _perform(request)
        if len(json.dumps(answer)) > MAX_ANSWER_BYTES:
            raise EpisodeError(f"{name}: {action} shows more than 1 MiB", reason="too_large")
    except EpisodeError as exc:
        answer = {"reason": exc.reason, "error": str(exc)}
    except MemoryError:
        answer = {"reason": "memory", "error": f"{name} needed more than {request['memory_bytes']} bytes"}
    except BaseException as exc:  # an environment may raise anything, SystemExit and KeyboardInterrupt too
        answer = {"reason": "exception", "error": f"{name}: {describe_exception(action, exc)}"}
    answers.send(request["id"], answer)


def _perform(request: dict[str, Any]) -> dict[str, Any]:
    name = request["name"]
    if request["do"] == "open":
        limit_memory(request["memory_bytes"])
        previous = _open.pop(name, None)
        if close := getattr(previous, "close", None):
            close()
        _open[name] = load(name, request["settings"], request["credential"])
        return {"version": _open[name].version}
    environment = _open[name]
    if request["do"] == "end_session":
        if end := getattr(environment, "end_session", None):
            end()
        return {}
    if request["do"] == "reset":
        return {"observation": _as_json(request, environment.reset(request["seed"]))}
    return {"result": _as_json(request, environment.step(ACTION.validate_python(request["action"])))}


def _as_json(request: dict[str, Any], result: Any) -> dict[str, Any]:
    """Return a result of an environment as JSON has it. Raises EpisodeError(bad_result)."""
    try:
        fields = asdict(result)
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        message = f"{request['name']}: {request['do']}: its result cannot be stored: {exc}"
        raise EpisodeError(message, reason="bad_result") from exc
    return fields
