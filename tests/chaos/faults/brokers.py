"""Faults 5 to 7: brokers that die, freeze and run out of disk, and links that fail.

Not covered: the loss of power. SIGKILL keeps the page cache; what three brokers hold is not on one disk, though.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from typing import Literal

from streams.settings.model import Broker
from tests.chaos.disks import NotShown, fill, free, read_only, small_disk, writable
from tests.chaos.load import Load
from tests.chaos.matrix import fault, healed
from tests.chaos.nodes import Cluster
from tests.chaos.proxy import Proxy, proxied_node
from tests.chaos.world import World

DISK_MB = 96
AWAY = frozenset({1, 5, 75})
"""Exit codes of a process that is started while its broker is away, or gives up waiting for it."""

# --- one node ---------------------------------------------------------------------------------------------------------


@fault(5, "the broker is killed", "SIGKILL to the node three times, down for 1 to 8 s each", codes=AWAY)
def broker_kill(world: World, load: Load, draw: random.Random, shares: Sequence[float] = (0.3, 0.6, 1.0)) -> None:
    for share in shares:
        load.until(share)
        with healed(world.restart_broker):
            world.signal_broker(signal.SIGKILL)
            time.sleep(draw.uniform(1, 8))


@fault(5, "the broker freezes", "SIGSTOP to the node for 30 s under load, then SIGCONT", codes=AWAY)
def broker_freeze(world: World, load: Load, draw: random.Random) -> None:
    load.until(draw.uniform(0.4, 0.6))
    with healed(lambda: world.signal_broker(signal.SIGCONT)):
        world.signal_broker(signal.SIGSTOP)
        time.sleep(30)


# --- three nodes ------------------------------------------------------------------------------------------------------


class ThreeBrokers(World):
    """A World with three nodes and three copies of every partition."""

    cluster: Cluster

    def open_broker(self) -> None:
        """Start the three."""
        self.cluster = self.stack.enter_context(Cluster(self.folder / "nodes"))
        self.use(self.cluster.bootstrap)


@fault(
    5,
    "one of three brokers is away, each in turn",
    "replication 3: SIGKILL to a partition's leader, then to the controller, then SIGTERM to each, under load",
    place=ThreeBrokers,
    settings={"topics": {"replication": 3}},
    rate=25.0,  # the three nodes and everything else share the cores
    codes=AWAY,
)
def three_brokers(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, ThreeBrokers)
    nodes = world.cluster
    for share, victim in (
        (0.2, lambda: nodes.leader_of(world.topic("responses"), draw.randrange(8))),
        (0.5, nodes.controller),
    ):
        load.until(share)
        i = victim()
        with healed(lambda i=i: nodes.start(i)):  # type: ignore[misc]
            nodes.kill(i)
            time.sleep(draw.uniform(2, 6))
        nodes.wait_in_sync()
    for i in range(3):
        with healed(lambda i=i: nodes.start(i)):  # type: ignore[misc]
            nodes.stop(i)
        nodes.wait_in_sync()


# --- the link ---------------------------------------------------------------------------------------------------------


class BehindAProxy(World):
    """A World whose processes reach the node through a proxy, and the harness past it."""

    proxy: Proxy

    def open_broker(self) -> None:
        """Start a node with two addresses."""
        node = self.stack.enter_context(proxied_node(self.node.data_dir))
        self.proxy = node.proxy
        self.use(node.direct, for_processes=node.proxied)


@fault(
    6,
    "the link fails in every way",
    "a proxy: 8 s cut, 8 s cut in each direction alone, 15 s up and down, every 50th connection reset, 200 ms latency",
    place=BehindAProxy,
    rate=25.0,  # it is away most of the time, and what waits is worked off beside what comes
    codes=AWAY,
)
def link(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, BehindAProxy)
    proxy = world.proxy
    kinds = [
        (lambda: proxy.cut(existing=draw.choice(("reset", "hang")), new=draw.choice(("refuse", "hang"))), 8),
        (lambda: proxy.cut_one_way("to_broker"), 8),
        (lambda: proxy.cut_one_way("to_client"), 8),
        (lambda: proxy.flap(draw, 2.0), 15),
        (lambda: proxy.reset_every(50), 10),
        (lambda: proxy.delay(0.2), 10),
    ]
    draw.shuffle(kinds)
    for fail, seconds in kinds:
        with healed(proxy.pass_through):
            fail()
            time.sleep(seconds)
        time.sleep(4)
    world.notes.append(f"{proxy.counts.resets} connections reset")


# --- the disk ---------------------------------------------------------------------------------------------------------


class SmallDisk(World):
    """A World whose node has a disk of its own, of DISK_MB, which can fill up."""

    kind: Literal["tmpfs", "ext4"] = "tmpfs"

    def open_broker(self) -> None:
        """Mount the disk, and start the node on it."""
        self.disk = self.stack.enter_context(small_disk(DISK_MB, self.kind))
        self.node = Broker(data_dir=self.disk / "kafka")
        super().open_broker()

    def until_broker_ends(self) -> None:
        """Return once the node has noticed that it cannot write. Raises NotShown if it does not."""
        until = time.monotonic() + 30
        while self.broker_runs() and time.monotonic() < until:
            time.sleep(0.1)
        if self.broker_runs():
            raise NotShown("Kafka did not notice its disk within 30 s")


class FailingDisk(SmallDisk):
    """Likewise, on a disk that turns read-only under open files, as the kernel does when one fails."""

    kind = "ext4"


@fault(
    7,
    "the broker's disk is full",
    f"a tmpfs of {DISK_MB} MiB is filled under load: Kafka stops itself; freed, and started again",
    place=SmallDisk,
    codes=AWAY,
)
def broker_disk_full(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, SmallDisk)
    load.until(draw.uniform(0.3, 0.5))
    fill(world.disk)
    world.until_broker_ends()
    time.sleep(draw.uniform(0, 4))
    free(world.disk)
    world.restart_broker()


@fault(
    7,
    "the broker's disk turns read-only",
    f"an ext4 of {DISK_MB} MiB is remounted read-only under load: Kafka stops itself; writable, and started again",
    place=FailingDisk,
    codes=AWAY,
)
def broker_disk_read_only(world: World, load: Load, draw: random.Random) -> None:
    assert isinstance(world, SmallDisk)
    load.until(draw.uniform(0.3, 0.5))
    with healed(lambda: world.signal_broker(signal.SIGCONT)):
        world.signal_broker(signal.SIGSTOP)  # what is acknowledged is on the disk first: this is no loss of power
        read_only(world.disk)
    world.until_broker_ends()
    time.sleep(draw.uniform(0, 4))
    writable(world.disk)
    world.restart_broker()
