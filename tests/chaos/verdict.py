"""What a run came to: every task accounted for, and the log recomputed.

    ledger, log ──► acknowledged tasks without their group: lost        groups that nobody asked for: phantom
    log ──► audit (streams/tools/audit/recount.py), settled ──► lost, doubled, phantom, out of order
    log ──► batch driver (streams/tools/replay/driver.py) ──► the same groups, dead letters and batches, byte for byte

Not covered: what the audit and the batch driver both misread. They share the decoder, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from schemas.events import AdvantagedGroup, Batch, DeadLetter
from schemas.serde import Poison, decode, encode
from streams.kafka import admin
from streams.kafka.topics import topic_of
from streams.settings.load import load, to_env
from streams.settings.model import Settings
from streams.stages.advantages.stage import STAGE
from streams.tools.audit.reading import Audit
from streams.tools.replay import driver
from tests.chaos.load import Ledger

E = TypeVar("E", AdvantagedGroup, Batch, DeadLetter)
NAMED = 5
"""How many examples a complaint names."""
IDS: dict[type[AdvantagedGroup | Batch | DeadLetter], str] = {
    AdvantagedGroup: "group_id",
    Batch: "batch_id",
    DeadLetter: "dead_letter_id",
}


class Verdict(NamedTuple):
    """The figures of a run, and what is wrong; it passed if nothing is."""

    groups: int
    lost: int
    doubled: int
    phantom: int
    repeated: int
    """Copies of a record that change nothing: delivery is at least once."""
    out_of_order: int
    complaints: tuple[str, ...]


class Written(Generic[E]):
    """The events of one topic by id, and the different payloads under each id."""

    def __init__(self, settings: Settings, kind: type[E]) -> None:
        self.events: dict[str, E] = {}
        self.payloads: dict[str, set[bytes]] = defaultdict(set)
        for record in admin.read_topic(settings, topic_of(kind, settings.topics).label):
            event = record.decode(kind)
            if not isinstance(event, Poison):
                self.events[getattr(event, IDS[kind])] = event
                self.payloads[getattr(event, IDS[kind])].add(record.payload or b"")


def judge_with(repo: Path, settings: Settings, ledger: Ledger, *, cut: bool = False) -> Verdict:
    """Return the verdict on a log whose processes have drained and ended, by the code of `repo`: it can read all.

    With `cut`, what the log no longer holds is not recomputed.
    """
    asked = json.dumps({"states": ledger.states, "cut": cut})
    env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.verdict"],
        input=asked,
        env={**env, **to_env(settings), "PYTHONPATH": str(repo)},
        cwd=repo,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return Verdict(**json.loads(done.stdout))


def judge(settings: Settings, states: Mapping[str, str], *, cut: bool) -> Verdict:
    """Return the verdict, given what became of each task in the ledger."""
    complaints: list[str] = []
    groups = Written(settings, AdvantagedGroup)
    answered = {group.task_id for group in groups.events.values()}
    lost = sorted({task_id for task_id, state in states.items() if state == "acknowledged"} - answered)
    strangers = sorted(answered - states.keys())
    _complain(complaints, "acknowledged tasks without a group", lost)
    _complain(complaints, "groups of tasks that nobody sent", strangers)
    report = Audit(settings, settled=True).look()
    _complain(complaints, "findings of the audit", [f"{found.at} {found.what}" for found in report.wrong])
    complaints += [] if cut else recomputed(settings, groups)
    return Verdict(
        groups=len(groups.events),
        lost=max(len(lost), len(report.of("lost"))),
        doubled=len(report.of("doubled")),
        phantom=max(len(strangers), len(report.of("phantom"))),
        repeated=len(report.of("repeated")),
        out_of_order=len(report.of("out_of_order")),
        complaints=tuple(complaints),
    )


def recomputed(settings: Settings, groups: Written[AdvantagedGroup]) -> list[str]:
    """Return what differs between the log and what the batch driver makes of its sources, byte for byte."""
    wanted: dict[str, dict[str, set[bytes]]] = {"group": {}, "dead letter": {}, "batch": {}}
    for made in driver.join(settings):
        what = "group" if isinstance(made, AdvantagedGroup) else "dead letter"
        wanted[what][getattr(made, IDS[type(made)])] = {encode(made)}
    for partition in range(settings.topics.policy_partitions):
        for cut in driver.cut(settings, admin.read_topic(settings, "groups", partition=partition)):
            if isinstance(cut, Batch):
                wanted["batch"][cut.batch_id] = {encode(cut)}
    letters = Written(settings, DeadLetter)
    of_the_join = {name for name, letter in letters.events.items() if letter.stage == STAGE}
    live: dict[str, Mapping[str, set[bytes]]] = {
        "group": groups.payloads,
        "dead letter": {name: letters.payloads[name] for name in of_the_join},
        "batch": Written(settings, Batch).payloads,
    }
    kinds: dict[str, Any] = {"group": AdvantagedGroup, "dead letter": DeadLetter, "batch": Batch}
    complaints: list[str] = []
    for what, log in live.items():
        again = wanted[what]
        _complain(complaints, f"{what} that only the log has", log.keys() - again.keys())
        _complain(complaints, f"{what} that only the recomputation has", again.keys() - log.keys())
        differ = [
            f"{name} ({_difference(log[name] | again[name], kinds[what])})"
            for name in log.keys() & again.keys()
            if log[name] != again[name]
        ]
        _complain(complaints, f"{what} whose bytes differ from the recomputation's", differ)
    return complaints


def _difference(payloads: Iterable[bytes], kind: type[Any]) -> str:
    """Return the fields in which these events differ, with their values cut short."""
    found = [decode(payload, kind) for payload in sorted(payloads)]
    names = [field.name for field in fields(kind) if len({str(getattr(event, field.name, "")) for event in found}) > 1]
    return "; ".join(f"{name}: {' or '.join(str(getattr(event, name))[:300] for event in found)}" for name in names)


def _complain(complaints: list[str], what: str, names: Iterable[str]) -> None:
    names = sorted(names)
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        complaints.append(f"{len(names)} {what}: {', '.join(names[:NAMED])}{more}")


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(judge(load(), given["states"], cut=given["cut"])._asdict()))
