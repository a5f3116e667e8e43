"""Faults 1 to 4: processes that are killed, told to end, frozen, doubled.

Not covered: the trainer, whose runs are judged by bytes (tests/chaos/faults/trainer.py).
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping

from tests.chaos import child
from tests.chaos.load import Load
from tests.chaos.matrix import fault, healed
from tests.chaos.world import World

NAMES = ("streams", "policy", "scoring")
MOST_PASSED = {"after poll": 400, "after produce": 200, "before commit": 4, "after commit": 4}
"""A stream worker is killed when it comes to a point for the n-th time, n up to this."""
OTHERS_PASSED = 12
"""The same of other processes, at every point."""


def _names(world: World) -> tuple[str, ...]:
    """Return the processes to hurt: with both drivers, the worker that waits, too."""
    return (*NAMES, "streams-2") if world.driver == "mixed" else NAMES


def _moments(draw: random.Random, name: str, most: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return every point of a process in random order, each with how often it is passed first."""
    points = list(child.POINTS[name])
    draw.shuffle(points)
    return [(point, draw.randint(1, most[point] if name == "streams" else OTHERS_PASSED)) for point in points]


@fault(
    1,
    "each process is killed at named points",
    "SIGKILL to itself after a poll, after a publish, before and after a commit, the n-th time it comes there",
    starts=(),
)
def kill_at_points(world: World, load: Load, draw: random.Random, most: Mapping[str, int] = MOST_PASSED) -> None:
    """Every process goes through all of its points, one in each life."""
    for name in NAMES:
        world.start(name, kills=_moments(draw, name, most))
    until = time.monotonic() + 180
    while world.is_armed() and time.monotonic() < until:
        time.sleep(0.1)
    for name in NAMES:
        killed = sum(end.name == name and end.code == -signal.SIGKILL for end in world.exits)
        if killed < len(child.POINTS[name]):
            raise RuntimeError(f"{name} was killed at {killed} of {len(child.POINTS[name])} points")


@fault(1, "each process is killed at random moments", "SIGKILL to one of them every 1 to 4 s")
def kill_at_random(world: World, load: Load, draw: random.Random) -> None:
    while load.share() < 1:
        time.sleep(draw.uniform(1, 4))
        world.kill(draw.choice(_names(world)))


@fault(
    2,
    "each process is told to end during work",
    "SIGTERM every 4 to 6 s: it drains and ends with 0 within its grace, and writes nothing twice",
    no_repeats=True,
)
def sigterm(world: World, load: Load, draw: random.Random) -> None:
    while load.share() < 1:
        time.sleep(draw.uniform(4, 6))
        name = draw.choice(_names(world))
        codes = world.stop(name)
        if any(codes.values()):
            raise RuntimeError(f"told to end, {codes}: {world.said(name)[-600:]}")
        world.start(name)


@fault(
    3,
    "a process sleeps beyond its session and wakes up",
    "SIGSTOP for three session timeouts, then SIGCONT; a second of its kind takes over meanwhile",
    starts=("streams", "streams-2", "policy", "policy-2", "scoring", "scoring-2"),
    codes=frozenset({75}),
)
def zombie(world: World, load: Load, draw: random.Random) -> None:
    names = list(NAMES)
    draw.shuffle(names)
    while load.share() < 1 and names:
        name = draw.choice((names[-1], f"{names.pop()}-2"))
        with healed(lambda name=name: world.thaw(name)):  # type: ignore[misc]
            world.freeze(name)
            time.sleep(3 * world.settings.kafka.session_timeout_s)
        time.sleep(4)


@fault(
    4,
    "rebalance storm: stream workers come and go",
    "a second worker is started, killed, started and told to end, every 3 to 5 s for 2 minutes; so is the first. "
    "Half the load: this leaves the workers less than half of their time",
    rate=25.0,
    codes=frozenset({75}),
)
def rebalance_storm(world: World, load: Load, draw: random.Random) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        world.start("streams-2")
        time.sleep(draw.uniform(3, 5))
        match draw.choice(("kill both", "kill", "stop", "stop")):
            case "kill both":
                world.kill("streams")
                world.kill("streams-2")
                time.sleep(draw.uniform(1, 3))
                world.stop("streams-2")
            case "kill":
                world.kill(draw.choice(("streams", "streams-2")))
                time.sleep(draw.uniform(0, 2))
                world.stop("streams-2")
            case _:
                world.stop("streams-2")
