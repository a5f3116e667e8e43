"""Versions with real weights through the release path: a better one is promoted, one trained to be worse is rejected.

    python -m tests.benchmarks.released [--write]

    sums ──► versions 1 to 7, each promoted by hand but the last ──► back to the base ──► canary of 7 ──► promoted
    sums that pay for wrong answers ──► versions 8 to 11 likewise ──► back to 7 ──► canary of 11 ──► rejected

SmolLM2-135M-Instruct, on one machine, with a stream worker, a scoring agent, a policy agent and a trainer of their own.
The canaries see `serve` tasks alone, scored as always. `--write` puts the trail into docs/rollout.md.

Not covered: how often such a verdict is false. That is simulated in sequential.py.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from schemas.events import AdapterEvent, AdvantagedGroup
from streams.adapters.serving import Serving
from streams.adapters.versions import read_state
from streams.demo.loop_plan import ONE_MACHINE
from streams.evaluation.sequential import ARMS
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.output import with_interval
from streams.settings.load import override
from streams.settings.model import Settings
from streams.stages.tasks.generators import TaskSpec, generate
from tests.benchmarks.loop import REPO, node, process
from tests.benchmarks.sequential import put
from tests.benchmarks.side_by_side import say
from tests.support.processes import environment, read

PAGE = REPO / "docs" / "rollout.md"
BETTER, WORSE = 7, 11
"""Versions that are released."""
AT_ONCE, MOST = 40, 1000
"""Tasks to serve: sent whenever the ones before have their groups, and in all, at most."""
LIMIT_S = 900.0
"""For one version, or one canary."""
COLUMNS = ["version", "event", "by", "reason", "right, candidate", "right, primary"]
RELEASE = {"rollouts.mode": "canary", "canary.steps": "0.2,0.5", "canary.step_groups": "10"}


def main(arguments: list[str]) -> int:
    """Train, release, and print the trail."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.released", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    given = parser.parse_args(arguments)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *_trail()]
    trail = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    print(trail)
    if given.write:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "released", trail), encoding="utf-8")
    return 0


def _trail() -> list[list[str]]:
    with node() as on_node, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        own = {"adapters.store": f"{folder}/adapters", "trainer.checkpoints": f"{folder}/checkpoints"}
        by_hand = override(on_node, {**ONE_MACHINE, **own, "rollouts.mode": "manual"}, "this benchmark")
        by_canary = override(by_hand, RELEASE, "this benchmark")
        _train(by_hand, range(1, BETTER + 1), weight=1.0)
        _return_to(by_hand, 0)
        _release(by_canary, BETTER)
        _train(by_hand, range(BETTER + 1, WORSE + 1), weight=-1.0)
        _return_to(by_hand, BETTER)
        _release(by_canary, WORSE)
        return list(_decisions(by_hand))


def _train(settings: Settings, versions: range, *, weight: float) -> None:
    """Train these versions on sums whose rewards count `weight` times, and promote each but the last."""
    count = settings.batches.groups * len(versions)
    spec = TaskSpec(family="sums", count=count, seed=versions[0], purpose="train", policy=settings.policy.name)
    with _processes(settings, "streams", "scoring", "policy", "train"), Producer(settings) as producer:
        for task in generate(spec, now_ms=times.now_ms()):
            sources = tuple(replace(source, weight=weight) for source in task.reward_sources)
            producer.send(replace(task, reward_sources=sources))
        producer.flush()
        for version in versions:
            _wait(lambda version=version: version in _serving(settings).statuses, f"version {version}")
            say(f"released: version {version} is trained")
            if version != versions[-1]:
                _command(settings, "adapters", "promote", str(version), "--reason", "to train on from here")


def _return_to(settings: Settings, version: int) -> None:
    primary = _serving(settings).primary
    reason = "served only while the next were trained"
    _command(settings, "adapters", "rollback", str(version), "--expected", str(primary), "--reason", reason)


def _release(settings: Settings, version: int) -> None:
    """Serve tasks until the canary of `version` has ended."""
    spec = TaskSpec(family="sums", count=MOST, seed=version, purpose="serve", policy=settings.policy.name, group_size=4)
    tasks = generate(spec, now_ms=times.now_ms())
    with _processes(settings, "streams", "scoring", "policy"), Producer(settings) as producer:
        _wait(lambda: _serving(settings).candidate == version, f"a canary of version {version}")
        known = {group.task_id for _, group in read(settings, AdvantagedGroup)}
        while _serving(settings).candidate == version:
            sent = list(itertools.islice(tasks, AT_ONCE))
            if not sent:
                raise RuntimeError(f"the canary of version {version} has no verdict after {MOST} tasks")
            for task in sent:
                producer.send(task)
            producer.flush()
            known |= {task.task_id for task in sent}
            _wait(
                lambda expected=frozenset(known): (
                    _serving(settings).candidate != version
                    or expected <= {group.task_id for _, group in read(settings, AdvantagedGroup)}
                ),
                f"groups of {AT_ONCE} tasks",
            )
            say(f"released: {AT_ONCE} more tasks have their groups")


def _serving(settings: Settings) -> Serving:
    return read_state(settings, settings.policy.name).serving


def _decisions(settings: Settings) -> Iterator[list[str]]:
    """Yield a row for each event about a version that is released, and for each rollback."""
    for _, event in read(settings, AdapterEvent):
        if event.version in (BETTER, WORSE) or event.kind == "rolled_back":
            rights = [with_interval(event.metrics, f"{arm}_success") for arm in ARMS]
            yield [str(event.version), event.kind, event.actor, event.reason, *rights]


@contextmanager
def _processes(settings: Settings, *names: str) -> Iterator[None]:
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(process("streams.cli", name, settings=settings))
        yield


def _command(settings: Settings, *words: str) -> None:
    """Type a command of `streamward`. Raises CalledProcessError, its words on stderr, if it fails."""
    subprocess.run([sys.executable, "-m", "streams.cli", *words], env=environment(settings), check=True)


def _wait(met: Callable[[], bool], expected: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {expected} within {LIMIT_S:g} s")
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
