"""A World whose server records runs: a fault has healed once they have ended, too."""

from __future__ import annotations

from contextlib import suppress

from streams.errors import LogError
from tests.chaos.agent_recount import log_of, open_runs
from tests.chaos.world import World


class RecordedWorld(World):
    """The World."""

    def lag(self) -> int | None:
        """Return what waits: records, and once those are read, runs that have not ended."""
        waiting = super().lag()
        with suppress(LogError):
            return waiting or (waiting if waiting is None else open_runs(log_of(self.direct)))
        return None
