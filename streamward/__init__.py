"""The public names of Streamward; other packages are internal.

    AgentManager         agents in place of a trainer's generate            streams.tools.agent_manager
    connect              SQL over topics and archive, for a notebook        streams.tools.query.session
    ConversationTracker  the messages between an agent and the policy       streams.tools.agent_manager
    DatasetCurationHostedService
                         builds a data set when enough runs were promoted   streams.improve.datasets
    entry_point          marks your function as a scorer                    streams.scorers
    loss                 marks your function as a trainer's loss             trainer.step.loss
    main                 the command line                                   streams.cli
    PromotionGuardAgent  gates and judge over a run: is it good enough      streams.improve.curation
    RunArchiveService    rows of runs into JSON lines or SQLite             streams.tools.runs.run_archive
    RunTracker           the figures of runs                                streams.tools.runs.run_tracker
    SelfPlayRunner       asks a policy a catalogue of questions             streams.improve.selfplay.selfplay_runner
    VerifierAgent        the judge of a transcript alone                    streams.improve.curation

Each is loaded at its first use, so `import streamward` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.cli import main
    from streams.improve.curation.promotion_guard import PromotionGuardAgent
    from streams.improve.curation.verifier import VerifierAgent
    from streams.improve.datasets.curation_service import DatasetCurationHostedService
    from streams.improve.selfplay.selfplay_runner import SelfPlayRunner
    from streams.scorers import entry_point
    from streams.tools.agent_manager import AgentManager, ConversationTracker
    from streams.tools.query.session import connect
    from streams.tools.runs.run_archive import RunArchiveService
    from streams.tools.runs.run_tracker import RunTracker
    from trainer.step.loss import loss

__all__ = [
    "AgentManager",
    "ConversationTracker",
    "DatasetCurationHostedService",
    "PromotionGuardAgent",
    "RunArchiveService",
    "RunTracker",
    "SelfPlayRunner",
    "VerifierAgent",
    "connect",
    "entry_point",
    "loss",
    "main",
]

HOMES = {
    "AgentManager": "streams.tools.agent_manager",
    "ConversationTracker": "streams.tools.agent_manager",
    "DatasetCurationHostedService": "streams.improve.datasets.curation_service",
    "PromotionGuardAgent": "streams.improve.curation.promotion_guard",
    "RunArchiveService": "streams.tools.runs.run_archive",
    "RunTracker": "streams.tools.runs.run_tracker",
    "SelfPlayRunner": "streams.improve.selfplay.selfplay_runner",
    "VerifierAgent": "streams.improve.curation.verifier",
    "connect": "streams.tools.query.session",
    "entry_point": "streams.scorers",
    "loss": "trainer.step.loss",
    "main": "streams.cli",
}


def __getattr__(name: str) -> object:
    """Load a public name; `__version__` is that of the installed package."""
    if name == "__version__":
        return import_module("streams.files").program_version()
    if name not in HOMES:
        raise AttributeError(f"streamward has no {name!r}; it has {', '.join(__all__)} and __version__")
    globals()[name] = value = getattr(import_module(HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
