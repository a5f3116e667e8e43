"""The cache: how soon a repeated answer is there, of a call that is recorded like any other.

    POST /v1/chat/completions, temperature 0, a question of before ──► its answer     beside: the same with no-store

One call after another over one connection that is kept; server and broker are those of `streamward serve` on the
scripted engine, with an answer of 64 tokens. A repeated answer waits for the broker, as every answer does.

Not covered: many callers at once, and a model: what it takes to sample is what the cache saves.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from streams.processes.child import free_port
from streams.settings.model import Serve
from tests.benchmarks import local_http
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.support.processes import until

CALLS, WARM_UP = 1000, 200
AIM_S = 0.002
QUESTION = "What is 47 * 83, and why? " * 4


def run() -> Iterator[dict[str, Any]]:
    """Yield the median of a repeated answer, in seconds."""
    say(f"cache: {CALLS} repeated answers, and as many sampled ones")
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as made:
        from plugins.cache.cache_settings import Cache

        settings = made.model_copy(
            update={
                "policy": made.policy.model_copy(update={"engine": "scripted", "script": "{}"}),
                "adapters": made.adapters.model_copy(update={"store": str(Path(folder) / "adapters")}),
                "serve": Serve(port=free_port()),
                "cache": Cache(exact_s=3600.0),
            }
        )
        with process("streams.cli", "serve", settings=settings):
            port = settings.serve.port
            until(lambda: local_http.answers(port), f"an answer at port {port}")
            with closing(local_http.connection(port)) as connection:
                seconds = {way: _seconds(connection, settings.policy.name, way) for way in ("", "no-store")}
    hit, sampled = (statistics.median(seconds[way]) for way in ("", "no-store"))
    yield line(
        "cache", "p50 of a repeated answer", ours=hit, peer=AIM_S, unit="s", ratio=AIM_S / hit, target=1.0,
        peer_is="the aim", sampled_s=round(sampled, 5), calls=CALLS,
    )  # fmt: skip


def _seconds(connection: http.client.HTTPConnection, model: str, control: str) -> list[float]:
    """Return how long each answer took, seconds."""
    seconds = []
    headers = {"Content-Type": "application/json"} | ({"Cache-Control": control} if control else {})
    message = {"role": "user", "content": QUESTION}
    body = json.dumps({"model": model, "messages": [message], "temperature": 0, "max_tokens": 64})
    for number in range(WARM_UP + CALLS):
        mark = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        response.read()
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - mark)
            assert ("x-streamward-cached-from" in response.headers) == (not control)
    return seconds
