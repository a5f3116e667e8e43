"""What the door adds to a call: the same server with keys and without, asked by turns.

    a call, with nothing          ──► streamward serve, serve.auth=none ──► scripted engine ──► broker ──► answer
    a call, with a key            ──► streamward serve, serve.auth=keys: whose is it, may they, how often; an event
    a call, with an access token  ──► the same one; a token has a signature, which is checked each time

Each call is of a conversation of its own, and is answered once its turn is acknowledged. One call after another, over a
connection of each way that is kept: what comes between two servers on one machine comes to both.

Not covered: logging in, which takes as long as argon2 is meant to take; TLS; and many callers at once.
"""

from __future__ import annotations

import http.client
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from plugins.people.access.access_log import AccessLog
from plugins.people.access.tokens import new_private_key
from plugins.people.logins.logins import create_user
from plugins.people.settings import People
from streams.kafka import admin
from streams.processes.child import free_port
from streams.settings.model import Serve, Settings
from tests.benchmarks import local_http
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.support.processes import until

CALLS, WARM_UP = 1000, 300
"""Of each way; the first are not counted, since a broker that has just started takes longer."""
AIM_S = 0.005
"""At most so much is added, in half of the calls."""
LEAST_S = 1e-4
"""What a difference counts as at least: less, or less than nothing, is noise."""
KEY_PER_S = 10_000.0
"""More often than a key is used here, so that its bucket is looked at and never empty."""
PASSWORD = "correct horse battery staple"
WAYS = ("nothing", "a key", "an access token")


def run() -> Iterator[dict[str, Any]]:
    """Yield p50 and p99 of what a key and an access token add, in seconds; the aim is for p50."""
    say(f"door: {CALLS} calls each with {', '.join(WAYS)}, by turns")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as settings, ExitStack() as stack:
        opened, closed = _servers(settings, Path(folder))
        with AccessLog(closed) as log:
            key = log.create(role="trainer", actor="bench").text
            create_user(log, "ann", PASSWORD, ["trainer"], actor="bench")
        for here in (opened, closed):
            stack.enter_context(process("streams.cli", "serve", settings=here))
            until(lambda port=here.serve.port: local_http.answers(port), f"an answer at port {here.serve.port}")
        ports = (opened.serve.port, closed.serve.port, closed.serve.port)
        browsers = [stack.enter_context(closing(local_http.connection(port))) for port in ports]
        login = {"username": "ann", "password": PASSWORD}
        token = local_http.send(browsers[2], "POST", "/auth/login", login)["access_token"]
        seconds = _by_turns(dict(zip(WAYS, zip(browsers, ("", key, token), strict=True), strict=True)), settings)
    for way, percent in itertools.product(WAYS[1:], (50, 99)):
        bare, behind = (statistics.quantiles(seconds[name], n=100)[percent - 1] for name in (WAYS[0], way))
        added = max(behind - bare, LEAST_S)
        yield line(
            "door", f"p{percent} of what {way} adds to a call", ours=added, peer=AIM_S, unit="s", ratio=AIM_S / added,
            target=1.0 if percent == 50 else None, peer_is="the aim for p50", without_s=round(bare, 5),
            with_s=round(behind, 5), calls=CALLS,
        )  # fmt: skip


def _servers(settings: Settings, folder: Path) -> tuple[Settings, Settings]:
    """Return the settings of a server that asks nobody who they are, and of one that asks everybody."""
    signing = folder / "signing.pem"
    signing.write_bytes(new_private_key())
    signing.chmod(0o600)
    opened = settings.model_copy(
        update={
            "policy": settings.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
            "adapters": settings.adapters.model_copy(update={"store": str(folder / "adapters")}),
            "serve": Serve(port=free_port()),
        }
    )
    rule = Serve(port=free_port(), auth="keys", key_per_s=KEY_PER_S)
    topics = settings.topics.model_copy(update={"prefix": "closed."})  # one log has one server
    closed = opened.model_copy(update={"serve": rule, "people": People(signing_key=signing), "topics": topics})
    admin.apply_topics(closed)
    return opened, closed


def _by_turns(ways: Mapping[str, tuple[http.client.HTTPConnection, str]], settings: Settings) -> dict[str, list[float]]:
    """Return how long the calls of each way took, seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, (name, (browser, sent)) in itertools.product(range(WARM_UP + CALLS), ways.items()):
        message = {"role": "user", "content": f"{number} with {name}: what is 47 * 83, and why?"}
        body = {"model": settings.policy.name, "messages": [message], "max_tokens": 64}
        headers = local_http.JSON | ({"Authorization": f"Bearer {sent}"} if sent else {})
        mark = time.perf_counter()
        local_http.send(browser, "POST", "/agents/bench/v1/chat/completions", body, headers=headers)
        if number >= WARM_UP:
            seconds[name].append(time.perf_counter() - mark)
    return seconds
