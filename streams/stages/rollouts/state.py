"""What the rollouts stage knows of one policy, and under which rule it decides.

    settings, guard.suite ──► Rule          adapters ──► Line ──► table row, one per policy

The row is written anew at every event, so it is small: numbers of versions, and short ids. Results of suites, which are
larger, have rows of their own.

Not covered: what follows from a line. That is streams/stages/rollouts/stage.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from schemas.events import Verdict
from streams.adapters.serving import Serving, Status
from streams.errors import SettingsError
from streams.settings.model import Canary, Guard, Settings
from streams.stages.rollouts.canary import CanaryTrial
from streams.table_rows import pack, unpack

if TYPE_CHECKING:
    from streams.evaluation.suites import Suite


@dataclass(frozen=True, slots=True)
class RolloutRule:
    """The settings that decide, with the guard's suite read."""

    mode: Literal["direct", "guarded", "canary", "manual"] = "direct"
    guard: Guard = field(default_factory=Guard)
    suite: Suite | None = None
    canary: Canary = field(default_factory=Canary)

    @property
    def waits_for_guard(self) -> bool:
        """Whether a version takes its turn only once it was judged."""
        return self.mode == "guarded" or (self.suite is not None and self.guard.decide != "never")


DIRECT = RolloutRule()


def rule_of(settings: Settings, suite: Suite | None) -> RolloutRule:
    """Return the rule in force, with the guard's suite. Raises SettingsError for mode `guarded` without one."""
    mode = settings.rollouts.mode
    if mode == "guarded" and suite is None:
        raise SettingsError(
            "rollouts.mode is guarded, but guard.suite names no file, so nothing would ever be promoted; set it to a "
            "suite, e.g. docs/examples/suite.yaml, or take another mode"
        )
    return RolloutRule(mode, settings.guard, suite, settings.canary)


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The adapters of one policy, as far as the next decision needs them."""

    serving: Serving = field(default_factory=Serving)
    newest: int = 0
    newest_at: int = 0
    """When the newest version was trained, ms."""
    asked: str | None = None
    """The event that was written and not read back yet."""
    decided: frozenset[str] = frozenset()
    """Short ids of the decisions read so far (serving.DECISIONS): a second copy of one must not act."""
    swaps: int = 0
    """How often the primary was replaced: part of the ids, since what was decided before a swap is another fact."""
    canary: CanaryTrial | None = None
    """The canary under way."""
    suite: str = ""
    """The guard's suite that the next two are about; with another one they begin anew."""
    evaluating: frozenset[int] = frozenset()
    """Versions that were asked it."""
    judged: Mapping[tuple[int, int], Verdict] = field(default_factory=dict)
    """The guard's verdict by version and the primary it was compared with, for versions that wait."""


def waiting(line: RolloutState) -> list[int]:
    """Return the versions that may take their turn, newest first: newer than every one that had it."""
    statuses = line.serving.statuses
    last = max(version for version, status in statuses.items() if status != "trained")
    return sorted((version for version in statuses if version > last), reverse=True)


# --- the table rows ---------------------------------------------------------------------------------------------------

ROW_VERSION = 2


def dump(line: RolloutState) -> bytes:
    """Return the table row of a line."""
    sets = {name: sorted(getattr(line, name)) for name in ("decided", "evaluating")}
    judged = [[*key, verdict] for key, verdict in line.judged.items()]
    return pack(ROW_VERSION, asdict(replace(line, judged={})) | sets | {"judged": judged})


def load_line(row: bytes | None) -> RolloutState:
    """Return the line in a table row; a new one for no row. A row of version 1, which knew no canary, is taken over.

    Raises ValueError for a row of another version.
    """
    if row is None:
        return RolloutState()
    if row.startswith(b'{"v":1,'):
        return _from_version_1(unpack(row, 1))
    data = unpack(row, ROW_VERSION)
    serving, trial = data["serving"], data.get("canary")
    serving["statuses"] = {int(version): status for version, status in serving["statuses"].items()}
    return RolloutState(
        serving=Serving(**serving),
        newest=data["newest"],
        newest_at=data["newest_at"],
        asked=data["asked"],
        decided=frozenset(data["decided"]),
        swaps=data.get("swaps", 0),
        canary=None
        if trial is None
        else CanaryTrial(trial[0], trial[1], trial[2], tuple((share, since) for share, since in trial[3])),
        suite=data.get("suite", ""),
        evaluating=frozenset(data.get("evaluating", ())),
        judged={(version, against): verdict for version, against, verdict in data.get("judged", ())},
    )


def _from_version_1(data: Mapping[str, Any]) -> RolloutState:
    statuses: dict[int, Status] = {
        int(version): "trained" if status == "canary" else status for version, status in data["statuses"].items()
    }
    return RolloutState(
        serving=Serving(statuses=statuses, primary=data["primary"]),
        newest=data["newest"],
        newest_at=data["newest_at"],
        asked=data["asked"],
        decided=frozenset(data["decided"]),
    )
