"""Steps of a trainer in one of several processes, as trainer/ranks/launcher.py starts it.

`python -m tests.support.models.rank_program FOLDER [SETTING=VALUE …]`; `seed=5,6` gives each rank its own value.

FOLDER/model ──► rank 0: three steps, on the groups of tiny_log ──► FOLDER/adapter, FOLDER/metrics.json
                 the others: their share of each
                 each: FOLDER/rank-N.log
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from streams.cli.runtime import importing
from streams.errors import StreamwardError
from streams.settings.model import Model, Settings, Trainer
from trainer.ranks import launcher

STEPS = 3


def settings_of(folder: Path, **changes: Any) -> Settings:
    trainer = Trainer.model_validate({"processes": 2, "micro_groups": 2, "checkpoints": folder, **changes})
    return Settings(model=Model(base=str(folder / "model")), trainer=trainer)


def steps(settings: Settings, others: Any = None) -> list[dict[str, float]]:
    """Take the steps, write the adapter, and return what was measured, times left out."""
    from streams.engines.base_model import load_base
    from tests.support.models.tiny_log import groups_of
    from trainer.step.model import pin, save_adapter
    from trainer.versions.learner import Learner

    pin(settings)
    base = load_base(settings.model)
    learner = Learner(settings, base, others)
    measured = []
    for number in range(STEPS):
        groups = [*groups_of(base, number), *groups_of(base, number + 7), *groups_of(base, number + 9)][:5]
        measured.append(learner._trainer.train_batch(groups))
    folder = settings.trainer.checkpoints / "adapter"
    folder.mkdir()
    save_adapter(learner._trainer.model, folder, "tiny")
    return [{name: value for name, value in one.items() if not name.endswith("_s")} for one in measured]


def main(folder: Path, *changes: str) -> None:
    settings = settings_of(folder, **dict(_of_rank(change) for change in changes))
    place = launcher.place_from_env(settings)
    assert place is not None
    logging.basicConfig(filename=folder / f"rank-{place.rank}.log", level=logging.INFO)
    with importing():
        from trainer.ranks import exchange
        from trainer.versions import learner

    if place.rank:
        learner.help_out(settings, place)
        return
    with exchange.other_ranks(place, stuck_s=60) as others:
        (folder / "metrics.json").write_text(json.dumps(steps(settings, others)))


def _of_rank(change: str) -> tuple[str, str]:
    name, _, values = change.partition("=")
    each = values.split(",")
    return name, each[int(os.environ["RANK"]) % len(each)]


if __name__ == "__main__":
    atexit.register(gc.freeze)  # as streams/cli/__init__.py
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except StreamwardError as exc:  # as the command line: whichever rank ends first, the launcher reads the same codes
        print(exc, file=sys.stderr)
        sys.exit(exc.exit_code)
