"""A process of the fault matrix: `streamward NAME`, with a fault wired into it.

    CHAOS='{"kill": ["after produce", 17]}' python -m tests.chaos.child streams
        ──► streams.cli.root, whose functions kill the process at the 17th time they get there

The product knows nothing of this: its functions are wrapped here, before it starts. A kill is SIGKILL to oneself, so
nothing is flushed, closed or said.

Not covered: kills between two instructions that no function separates. Random moments are for those.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from streams.cli.runtime import importing

ENV = "CHAOS"
POINTS: dict[str, tuple[str, ...]] = {
    "streams": ("after poll", "after produce", "before commit", "after commit"),
    "policy": ("after poll", "after produce", "before commit", "after commit"),
    "scoring": ("after poll", "after produce", "before commit", "after commit"),
    "train": (
        "after poll",
        "mid-checkpoint",
        "after checkpoint",
        "after store",
        "after produce",
        "before commit",
        "after commit",
    ),
}
"""Where each process can be killed."""

Hook = Callable[[Any], None]


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def wrap(owner: Any, name: str, *, before: Callable[[], None] | None = None, after: Hook | None = None) -> None:
    """Have `owner.name` call `before`, and `after` with its result."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if before:
            before()
        result = original(*arguments, **named)
        if after:
            after(result)
        return result

    @functools.wraps(original)
    async def await_call(*arguments: Any, **named: Any) -> Any:
        if before:
            before()
        result = await original(*arguments, **named)
        if after:
            after(result)
        return result

    setattr(owner, name, await_call if inspect.iscoroutinefunction(original) else call)


def arm(process: str, point: str, times: int, *, loop: bool = False) -> None:
    """Kill this process when it comes to `point` for the `times`-th time; `loop`: a stream worker of that driver."""
    left = times

    def count(result: Any = True) -> None:
        nonlocal left
        if result or result is None:  # a poll that found nothing does not count
            left -= 1
            if left == 0:
                die()

    if process == "streams" and loop:
        _arm_loop(point, count)
    elif process == "streams":
        _arm_streams(point, count)
    elif process == "train":
        _arm_trainer(point, count)
    else:
        _arm_agent(point, count)


def _arm_streams(point: str, count: Any) -> None:
    from streams.worker.faust import faust_app

    if point == "after poll":
        wrap(faust_app, "record_of", after=count)
    elif point == "after produce":
        wrap(faust_app, "emit", after=count)
    else:
        from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

        def wrap_commit(_: Any) -> None:
            when = {"before": count} if point == "before commit" else {"after": count}
            wrap(AIOKafkaConsumerThread, "_commit", **when)

        wrap(faust_app.fixes, "install", after=wrap_commit)  # which looks at the sources first


def _arm_loop(point: str, count: Any) -> None:
    from streams.kafka.consumer import GroupConsumer
    from streams.kafka.producer import Producer

    if point == "after poll":
        wrap(GroupConsumer, "poll", after=count)
    elif point == "after produce":
        wrap(Producer, "send_bytes", after=count)
    else:
        wrap(GroupConsumer, "commit", **({"before": count} if point == "before commit" else {"after": count}))


def _arm_agent(point: str, count: Any) -> None:
    from streams.kafka.consumer import GroupConsumer
    from streams.kafka.producer import Producer

    if point == "after poll":
        wrap(GroupConsumer, "poll", after=count)
    elif point == "after produce":
        wrap(Producer, "flush", after=count)
    else:
        wrap(GroupConsumer, "commit", **({"before": count} if point == "before commit" else {"after": count}))


def _arm_trainer(point: str, count: Any) -> None:
    from streams.adapters import store
    from trainer import batch_source, policy_trainer
    from trainer.versions import checkpoint

    match point:
        case "after poll":
            wrap(policy_trainer, "fetch", after=count)
        case "mid-checkpoint":
            wrap(checkpoint, "save_file", after=count)
        case "after checkpoint":
            wrap(checkpoint, "save", after=count)
        case "after store":
            wrap(store, "publish", after=count)
        case "after produce":
            wrap(policy_trainer.Producer, "flush", after=count)
        case "before commit":
            wrap(batch_source.Presence, "commit", before=count)
        case _:
            wrap(batch_source.Presence, "commit", after=count)


def without_fixes() -> None:
    """Run Faust as it comes: none of streams/worker/faust/fixes.py, nor what faust_app.py changes in its
    classes."""
    import faust

    from streams.worker.faust import faust_app

    faust_app.fixes.install = lambda *_, **__: None
    faust_app.Table = faust.Table  # type: ignore[misc]
    del faust_app.App._consumer_wait_empty


def main(process: str, *arguments: str) -> None:
    """Wire in what the environment asks for, and be `streamward PROCESS`."""
    wanted: dict[str, Any] = json.loads(os.environ.pop(ENV, "{}"))
    with importing():  # as the command, which would import the same without a search for garbage
        if wanted.get("stock") and process == "streams":
            without_fixes()
        if "kill" in wanted:
            arm(process, *wanted["kill"], loop="loop" in arguments)
        if "step_s" in wanted:
            from trainer.versions import checkpoint

            wrap(checkpoint, "save", before=lambda: time.sleep(wanted["step_s"]))
        if "engine" in wanted:
            from tests.chaos import bad_peers

            bad_peers.wire_in()
    from streams.cli.root import cli

    cli([process, *arguments], prog_name="streamward")


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
