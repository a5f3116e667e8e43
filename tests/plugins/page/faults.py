"""Fault 18: the page is killed while it answers browsers, and the trainer is told nothing of it.

browsers ──► `streamward page`, `streamward serve` ──► SIGKILL, again and again
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from threading import Event, Thread

import httpx

from plugins.page.settings import Page
from tests.chaos.faults.trainer import BATCHES, STEP_S, TIMEOUT_S, announced, register, wait_until
from tests.chaos.proxy import free_ports
from tests.chaos.world import World

SEEN = ("/", "/groups", "/policies/default", "/sql?statement=SELECT+count(*)+FROM+groups", "/live")
"""Pages that are asked for while a trainer trains."""
VIEWS = 6
"""Pages that a server has shown before it is killed again."""


def _looked_at(world: World, draw: random.Random) -> None:
    """The page, and the server that has it too, die while they answer browsers; the trainer is told nothing of it."""
    ports = dict(zip(("page", "serve"), free_ports(2), strict=True))
    serve = world.settings.serve.model_copy(update={"port": ports["serve"]})
    settings = world.settings.model_copy(update={"serve": serve, "page": Page(port=ports["page"])})
    shown: Counter[str] = Counter()
    refused: list[str] = []
    enough = Event()

    def look(name: str, root: str) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[name]}{root}", timeout=TIMEOUT_S) as browser:
            for page in cycle(SEEN):
                if enough.wait(0.05):
                    return
                try:
                    answer = browser.get(page)
                except httpx.TransportError:  # it is down, or was killed while it answered
                    continue
                shown[name] += answer.is_success
                if not answer.is_success and answer.status_code != 503:
                    refused.append(f"{answer.url} {answer.status_code}: {answer.text[:200]}")

    browsers = [Thread(target=look, args=each, name=each[0]) for each in (("page", ""), ("serve", "/page"))]

    def see(name: str, while_true: Callable[[], bool] = lambda: True) -> None:
        seen = shown[name] + VIEWS
        wait_until(lambda: shown[name] >= seen or not while_true(), f"pages of {name}", world)

    def trains() -> bool:
        return announced(world.direct) < BATCHES

    for name in ports:
        world.start(name, settings=settings)
    for browser in browsers:
        browser.start()
    killed: Counter[str] = Counter()
    try:
        for name in ports:
            see(name)
        world.start("train", step_s=4 * STEP_S)
        while trains():
            name = draw.choice(sorted(ports))
            see(name, trains)
            world.kill(name)
            killed[name] += 1
        for name in ports:
            see(name)
    finally:
        enough.set()
        for browser in browsers:
            browser.join()
    if refused:
        raise RuntimeError(f"{len(refused)} pages could not be made: {refused[0]}")
    if min(killed[name] for name in ports) < 2:
        raise RuntimeError(f"the trainer was done before each was killed twice: {dict(killed)}")
    world.notes.append(f"killed {dict(killed)}, shown {shown['page']} and {shown['serve']} pages")


register(
    "kill-page",
    18,
    "the page is killed, and the server that has it too",
    "SIGKILL to `streamward page` or `streamward serve` whenever six more pages were shown, until the trainer is done",
    _looked_at,
    frozenset(),
)
