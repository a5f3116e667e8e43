"""Turn served runs into better versions: one process for each step, until interrupted.

    retrain.toml ──► curate · datasets · retrain · jobs · tune · streams, and self-play if there is a catalogue
    each ──► its output in FOLDER/logs; one that ends is started again

They meet only at topics, so they may also run elsewhere: members of a consumer group share the work. The processes that
answer the tasks have to run, too: `serve`, `policy`, `scoring`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from plugins.improve.triggers.rule import RetrainRule
from schemas.events import Purpose
from streams.demo.players import child_env, command
from streams.demo.restarts import RestartedProcesses
from streams.settings.load import save
from streams.settings.model import Settings

FOLDER = Path(".streamward/improve")
"""Where settings and the output of the processes are written."""
ENOUGH = 50
"""Newly promoted runs that make a data set, for a rule that does not count them."""
CHECK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ImproveOrder:
    """What to run."""

    rule: Path
    """When to retrain, and how."""
    dataset: str
    """The name of the data sets."""
    policy: str
    tenant: str | None
    """The tenant of the runs in data sets; None: runs without a tenant."""
    purpose: Purpose
    least: int
    """Newly promoted runs that make a data set."""
    catalogue: Path | None = None
    """Scenarios that the policy is asked on a schedule; None: no self-play."""
    every: str = "1h"
    """How often."""
    folder: Path = FOLDER
    datasets: Path | None = None
    """Where data sets are written; None: where `improve datasets follow` writes them."""

    @classmethod
    def of(cls, file: Path, rule: RetrainRule, *, catalogue: Path | None = None, every: str = "1h") -> ImproveOrder:
        """Return what a rule needs: data sets of the name that it tunes on, each time it has enough promoted runs."""
        dataset = None if rule.tune is None else rule.tune.dataset
        return cls(
            rule=file,
            dataset=dataset or rule.policy,
            policy=rule.policy,
            tenant=rule.tenant,
            purpose=rule.purpose,
            least=rule.when.promotable or ENOUGH,
            catalogue=catalogue,
            every=every,
        )


def commands(order: ImproveOrder) -> dict[str, tuple[str, ...]]:
    """Return the arguments of `streamward` by process."""
    policy = ("--policy", order.policy)
    tenant = () if order.tenant is None else ("--tenant", order.tenant)
    root = () if order.datasets is None else ("--to", str(order.datasets))
    steps: dict[str, tuple[str, ...]] = {
        "streams": ("streams",),
        "curate": ("improve", "curate", "follow", *policy, "--purpose", order.purpose),
        "datasets": (
            "improve",
            "datasets",
            "follow",
            order.dataset,
            *policy,
            *tenant,
            *root,
            "--new",
            str(order.least),
        ),
        "retrain": ("improve", "retrain", "follow", "--rule", str(order.rule.resolve())),
        "jobs": ("jobs", "run"),
        "tune": ("tune", "--jobs"),
    }
    if order.catalogue is not None:
        steps["selfplay"] = ("improve", "selfplay", "run", str(order.catalogue.resolve()), "--every", order.every)
    return steps


def run(settings: Settings, order: ImproveOrder, *, stop: Event, say: Callable[[str], None]) -> None:
    """Run all steps until `stop` is set; `say` is called when a process ends. Raises StreamwardError with the last
    output of a process that does not stay up.
    """
    order.folder.mkdir(parents=True, exist_ok=True)
    config = save(settings, order.folder, by="streamward improve run")
    with RestartedProcesses(order.folder / "logs", child_env()) as processes:
        for name, words in commands(order).items():
            processes.start(name, command(config, words))
        while not stop.wait(CHECK_S):
            for line in processes.check():
                say(line)
