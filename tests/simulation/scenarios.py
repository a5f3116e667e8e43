"""What happens to many workers, and what it costs.

workers at work ──► one dies, stands still, is replaced; more come ──► until nothing is left to do ──► Outcome
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from streams.settings.model import Advantages, Batches, Kafka, Settings, Topics
from streams.tools.capacity import BUSY
from tests.simulation.load import SimulatedLoad, bring
from tests.simulation.process import Costs
from tests.simulation.verdict import Verdict, judge
from tests.simulation.world import Measured, Simulation

SETTLED_S = 10.0
"""From the start of the first workers until the load comes."""
BEFORE_S, AFTER_S = 10.0, 25.0
"""Load before and after what happens."""
LIMIT_S = 600.0
"""For the workers to come to an end of what is left."""
EVENTS = 17
"""Of the group that was measured: the load's are smaller, and cost less in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How much is simulated."""

    partitions: int = 1000
    workers: int = 200
    groups_s: float = 100.0
    """That are simulated; each stands for as many as keep the workers busy for BUSY of their time."""
    seed: int = 0

    @property
    def load(self) -> SimulatedLoad:
        """What comes."""
        return SimulatedLoad(groups_s=self.groups_s, policies=self.partitions)

    @property
    def settings(self) -> Settings:
        """The workers' settings: Kafka's and the deployment's defaults, but for deadlines, which are to be reached."""
        return Settings(
            kafka=Kafka(),
            topics=Topics(prefix="", partitions=self.partitions, policy_partitions=self.partitions),
            advantages=Advantages(deadline_s=15, grace_s=1, evict_after_s=60),
            batches=Batches(groups=4, max_policy_lag=1_000_000),
        )

    @property
    def costs(self) -> Costs:
        """What a group of the load costs, by what a group of EVENTS does."""
        every, share = Costs(), (1 + 2 * self.load.slots) / EVENTS
        return replace(every, group_s=every.group_s * share, row_s=every.row_s * share)

    def weight(self, workers: int) -> float:
        """Return how many records each of the simulated ones stands for."""
        a_group_s = (1 + 2 * self.load.slots) * self.costs.record_s + self.costs.group_s
        return BUSY * workers / (self.groups_s * a_group_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one scenario cost, and whether it held."""

    name: str
    rebalances: int
    still_s: float
    """That the partition which was not read for longest was not read in all."""
    still_median_s: float
    moved: int
    """Partition numbers that another worker got, each time it did."""
    rows: float
    """That were read again from changelogs, in what they stand for."""
    again: float
    """Records that were processed again, of all that were."""
    written_again: float
    """Groups, dead letters and batches that are in the log once more, of all."""
    largest: int
    """Most partition numbers of one worker, at the end."""
    mean: float
    """Partition numbers of a worker then."""
    ended: int
    """Workers that ended themselves."""
    verdict: Verdict


Happening = Callable[[Simulation, Fleet], None]


def nothing(world: Simulation, fleet: Fleet) -> None:
    """All is well."""


def one_dies(world: Simulation, fleet: Fleet) -> None:
    """kill -9 in the middle of a step; its successor is started at once."""
    victim = world.alive[0]
    victim.kill_within(20)
    world.run_until(lambda: victim.dead, limit_s=30, every_s=0.01)
    world.replace(victim)


def one_dies_alone(world: Simulation, fleet: Fleet) -> None:
    """kill -9, and its successor comes when the group has taken note."""
    victim = world.alive[0]
    victim.kill_within(20)
    world.run_until(lambda: victim.dead, limit_s=30, every_s=0.01)
    world.run(15)
    world.replace(victim)


def a_tenth_dies(world: Simulation, fleet: Fleet) -> None:
    """A machine is gone, with a tenth of the workers; nobody takes their places."""
    for victim in world.alive[: max(1, fleet.workers // 10)]:
        victim.kill()


def one_freezes(world: Simulation, fleet: Fleet) -> None:
    """A worker stands still for 10 s, longer than its session, and continues as if nothing had been."""
    world.alive[0].freeze(10)


def one_hangs(world: Simulation, fleet: Fleet) -> None:
    """What a worker does takes 20 s, in which another one comes: nobody reads until all have joined."""
    world.alive[0].hang(20)
    world.start()


def rolling(world: Simulation, fleet: Fleet) -> None:
    """A twentieth of the workers is replaced, one by one: the new one is ready before the old one stops."""
    for old in world.alive[: max(1, fleet.workers // 20)]:
        new = world.replace(old)
        world.run_until(lambda new=new: new.is_ready, limit_s=120, every_s=0.1)
        old.stop()
        world.run_until(lambda old=old: old.dead, limit_s=120, every_s=0.1)


def doubled(world: Simulation, fleet: Fleet) -> None:
    """As many workers again come at once."""
    world.start(fleet.workers // 2)


SCENARIOS: dict[str, tuple[Happening, float]] = {
    "nothing happens": (nothing, 1.0),
    "one is killed, and started again": (one_dies, 1.0),
    "one is killed, its successor comes 15 s later": (one_dies_alone, 1.0),
    "a tenth is killed": (a_tenth_dies, 1.0),
    "one is frozen for 10 s": (one_freezes, 1.0),
    "one hangs for 20 s while another comes": (one_hangs, 1.0),
    "a twentieth is replaced, one by one": (rolling, 1.0),
    "half as many, then all": (doubled, 0.5),
}
"""By what happens: how, and the share of the workers that there is at first."""


def played(name: str, fleet: Fleet) -> Outcome:
    """Play one scenario."""
    happens, share = SCENARIOS[name]
    first = max(1, round(share * fleet.workers))
    with Simulation(fleet.settings, seed=fleet.seed, weight=fleet.weight(first), costs=fleet.costs) as world:
        world.start(first)
        world.run(SETTLED_S)
        bring(world, fleet.load, BEFORE_S + AFTER_S)
        world.run(BEFORE_S)
        world.measured = Measured()
        rebalances = world.group.rebalances
        happens(world, fleet)
        world.run(max(0.0, SETTLED_S + BEFORE_S + AFTER_S - world.clock.now))
        measured, rebalances = world.measured, world.group.rebalances - rebalances
        shares = Counter(world.last_reader[number].number for number in range(fleet.partitions))
        world.run_until(lambda: world.lag == 0, limit_s=LIMIT_S)
        world.run(20)  # deadlines
        world.run_until(lambda: world.lag == 0, limit_s=LIMIT_S)
        verdict = judge(world)
        weight = world.weight
    in_all = [sum(s for _, s in measured.still_s.get(number, ())) for number in range(fleet.partitions)]
    written = verdict.expected + verdict.batches
    return Outcome(
        name=name,
        rebalances=rebalances,
        still_s=max(in_all),
        still_median_s=statistics.median(in_all),
        moved=measured.moved,
        rows=measured.rows * weight,
        again=measured.again / measured.taken,
        written_again=verdict.repeated / written,
        largest=max(shares.values()),
        mean=fleet.partitions / len(shares),
        ended=len(measured.ended),
        verdict=verdict,
    )
