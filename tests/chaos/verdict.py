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
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from schemas import key_source
from schemas.events import AdvantagedGroup, Batch, DeadLetter
from schemas.serde import Poison, decode, encode
from streams.kafka import admin
from streams.kafka.record import encoded
from streams.kafka.subject_keys import use_keys
from streams.kafka.topics import topic_of
from streams.settings.load import load, to_env
from streams.settings.model import Settings
from streams.stages.advantages.stage import STAGE
from streams.tools.audit.reading import Audit
from streams.tools.replay import driver
from tests.chaos.accounts import HOSTILE, Accounts
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
    """The events of one topic by id, and the different payloads under each id; `without` are coordinates to skip."""

    def __init__(self, settings: Settings, kind: type[E], without: Container[str] = ()) -> None:
        self.events: dict[str, E] = {}
        self.payloads: dict[str, set[bytes]] = defaultdict(set)
        for record in admin.read_topic(settings, topic_of(kind, settings.topics).label):
            event = record.decode(kind)
            if not isinstance(event, Poison) and str(record.at) not in without:
                self.events[getattr(event, IDS[kind])] = event
                self.payloads[getattr(event, IDS[kind])].add(record.payload or b"")


def judge_with(
    repo: Path, settings: Settings, ledger: Ledger, *, cut: bool = False, bad: Mapping[str, str] | None = None
) -> Verdict:
    """Return the verdict on a log whose processes have drained and ended, by the code of `repo`: it can read all.

    With `cut`, what the log no longer holds is not recomputed. `bad` are the records that were written to do harm: the
    shape of each by its coordinates.
    """
    asked = json.dumps({"states": ledger.states, "cut": cut, "bad": bad or {}})
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


def judge(settings: Settings, states: Mapping[str, str], *, cut: bool, bad: Mapping[str, str] | None = None) -> Verdict:
    """Return the verdict, given what became of each task in the ledger, and the records written to do harm."""
    complaints: list[str] = []
    accounts = Accounts.read(settings, bad or {})
    groups = Written(settings, AdvantagedGroup, accounts.bad)
    ours = [group for group in groups.events.values() if not group.task_id.startswith(HOSTILE)]
    answered = {group.task_id for group in ours}
    if not isinstance(key_source.current(), key_source.NoKeys):
        _complain(complaints, "groups that are not sealed", [group.task_id for group in ours if group.subject is None])
    lost = sorted({task_id for task_id, state in states.items() if state == "acknowledged"} - answered)
    strangers = sorted(answered - states.keys())
    _complain(complaints, "acknowledged tasks without a group", lost)
    _complain(complaints, "groups of tasks that nobody sent", strangers)
    report = Audit(settings, settled=True).look()
    findings = [found for found in report.findings if str(found.at) not in accounts.about]
    wrong = [f"{found.at} {found.what}" for found in findings if not found.accounted]
    _complain(complaints, "findings of the audit", wrong)
    _complain(complaints, "bad records without a dead letter or a reason", accounts.unexplained(report))
    complaints += [] if cut else recomputed(settings, groups, accounts.bad)
    figures = Counter(found.category for found in findings)
    return Verdict(
        groups=len(groups.events),
        lost=max(len(lost), figures["lost"]),
        doubled=figures["doubled"],
        phantom=max(len(strangers), figures["phantom"]),
        repeated=figures["repeated"],
        out_of_order=figures["out_of_order"],
        complaints=tuple(complaints),
    )


def recomputed(settings: Settings, groups: Written[AdvantagedGroup], bad: Container[str] = ()) -> list[str]:
    """Return what differs between the log and what the batch driver makes of its sources, byte for byte."""
    wanted: dict[str, dict[str, set[bytes]]] = {"group": {}, "dead letter": {}, "batch": {}}
    for made in driver.join(settings):
        what = "group" if isinstance(made, AdvantagedGroup) else "dead letter"
        _, payload = encoded(made, topic_of(type(made), settings.topics))
        wanted[what][getattr(made, IDS[type(made)])] = {payload}
    for partition in range(settings.topics.policy_partitions):
        for cut in driver.cut(settings, admin.read_topic(settings, "groups", partition=partition)):
            if isinstance(cut, Batch):
                wanted["batch"][cut.batch_id] = {encode(cut)}
    letters = Written(settings, DeadLetter, bad)
    of_the_join = {name for name, letter in letters.events.items() if letter.stage == STAGE}
    live: dict[str, Mapping[str, set[bytes]]] = {
        "group": groups.payloads,
        "dead letter": {name: letters.payloads[name] for name in of_the_join},
        "batch": Written(settings, Batch, bad).payloads,
    }
    kinds: dict[str, Any] = {"group": AdvantagedGroup, "dead letter": DeadLetter, "batch": Batch}
    complaints: list[str] = []
    for what, log in live.items():
        again = wanted[what]
        for whose, more in ("log", log.keys() - again.keys()), ("recomputation", again.keys() - log.keys()):
            told = [_told(name, min(log.get(name) or again[name]), kinds[what]) for name in more]
            _complain(complaints, f"{what} that only the {whose} has", told)
        differ = [
            f"{name} ({_difference(log[name] | again[name], kinds[what])})"
            for name in log.keys() & again.keys()
            if log[name] != again[name]
        ]
        _complain(complaints, f"{what} whose bytes differ from the recomputation's", differ)
    return complaints


def _told(name: str, payload: bytes, kind: type[Any]) -> str:
    event = decode(payload, kind)
    return f"{name} ({event.error[:300]})" if isinstance(event, DeadLetter) else name


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
    given, of_log = json.load(sys.stdin), load()
    use_keys(of_log)
    print(json.dumps(judge(of_log, given["states"], cut=given["cut"], bad=given["bad"])._asdict()))
