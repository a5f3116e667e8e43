"""Where a suite of others runs, and what it has to be: those of a plugin are in tests/plugins/NAME/strangers/suite.py.

a Kafka node, a folder ──► Stage ──► Suite.run ──► findings by name ──► Suite.file
                             └──► recordings ──► their files
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from streams.settings.model import Settings
from tests.support.agent_server import serving, settings_of

FINDINGS = Path(__file__).parent / "findings.json"
Findings = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """Where a suite runs, and what it records."""

    bootstrap: str
    folder: Path
    recordings: dict[Path, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """Settings of a server of its own."""
        return settings_of(self.bootstrap, self.folder)

    @contextmanager
    def server(self) -> Iterator[str]:
        """Yield the address of a server without keys."""
        with serving(self.settings) as url:
            yield url


class Suite(NamedTuple):
    """A suite, where its findings are, and whether it needs the machine for itself."""

    run: Callable[[Stage], Findings]
    file: Path = FINDINGS
    alone: bool = False
