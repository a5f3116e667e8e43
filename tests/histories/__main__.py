"""Record what today's code decides about a log that has every decision in it, one history per formula.

    python -m tests.histories [--name NAME]

Run it when a version was raised or a formula was added: it records the histories that are missing. One that exists is
never written again: what it holds was decided, and to overwrite it would be to forget that. With --name another one is
recorded beside those of the current versions, e.g. after tests/support/log/in_memory.py has learned a new trouble.

Not covered: whether the decisions are right. That is for the other tests; this only keeps them.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it: the modules of tests/ by their bare names

from schemas.events import AdvantagedGroup, Coordinates
from schemas.serde import encode
from streams.advantage_formulas import FORMULA_VERSION, FORMULAS
from streams.kafka.record import Record
from streams.settings.model import Advantages, Batches, Settings, Topics
from streams.stages.batches import RULE_VERSION
from tests.histories import FOLDER, SUFFIX, History, decide, save
from tests.support.factories import T0, group
from tests.support.log.in_memory import TROUBLES, Log

TOGETHER = (
    ("another sampling", "everything twice", "a missing reward"),
    ("another sampling", "part of a sampling", "a missing slot"),
    ("a changed task", "the task again", "everything twice"),
    ("a late reward", "a failed slot"),
    ("too large", "a missing slot"),
)
RULES = {
    "grpo": (Advantages(formula="grpo"), Batches(groups=2, max_policy_lag=1)),
    "dr_grpo": (Advantages(formula="dr_grpo", partial="drop"), Batches(groups=3, max_policy_lag=0)),
    "rloo": (Advantages(formula="rloo", min_group=3), Batches(groups=2, zero_variance="keep")),
    "batch_std": (Advantages(formula="batch_std", eps=0.0, ddof=0), Batches(groups=1, max_policy_lag=3)),
}
"""Settings under which a formula's history is recorded. One without an entry has the defaults, in batches of 2."""


def main(arguments: list[str]) -> int:
    """Record the histories; return the exit code: 4 if they are there already."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", help="record another history beside those of the current versions")
    given = parser.parse_args(arguments)
    suffix = f"-{given.name}{SUFFIX}" if given.name else SUFFIX
    paths = {formula: FOLDER / f"{formula}-{FORMULA_VERSION}.{RULE_VERSION}{suffix}" for formula in FORMULAS}
    missing = {formula: path for formula, path in paths.items() if not path.exists()}
    if not missing:
        print(
            f"{', '.join(path.name for path in paths.values())}: recorded already under formula version "
            f"{FORMULA_VERSION} and batch rule version {RULE_VERSION}. When a decision changes, raise the version; for "
            "another log beside them give --name NAME",
            file=sys.stderr,
        )
        return 4
    for number, (formula, path) in enumerate(missing.items()):
        history = recorded(formula, seed=number)
        save(history, path)
        print(f"{path.name}: {len(history.decided)} decisions, {path.stat().st_size} bytes")
    return 0


def recorded(formula: str, *, seed: int) -> History:
    """Return the history of a log with every trouble in it, under the rules of one formula."""
    advantages, batches = RULES.get(formula, (Advantages(formula=formula), Batches(groups=2, max_policy_lag=1)))
    topics = Topics(prefix="", max_record_bytes=2048)
    settings = Settings(topics=topics, advantages=advantages, batches=batches)
    log = Log([(), (), *((trouble,) for trouble in TROUBLES), *TOGETHER], seed)
    records = {**log.records, ("groups", 0): groups()}
    history = History(formula, FORMULA_VERSION, RULE_VERSION, settings, records, [])
    return history._replace(decided=[(label, encode(event)) for label, event in decide(history)])


def groups() -> list[Record]:
    """Return what a batch stage may read: two policies, each drop that there is, and bytes that are no group."""

    def numbered(number: int, version: int, **changes: object) -> AdvantagedGroup:
        policy = "one" if number % 3 else "two"
        what = {"adapter_version": version, "policy": policy, **changes}
        return group(task_id=f"g{number}", created_at=T0 + number, **what)

    def flat(one: AdvantagedGroup) -> AdvantagedGroup:
        return dataclasses.replace(one, responses=tuple(dataclasses.replace(r, advantage=0.0) for r in one.responses))

    made = [numbered(number, number // 6) for number in range(18)]
    made[3:3] = [flat(numbered(20, 0)), numbered(22, 0, purpose="eval"), made[1]]
    made[8:8] = [numbered(23, 9), numbered(24, 0, dropped_reason="unanswered", responses=()), made[0]]
    made += [numbered(25, 0), flat(numbered(26, 4)), *(numbered(number, 5) for number in range(30, 36))]
    payloads = [(one.policy.encode(), encode(one)) for one in made]
    payloads.insert(5, (b"one", b"no group"))
    return [
        Record(Coordinates("groups", 0, offset), T0 + offset, key, payload)
        for offset, (key, payload) in enumerate(payloads)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
