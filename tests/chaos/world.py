"""The place of one run: a broker, the processes on it, and hands to hurt them with.

    World(folder) ──► a node of its own, topics, `streamward streams | policy | scoring` ──► started again when they die
          │ kill, freeze, thaw, stop                                       └──► exits: who ended, how, when
          └ lag: records that no group has committed past

Every process is ended by its pid when the block ends, whatever happened in it.

Not covered: a machine that goes down. Everything runs on this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import confluent_kafka as ck

from schemas import key_source
from streams.errors import LogError
from streams.kafka import admin
from streams.kafka.node import process as broker
from streams.kafka.record import TopicPartition
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import topics
from streams.settings.load import build, to_env
from streams.settings.model import Broker, Settings
from streams.tools.audit.reading import commits
from tests.chaos import child

REPO = Path(__file__).parents[2]
TEND_EVERY_S = 0.1
START_AGAIN_S = 0.3
"""Pause before a process that ended is started again."""
LAST_WORDS = 500
"""Characters of what a process said that a complaint quotes."""
GRACE_S = 40.0
"""For a process that was told to end."""


def plain_environment(repo: Path) -> dict[str, str]:
    """Return the environment of a child that runs the code of `repo`, without settings of our own."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    return {**plain, "PYTHONPATH": str(repo)}


class Exit(NamedTuple):
    """The end of a process."""

    name: str
    code: int
    asked: bool
    """Whether the run had it so: armed to die, killed, or told to end."""
    words: str = ""
    """The last it said, if nobody asked it to end."""


@dataclass
class Process:
    """One process and its place in the run."""

    name: str
    command: list[str]
    env: Mapping[str, str]
    kills: list[tuple[str, int]] = field(default_factory=list)
    """Where the next incarnations die: point, and how often it is passed first."""
    popen: subprocess.Popen[bytes] | None = None
    armed: bool = False
    hit: bool = False
    """Whether the run has just killed it."""
    due: float = 0.0

    @property
    def kind(self) -> str:
        """Which command it runs; "streams" for streams-2."""
        return self.name.partition("-")[0]


class World:
    """Use as a context manager. `settings` is what the processes get, `direct` what the harness reads with."""

    sealed = False
    """Whether all words are sealed, with the key of a person each (docs/privacy.md)."""
    group_protocol = "classic"

    def __init__(
        self, folder: Path, overrides: Mapping[str, Any], *, stock: bool = False, driver: str = "faust"
    ) -> None:
        """`driver` runs the stream workers; mixed: one of each beside every worker, of which one waits."""
        self.folder, self.stock, self.driver = folder, stock, driver
        self.exits: list[Exit] = []
        self.notes: list[str] = []
        """What a reader of the result should know besides."""
        self.bad: dict[str, str] = {}
        """What is wrong with each record that was written to do harm, by its coordinates."""
        self.reads: dict[str, tuple[str, ...]] = {
            "streams": ("tasks", "responses", "rewards", "group-control", "groups", "adapters"),
            "scoring": ("responses",),
        }
        """The consumer groups that must have read everything, and which topics each reads."""
        self.repo = REPO
        """The code that the log must be judged with: the newest that wrote to it."""
        self._overrides = overrides
        self._processes: dict[str, Process] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._tender = threading.Thread(target=self._tend, name="tender")
        self.node = Broker(data_dir=folder / "kafka")
        self.stack = ExitStack()
        """What must end after the processes: brokers, disks."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as self.stack:
            self.open_broker()
            admin.apply_topics(self.direct)
            self._tender.start()
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._tender.is_alive():
            self._tender.join()
        for process in self._processes.values():
            if process.popen is not None and process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
        self.signal_broker(signal.SIGCONT)
        if self.sealed:
            key_source.use(key_source.NoKeys())
        self.stack.close()

    # --- the broker ---------------------------------------------------------------------------------------------------

    def open_broker(self) -> None:
        """Start a node. A fault that needs another broker has a World with another of these."""
        running = self.stack.enter_context(broker.embedded(self.node.data_dir))
        self.use(running.bootstrap)

    def use(self, direct: str, *, for_processes: str | None = None) -> None:
        """Make settings for this bootstrap address, and another one for the processes if they go a detour."""
        prefix = f"chaos-{uuid.uuid4().hex[:8]}."
        tree: dict[str, Any] = {
            "kafka": {"bootstrap": direct, "session_timeout_s": 3.0, "group_protocol": self.group_protocol},
            "topics": {"prefix": prefix},
            "advantages": {"deadline_s": 0.0},  # nothing expires: what is lost stays lost, and is seen
            "batches": {"max_policy_lag": 10**6},  # nobody trains here
            "policy": {"engine": "scripted", "round_tasks": 64, "script": json.dumps({"accuracy": 0.5})},
            "adapters": {"store": str(self.folder / f"{prefix}adapters")},
            "trainer": {"checkpoints": self.folder / f"{prefix}checkpoints"},
            "broker": {"data_dir": self.folder / "kafka"},
        }
        if self.sealed:
            tree["privacy"] = {"key_folder": str(self.folder / "keys"), "seal": "all"}
        for section, values in self._overrides.items():
            tree[section] = {**tree.get(section, {}), **values}
        self.direct = build(tree)
        if self.sealed:
            use_keys(self.direct)
        self.reads |= self.answered_by()
        kafka = self.direct.kafka.model_copy(update={"bootstrap": for_processes or direct})
        self.settings = self.direct.model_copy(update={"kafka": kafka})

    def answered_by(self) -> dict[str, tuple[str, ...]]:
        """Return the consumer group that answers tasks, and what it reads."""
        return {f"policy-{self.direct.policy.name}": ("tasks",)}

    def signal_broker(self, sign: signal.Signals) -> None:
        """Send the node a signal, if it runs."""
        running = broker.status(self.node)
        if running is not None:
            with suppress(ProcessLookupError):
                os.kill(running.pid, sign)

    def broker_runs(self) -> bool:
        """Whether the node is alive, frozen or not."""
        return broker.status(self.node) is not None

    def restart_broker(self) -> None:
        """Start the node again, on the same data and the same port."""
        broker.ensure(self.node)

    # --- the processes ------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *arguments: str,
        kills: Iterable[tuple[str, int]] = (),
        env: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        repo: Path = REPO,
        **chaos: Any,
    ) -> None:
        """Start `streamward NAME` (the part before the first -), and keep it up until it is told to end.

        Raises ValueError for a name that is kept up already: the first process would be left alone.
        """
        if name in self._processes:
            raise ValueError(f"a process called {name} is kept up already: {self.names()}")
        if self.stock:
            chaos["stock"] = True
        has_drivers = repo == REPO or (repo / "streams" / "worker" / "batched").is_dir()  # an old release has one
        if name.partition("-")[0] == "streams" and has_drivers and "--driver" not in arguments:
            arguments = (*arguments, *self._of_driver(name))
        whole = {**plain_environment(repo), **to_env(settings or self.settings), **(env or {})}
        whole[child.ENV] = json.dumps(chaos)
        command = [sys.executable, "-m", "tests.chaos.child", name.partition("-")[0], *arguments]
        with self._lock:
            process = Process(name, command, whole, kills=list(kills))
            self._processes[name] = process
            self._spawn(process)

    def _of_driver(self, name: str) -> tuple[str, ...]:
        """Return the options of a stream worker; where both drivers are mixed, `streams` and others take turns."""
        if self.driver == "mixed":
            return ("--driver", "faust" if name in ("streams", "streams-newer") else "loop")
        return ("--driver", self.driver)

    def _spawn(self, process: Process) -> None:
        env = dict(process.env)
        process.armed = process.hit = False
        if process.kills:
            env[child.ENV] = json.dumps({**json.loads(env[child.ENV]), "kill": process.kills.pop(0)})
            process.armed = True
        with self.log_file(process.name).open("ab") as log:
            process.popen = subprocess.Popen(
                process.command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _tend(self) -> None:
        while not self._ended.wait(TEND_EVERY_S):
            with self._lock:
                for process in self._processes.values():
                    if process.popen is not None and (code := process.popen.poll()) is not None:
                        asked = process.hit or (process.armed and code == -signal.SIGKILL)
                        words = "" if asked else self.said(process.name)[-LAST_WORDS:]
                        self.exits.append(Exit(process.name, code, asked, words))
                        process.popen, process.due = None, time.monotonic() + START_AGAIN_S
                    elif process.popen is None and time.monotonic() >= process.due:
                        self._spawn(process)

    def kill(self, name: str, sign: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends the process; it is started again. Nothing happens while it is down."""
        with self._lock:
            process = self._processes[name]
            if process.popen is not None and process.popen.poll() is None:
                process.hit = True
                process.popen.send_signal(sign)

    def freeze(self, name: str) -> None:
        """Stop a process where it stands."""
        self._send(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self._send(name, signal.SIGCONT)

    def _send(self, name: str, sign: signal.Signals) -> None:
        with self._lock:
            popen = self._processes[name].popen
            if popen is not None and popen.poll() is None:
                popen.send_signal(sign)

    def stop(self, *names: str) -> dict[str, int]:
        """Tell processes to end (all, if none is named), and return their exit codes; they are not started again."""
        with self._lock:
            ending = {name: self._processes.pop(name) for name in names or tuple(self._processes)}
        popens = {name: process.popen for name, process in ending.items() if process.popen is not None}
        for popen in popens.values():
            popen.send_signal(signal.SIGTERM)
        codes = {}
        for name, popen in popens.items():
            try:
                codes[name] = popen.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
                codes[name] = -signal.SIGKILL
            self.exits.append(Exit(name, codes[name], True))
        return codes

    def names(self) -> list[str]:
        """Return the processes that are kept up."""
        return list(self._processes)

    def pid(self, name: str) -> int | None:
        """Return the pid of a process; None while it is down."""
        popen = self._processes[name].popen
        return None if popen is None else popen.pid

    def is_armed(self) -> bool:
        """Whether some process is still to die at a point it has not come to."""
        with self._lock:
            return any(process.kills or process.armed for process in self._processes.values())

    def log_file(self, name: str) -> Path:
        """Return the file with what a process said."""
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        """Return what a process said."""
        path = self.log_file(name)
        return path.read_text(errors="replace") if path.exists() else ""

    # --- how far it is ------------------------------------------------------------------------------------------------

    def lag(self) -> int | None:
        """Return how many records no group has committed past; None while the broker does not answer."""
        try:
            done = commits(self.direct)
            return sum(
                high - max(done.get((group, *tp), 0), low)
                for group, labels in self.reads.items()
                for tp, (low, high) in self._offsets(labels).items()
            )
        except (LogError, ck.KafkaException):
            return None

    def _offsets(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        return admin.offsets(self.direct, labels)

    def count(self, label: str) -> int:
        """Return how many records a topic got."""
        return sum(high for _, high in self._offsets([label]).values())

    def wait_for(self, label: str, more: int, timeout_s: float = 60) -> None:
        """Return once a topic has got so many more records. Raises TimeoutError."""
        wanted, deadline = self.count(label) + more, time.monotonic() + timeout_s
        while self.count(label) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{label} did not get {more} more records within {timeout_s:g} s")
            time.sleep(0.1)

    def findings(self) -> list[str]:
        """Return what is wrong with a log that has come to rest, beside what every run is judged by."""
        return []

    def topic(self, label: str) -> str:
        """Return the full name of a topic."""
        return topics(self.direct.topics)[label].name
