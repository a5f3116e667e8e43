"""Score with reasoning-gym's own verifiers.

    verifier {"dataset": NAME, "config": {…}, "entry": {…}}, text ──► the dataset's score_answer ──► 0 to 1

The generator stores the dataset's entry in the task, so scoring needs no random numbers. Some verifiers run a computer
algebra system on the model's text, hence the worker process. The generator refuses datasets whose entries cannot be
stored as JSON (arc_agi, rearc).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from schemas.events import Response, Task
from schemas.faults import nearest
from streams.scorers.verdict import ScoreError, ScorerOptions, Verdict, json_object


class Gym(ScorerOptions):
    """`reasoning-gym` has no settings; all it needs is in the task's verifier."""


def package() -> Any:
    """Return the reasoning_gym module. Raises ScoreError(missing_package) with the way to get it."""
    try:
        import reasoning_gym
    except ImportError as exc:
        raise ScoreError(
            f"reasoning-gym is not usable here ({exc}); install it with `make setup-gym` (needs a C compiler)",
            reason="missing_package",
        ) from exc
    return reasoning_gym


@cache
def families() -> dict[str, dict[str, Any]]:
    """Return every data set with its options and their defaults; null for an option without one. Raises as
    `package`."""
    chosen = ("seed", "size")  # of any data set, and chosen by the generator
    return {
        name: {option.name: _default(option) for option in fields(config) if option.name not in chosen}
        for name, (_, config) in sorted(package().factory.DATASETS.items())
    }


def _default(option: Any) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return None if option.default is MISSING else option.default


def dataset(name: str, config: dict[str, Any], *, seed: int = 0, size: int = 1) -> Any:
    """Return a dataset by name. Raises ScoreError(bad_verifier) for an unknown name or config."""
    module = package()
    datasets = module.factory.DATASETS
    if name not in datasets:
        close = nearest(name, datasets).partition("known:")[0]
        raise ScoreError(
            f"reasoning-gym {module.__version__} has no dataset {name!r}; {close}it has {len(datasets)}",
            reason="bad_verifier",
        )
    unknown = [option for option in config if option not in families()[name]]
    if unknown:
        raise ScoreError(
            f"reasoning-gym's {name} has no option {unknown[0]!r}; {nearest(unknown[0], families()[name])}",
            reason="bad_verifier",
        )
    try:
        return module.create_dataset(name, seed=seed, size=size, **config)
    except Exception as exc:  # each dataset checks its config with asserts and errors of its own
        raise ScoreError(
            f"reasoning-gym refuses dataset {name} with config {config}: {exc}", reason="bad_verifier"
        ) from exc


def gym(task: Task, response: Response, settings: Gym) -> Verdict:
    """Return the dataset's score of the stripped text, 0 to 1.

    Raises ScoreError: bad_verifier, missing_package.
    """
    verifier = json_object(task.verifier, f"task {task.task_id}: verifier", reason="bad_verifier")
    name, config, entry = verifier.get("dataset"), verifier.get("config", {}), verifier.get("entry")
    if not isinstance(name, str) or not isinstance(config, dict) or not isinstance(entry, dict):
        raise ScoreError(
            f"task {task.task_id}: reasoning-gym wants dataset, config and entry in the verifier, as "
            f"`tasks generate reasoning-gym:NAME` writes them; got {', '.join(sorted(verifier)) or 'nothing'}",
            reason="bad_verifier",
        )
    return Verdict(_verifier(name, json.dumps(config)).score_answer(response.text.strip(), entry))


@cache
def _verifier(name: str, config: str) -> Any:
    return dataset(name, json.loads(config))
