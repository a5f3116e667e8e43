"""Fault 19: what a training loop of somebody else's needs is killed: the server, the worker, the loop itself.

    training_client.py ──► `streamward serve` ──► training-calls ──► `streamward calls` ──► training-results
                                        undisturbed once, and once under kills: the same bytes

Every call has one result, every sample is the same, and so is every file of the saved weights.

Not covered: the SDK's own client (`make test-strangers` has that), and a worker on another machine.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plugins.tinker.calls.call_names import model_name, policy_of
from plugins.tinker.calls.call_state import ANSWERED
from schemas.events import TrainingCall, TrainingResult
from schemas.serde import Poison
from streams.adapters.decisions import read_history
from streams.kafka import admin
from streams.tools.audit.reading import Audit
from tests.chaos.matrix import FAULTS, Fault, Line, exits
from tests.chaos.proxy import free_ports
from tests.chaos.world import World, plain_environment
from tests.plugins.tinker import training_client
from tests.support.models.tiny import save_tiny

WITHIN_S = 600.0
"""How long a loop may take, whatever was killed."""
LEAST_KILLS = 5


class CallsWorld(World):
    """A World with the server of a training loop, and its worker."""

    def open_broker(self) -> None:
        """Start a node; the server has a port of its own."""
        self._overrides = {
            **self._overrides,
            "serve": {"port": free_ports(1)[0]},
            "tinker": {"checkpoint_s": 0.5},
            "topics": {"partitions": 2, "policy_partitions": 2},
            "kafka": {"request_timeout_s": 30.0},
        }
        super().open_broker()


class LoopProcess:
    """A training loop that is started again when it was killed."""

    def __init__(self, world: World, journal: Path) -> None:
        self._world, self.journal = world, journal
        settings = world.direct
        arguments = (settings.serve.url.removesuffix("/v1"), str(journal), settings.model.base, "3")
        self._command = [sys.executable, training_client.__file__, *arguments]
        self.popen = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._world.folder / "loop.log").open("ab") as log:
            return subprocess.Popen(self._command, env=plain_environment(self._world.repo), stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill it, and start it again."""
        self.popen.kill()
        self.popen.wait()
        self.popen = self._start()

    def lines(self) -> list[dict[str, Any]]:
        """Return what it wrote down."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    @property
    def model(self) -> str | None:
        """The model that it has trained to the end; None while it has not."""
        return next((line["done"] for line in self.lines() if "done" in line), None)


@contextmanager
def _loop(world: World, name: str) -> Iterator[LoopProcess]:
    process = LoopProcess(world, world.folder / f"{name}.jsonl")
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


def _run(row: Fault, seed: int, groups: int, folder: Path) -> Line:
    begun, draw = time.monotonic(), random.Random(f"{row.name} {seed}")
    model = save_tiny(folder / "model")
    with CallsWorld(folder / "run", {"model": {"base": str(model)}}) as world:
        world.start("serve")
        world.start("calls")
        with _loop(world, "undisturbed") as loop:
            expected = _until_done(loop, begun)
        kills: Counter[str] = Counter()
        with _loop(world, "killed") as loop:
            deadline = time.monotonic() + WITHIN_S
            while _goes_on(loop, draw.randint(1, 6), deadline):
                time.sleep(draw.uniform(0, 0.3))
                victim = draw.choice(("serve", "calls", "loop"))
                kills[victim] += 1
                if victim == "loop":
                    loop.kill()
                else:
                    world.kill(victim)
            healed = time.monotonic()
            disturbed = _until_done(loop, healed)
        recovery_s = time.monotonic() - healed
        codes = world.stop()
        calls, results = _events(world, TrainingCall), _events(world, TrainingResult)
        complaints = [*_differences(world, expected, disturbed), *_recount(world), *exits(row, world, codes)]
        if kills.total() < LEAST_KILLS:
            complaints.append(f"only {kills.total()} kills; the loop is too short for this machine")
        answered = {call.call_id for call in calls if call.kind in ANSWERED}
        first = {result.call_id for result in results}
        return {
            "fault": row.name, "number": row.number, "seed": seed, "faust": "none", "produced": len(answered),
            "acknowledged": len(answered), "unknown": 0, "failed": 0, "groups": 0, "lost": len(answered - first),
            "doubled": len(results) - len(first), "phantom": len(first - answered), "repeated": 0, "out_of_order": 0,
            "ends": dict(Counter(f"{ended.name} {ended.code}" for ended in world.exits)),
            "notes": [*world.notes, f"kills: {dict(kills)}", "files of saved weights and samples compared"],
            "recovery_s": round(recovery_s, 1), "passed": not complaints, "complaints": complaints,
            "seconds": round(time.monotonic() - begun, 1),
        }  # fmt: skip


def _goes_on(loop: LoopProcess, lines: int, deadline: float) -> bool:
    """Return once the loop has got so many more results; False if it has ended, or the time is over.

    A process that is killed before it has begun would never be in the way of a loop.
    """
    wanted = len(loop.lines()) + lines
    while loop.model is None and time.monotonic() < deadline:
        if len(loop.lines()) >= wanted:
            return True
        time.sleep(0.05)
    return False


def _until_done(loop: LoopProcess, since: float) -> str:
    """Return the model of a loop once it has ended. Raises TimeoutError, or what the loop says."""
    while (model := loop.model) is None:
        if loop.popen.poll() not in (None, 0):
            raise RuntimeError((loop.journal.parent / "loop.log").read_text()[-2000:])
        if time.monotonic() > since + WITHIN_S:
            raise TimeoutError(f"{loop.journal.name} did not end within {WITHIN_S:g} s")
        time.sleep(0.2)
    return model


def _events(world: World, kind: type[Any]) -> list[Any]:
    label = {TrainingCall: "training-calls", TrainingResult: "training-results"}[kind]
    events = [record.decode(kind) for record in admin.read_topic(world.direct, label)]
    return [event for event in events if not isinstance(event, Poison)]


def _differences(world: World, expected: str, disturbed: str) -> Iterator[str]:
    """Yield what differs between the two loops: results by their numbers, and the files of every version."""

    def plain(model: str) -> dict[str, Any]:
        session = model.partition(":")[0]
        assert model == model_name(session, 0)
        results = [result for result in _events(world, TrainingResult) if result.session_id == session]
        return {
            result.call_id.removeprefix(session): (result.outputs, result.state_sha256, result.error, result.version)
            for result in results
        }

    one, other = plain(expected), plain(disturbed)
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield f"call {name} gave {one.get(name)!r:.200} undisturbed, and {other.get(name)!r:.200}"
    files = [
        [event.files for _, event in read_history(world.direct, policy_of(model)).trained.values()]
        for model in (expected, disturbed)
    ]
    if files[0] != files[1] or len(files[0]) != 2:
        yield f"the versions have the files {files[1]}, undisturbed {files[0]}"


def _recount(world: World) -> Iterator[str]:
    for finding in Audit(world.direct, settled=True).look().wrong:
        yield f"audit: {finding.category} {finding.at}: {finding.what}"


FAULTS["kill-training-calls"] = Fault(
    "kill-training-calls",
    19,
    "a training loop, its server or its worker is killed",
    "SIGKILL to one of them after every 1 to 6 results",
    inject=lambda *_: None,
    starts=(),
    run=_run,
)
