"""What the loop worker alone promises on a real broker, and that either driver replaces the other.

tests/log/test_app.py has what both do.
"""

from __future__ import annotations

import signal
from itertools import cycle

import pytest

from tests.support.log.join_bench import Bench, Traffic, bench, wait_until
from tests.support.log.join_worker import ANSWERS, PARTITIONS

__all__ = ["bench"]

pytestmark = [pytest.mark.kafka, pytest.mark.kills]

SESSION = {"STREAMWARD_KAFKA__SESSION_TIMEOUT_S": "1.5"}
LOOP, FAUST = {"driver": "loop", **SESSION}, {"driver": "faust", **SESSION}


def test_a_worker_of_one_driver_replaces_one_of_the_other_under_traffic(bench: Bench) -> None:
    """In both directions, told to end and killed; the next one always waits already, and takes over."""
    drivers = cycle([FAUST, LOOP])
    active = bench.start(**next(drivers))
    wait_until(lambda: bool(active.told()) and len(active.told()[-1]["owned"]) == PARTITIONS, active.log)
    traffic = Traffic(bench, 300)
    for how in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        waiting = bench.start(**next(drivers))
        traffic.during(1.2)
        wait_until(lambda one=waiting: "of another driver" in one.log(), waiting.log)
        active.process.send_signal(how)
        active.ends(with_code=0 if how == signal.SIGTERM else -signal.SIGKILL)
        active = waiting
        wait_until(lambda one=active: bool(one.told()) and len(one.told()[-1]["owned"]) == PARTITIONS, active.log)
    traffic.judge()
    active.stop()
    active.ends(with_code=0)


def test_thousands_of_open_groups_are_back_after_a_kill(bench: Bench) -> None:
    groups = [f"g{i}" for i in range(3000)]
    for group in groups:
        bench.send("questions", group, {})
    bench.producer.flush()
    first = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, first.log)
    first.process.kill()
    first.process.wait()
    for group in groups:
        for slot in range(ANSWERS):
            bench.send("answers", group, {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, second.log)
    assert "reads on: 3000 rows" in second.log()
    assert bench.joined().keys() == set(groups)


def test_a_changelog_that_was_emptied_is_rebuilt_from_the_log(bench: Bench) -> None:
    """Half of each group is read when its rows go; without them, the other half would never complete it."""
    for i in range(20):
        bench.send("questions", f"g{i}", {})
    bench.producer.flush()
    first = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, first.log)
    first.stop()
    first.ends(with_code=0)
    bench.admin.delete_topics([bench.changelog])[bench.changelog].result()
    for i in range(20):
        for slot in range(ANSWERS):
            bench.send("answers", f"g{i}", {"slot": str(slot)})
    bench.producer.flush()
    second = bench.start(**LOOP)
    wait_until(lambda: bench.lag() == 0, second.log)
    assert "cannot be trusted, and are rebuilt from" in second.log()
    assert len(bench.joined()) == 20
