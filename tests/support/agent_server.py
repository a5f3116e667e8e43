"""The server of agents for tests: the one of `streamward serve`, in a thread, on the scripted engine.

settings ──► topics, server ──► its address, while the block runs
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from gateway import server
from schemas.events import Turn
from streams.kafka import admin
from streams.settings.model import Adapters, Advantages, Batches, Kafka, Model, Policy, Serve, Settings, Topics
from streams.tools.audit.reading import Audit
from tests.support.log.secured_node import free_ports
from tests.support.log.shared_node import own_prefix
from tests.support.processes import command, environment, read, said, spawn, until

CALCULATOR = {
    "replies": [
        {
            "when": "What is 47 * 83?",
            "reply": '<tool_call>{"name": "calc", "arguments": {"b": 83, "a": 47}}</tool_call>',
        },
        {"when": "tool: 3901", "reply": "It is 3901."},
        {"when": "Thank you.", "reply": "You are welcome."},
        {
            "when": "Look once.",
            "reply": '<tool_call>{"name": "calc", "arguments": {"b": 2, "a": 1}}</tool_call>\nResult: 2',
        },
        {"when": "Break it.", "reply": '<tool_call>{"name": "calc", "arguments": {"a": 47'},
    ]
}
"""Conversations in which the model calls a tool."""


def settings_of(bootstrap: str, folder: Path, script: dict[str, Any] = CALCULATOR, **serve: Any) -> Settings:
    """Return settings of a server with topics of its own, on a free port that nobody is given who asks for any."""
    (port,) = free_ports(1)
    return Settings(
        kafka=Kafka(bootstrap=bootstrap),
        topics=Topics(prefix=own_prefix(), partitions=2, policy_partitions=1),
        adapters=Adapters(store=str(folder / "adapters")),
        policy=Policy(name="sums", engine="scripted", script=json.dumps(script)),
        serve=Serve(port=port, **serve),
    )


def settings_with_topics(bootstrap: str, folder: Path, script: dict[str, Any], *, session_s: float) -> Settings:
    """Return settings as `settings_of` whose topics exist; a server that dies is replaced after `session_s`."""
    plain = settings_of(bootstrap, folder, script)
    made = plain.model_copy(update={"kafka": plain.kafka.model_copy(update={"session_timeout_s": session_s})})
    admin.apply_topics(made)
    return made


def training_settings(bootstrap: str, folder: Path, base: str, groups: int) -> Settings:
    """Return settings of a server whose policy `sums` is trained on the tiny model in the folder `base`."""
    made = settings_of(bootstrap, folder)
    return made.model_copy(
        update={
            "model": Model(base=base),
            "policy": Policy(name="sums"),
            "batches": Batches(groups=groups, max_policy_lag=0, zero_variance="keep"),
            "advantages": Advantages(formula="dr_grpo"),
            "trainer": made.trainer.model_copy(update={"checkpoints": folder / "checkpoints"}),
        }
    )


def rest(url: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Return the answer to a request, which must be a success."""
    answer = httpx.request(method, url + path, json=body, timeout=300)
    assert answer.is_success, answer.text
    return dict(answer.json())


@contextmanager
def serving(settings: Settings, *, fleet: bool = False) -> Iterator[str]:
    """Yield the address of a server that runs while the block does."""
    admin.apply_topics(settings)
    stop, url = threading.Event(), f"http://127.0.0.1:{settings.serve.port}"
    thread = threading.Thread(target=server.run, args=(settings,), kwargs={"stop": stop, "fleet": fleet}, name="serve")
    thread.start()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5):  # noqa: S310 - always http://
                return True
        except OSError:
            assert thread.is_alive(), "the server ended"
            return False

    try:
        until(answers, "the server to answer")
        yield url
    finally:
        stop.set()
        thread.join()


@contextmanager
def audited(settings: Settings, *, fleet: bool = False) -> Iterator[str]:
    """Yield the address of a server that runs while the block does; afterwards its log balances."""
    with serving(settings, fleet=fleet) as url:
        yield url
    check_audit(settings)


def check_audit(settings: Settings) -> None:
    """Fail unless the log balances."""
    report = Audit(settings).look()
    assert report.balanced, [f"{found.category} {found.at}: {found.what}" for found in report.wrong]


def turns(settings: Settings, agent: str) -> list[Turn]:
    """Return what an agent's calls left in the log, in the order of its trajectories."""
    found = [turn for _, turn in read(settings, Turn) if turn.agent_id == agent]
    return sorted(found, key=lambda turn: (turn.trajectory_id, turn.number))


class ServeProcess:
    """`streamward serve` in a process of its own, started again where it was."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.url = f"http://127.0.0.1:{settings.serve.port}"
        self.start()

    def start(self) -> None:
        with (self.folder / "serve.log").open("a") as log:
            self.process = spawn(command("serve"), env=environment(self.settings), stderr=log)
        until(self._answers, "the server answers", folder=self.folder)

    def _answers(self) -> bool:
        assert self.process.poll() is None, said(self.folder)
        with suppress(httpx.TransportError):
            return httpx.get(self.url + "/healthz", timeout=300).status_code == 200
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(300) == 0, said(self.folder)
        check_audit(self.settings)
