"""The public names of Streamward; other packages are internal.

    connect              SQL over topics and archive, for a notebook        streams.tools.query.session
    entry_point          marks your function as a scorer                    streams.scorers
    loss                 marks your function as a trainer's loss             trainer.step.loss
    main                 the command line                                   streams.cli
    RunArchiveService    rows of runs into JSON lines or SQLite             streams.tools.runs.run_archive
    RunTracker           the figures of runs                                streams.tools.runs.run_tracker

Each is loaded at its first use, so `import streamward` is cheap. Plugins add theirs (docs/plugins.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.cli import main
    from streams.scorers import entry_point
    from streams.tools.query.session import connect
    from streams.tools.runs.run_archive import RunArchiveService
    from streams.tools.runs.run_tracker import RunTracker
    from trainer.step.loss import loss

__all__ = [
    "RunArchiveService",
    "RunTracker",
    "connect",
    "entry_point",
    "loss",
    "main",
]

HOMES = {
    "RunArchiveService": "streams.tools.runs.run_archive",
    "RunTracker": "streams.tools.runs.run_tracker",
    "connect": "streams.tools.query.session",
    "entry_point": "streams.scorers",
    "loss": "trainer.step.loss",
    "main": "streams.cli",
}


def __getattr__(name: str) -> Any:
    """Load a public name; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("streams.files").program_version()
    if name in HOMES:
        value = getattr(import_module(HOMES[name]), name)
    else:
        value = import_module("streams.plugins.public").load_public(name, __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *import_module("streams.plugins.public").public_names(), "__version__"])
