"""The simulation: whatever dies when, the log holds what the plain reducers make of it; a broken worker is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from schemas.events import Coordinates
from streams.settings.model import Advantages, Batches, Settings, Topics
from streams.worker.batched.epoch import Epoch
from streams.worker.fence import Fence
from tests.simulation.broker import SimulatedPartition
from tests.simulation.load import SimulatedLoad, bring
from tests.simulation.scenarios import SCENARIOS, Fleet, Outcome, played
from tests.simulation.verdict import Verdict, judge
from tests.simulation.world import Simulation
from tests.support.thoroughness import examples

SETTINGS = Settings(
    topics=Topics(prefix="", partitions=4, policy_partitions=2),
    advantages=Advantages(deadline_s=6, grace_s=1, evict_after_s=60),
    batches=Batches(groups=3, max_policy_lag=1_000_000),
)
LOAD = SimulatedLoad(groups_s=4, policies=3, answer_s=1.5)
WEIGHT = 300.0
"""So that steps take tenths of a second, and things happen within them."""

Blow = tuple[float, str, int, int]
"""After so many seconds, what happens to which worker, and how exactly."""
blows = st.lists(
    st.tuples(
        st.floats(0, 3, allow_subnormal=False),
        st.sampled_from(("kill", "kill within", "stop", "freeze", "start", "freeze and forget")),
        st.integers(0, 9),
        st.integers(0, 60),
    ),
    max_size=6,
)


def told(seed: int, story: list[Blow]) -> Verdict:
    """Return what is in the log at the end of a story."""
    with Simulation(SETTINGS, seed=seed, weight=WEIGHT) as world:
        world.start(3)
        world.run(3)
        bring(world, LOAD, 8)
        for after_s, what, which, how in story:
            world.run(after_s)
            alive = world.alive
            victim = alive[which % len(alive)]
            match what:
                case "kill":
                    victim.kill()
                    world.replace(victim)
                case "kill within":
                    victim.kill_within(how)
                    world.run(1.5)
                    if victim.dead:
                        world.replace(victim)
                case "stop":
                    victim.stop()
                    world.replace(victim)
                case "freeze":
                    victim.freeze(how / 5)
                case "freeze and forget":  # it returns when others have done its work
                    victim.freeze(12 + how / 10)
                case _:
                    world.start()
        for process in world.alive:
            process.spare()
        world.run(8)
        for process in world.alive:
            process.thaw()
        world.start()
        world.run_until(lambda: world.lag == 0, limit_s=200)
        world.run(10)  # deadlines
        world.run_until(lambda: world.lag == 0, limit_s=200)
        return judge(world)


@given(seed=st.integers(0, 2**16), story=blows)
@hypothesis_settings(max_examples=examples(20))
def test_whatever_dies_when_the_log_holds_what_the_plain_reducers_make_of_it(seed: int, story: list[Blow]) -> None:
    verdict = told(seed, story)
    assert verdict.holds, verdict
    assert verdict.expected > 20


def never(self: Fence, partition: int, offset: int, generation: int | None) -> bool:
    return True


def uncounted(self: Epoch, on_ack: Any = None) -> Callable[[Coordinates], None]:
    return on_ack or (lambda _: None)


KILLED: list[Blow] = [(0.7, "kill within", 0, 7), (0.5, "kill", 1, 0), (1.1, "kill within", 2, 3), (0.9, "kill", 0, 0)]
ZOMBIES: list[Blow] = [
    (2.0, "freeze", 0, 45), (0.3, "freeze", 1, 45),  # longer than their sessions, so that others do their work
    (10.5, "kill", 2, 0), (0.2, "kill", 0, 0), (0.2, "kill", 0, 0),  # and who comes next reads all rows again
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "name", "broken", "story"),
    [(Epoch, "sends", uncounted, KILLED), (Fence, "admits", never, ZOMBIES)],
    ids=["commits before what was done is acknowledged", "takes rows of a worker that lost its partitions"],
)
def test_a_worker_that_breaks_a_rule_is_found(
    where: type, name: str, broken: Any, story: list[Blow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    assert any(not told(seed, story).holds for seed in range(20))


# --- the scenarios, small ---------------------------------------------------------------------------------------------

SMALL = Fleet(partitions=12, workers=4, groups_s=6)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: played(name, SMALL) for name in SCENARIOS}


def test_every_scenario_ends_with_everything_in_the_log_once(outcomes: dict[str, Outcome]) -> None:
    assert {name: outcome.verdict for name, outcome in outcomes.items() if not outcome.verdict.holds} == {}
    assert all(outcome.ended == 0 for outcome in outcomes.values())
    assert all(outcome.verdict.batches > 20 for outcome in outcomes.values())


def test_nobody_waits_while_nothing_happens(outcomes: dict[str, Outcome]) -> None:
    calm = outcomes["nothing happens"]
    assert (calm.rebalances, calm.still_s, calm.moved, calm.rows, calm.again) == (0, 0.0, 0, 0.0, 0.0)
    assert calm.largest == calm.mean == SMALL.partitions / SMALL.workers


def test_nothing_is_done_twice_when_workers_come_and_leave_in_order(outcomes: dict[str, Outcome]) -> None:
    for name in ("a twentieth is replaced, one by one", "half as many, then all"):
        assert outcomes[name].again == outcomes[name].written_again == 0.0
        assert outcomes[name].rows > 0 < outcomes[name].moved


def test_everyone_waits_for_a_worker_that_hangs(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["one hangs for 20 s while another comes"].still_median_s > 15


def test_a_successor_that_joins_too_soon_has_everyone_wait_for_the_session_of_the_dead(
    outcomes: dict[str, Outcome],
) -> None:
    """Kafka's classic protocol: nobody reads in a rebalance until all members have joined, or no longer count."""
    soon = outcomes["one is killed, and started again"]
    later = outcomes["one is killed, its successor comes 15 s later"]
    assert soon.still_median_s > 2 > later.still_median_s


def test_a_scenario_is_the_same_each_time() -> None:
    fleets = [Fleet(partitions=4, workers=2, groups_s=2, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (played("one is frozen for 10 s", fleet) for fleet in fleets)
    assert first == again != other


def test_a_changelog_keeps_the_newest_row_of_each_key_and_no_more_than_it_must() -> None:
    changelog = SimulatedPartition(segment_bytes=100)
    written: dict[bytes, bytes | None] = {}
    for number in range(500):
        key, row = b"k%d" % (number % 7), None if number % 11 == 0 else b"row %d" % number
        written[key] = row
        changelog.append(0, key, row, [])
    newest = {record.key: record.value for record in changelog.records}
    assert {key: row for key, row in newest.items() if row} == {key: row for key, row in written.items() if row}
    assert changelog.end == 500 > 10 * len(changelog.records)
    assert [record.offset for record in changelog.read_from(0, 500)] == sorted(r.offset for r in changelog.records)
