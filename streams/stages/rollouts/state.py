"""The rollouts stage's state of one policy, and the rule by which it decides.

    settings, guard.suite ──► RolloutRule          adapters ──► RolloutState ──► table row, one per policy

The row is written at every event, so it is small: version numbers and short ids. Results of suites, which are larger,
have rows of their own. `rollout_stage.py` makes the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from schemas.events import OutsideModel, Verdict
from streams.adapters.serving import Serving
from streams.errors import SettingsError
from streams.evaluation.version_gates import VersionGate, build_gates
from streams.settings.model import Canary, Guard, Settings
from streams.stages.rollouts.canary import CanaryTrial
from streams.stages.rollouts.guard import TokenPrices, version_prices
from streams.worker.table_rows import pack, unpack

if TYPE_CHECKING:
    from streams.evaluation.suite import Suite


@dataclass(frozen=True, slots=True)
class RolloutRule:
    """The settings of decisions, with the guard's suite loaded."""

    mode: Literal["direct", "guarded", "canary", "manual"] = "direct"
    guard: Guard = field(default_factory=Guard)
    suite: Suite | None = None
    canary: Canary = field(default_factory=Canary)
    prices: TokenPrices | None = None
    """The prices of tokens, if known."""
    gates: tuple[VersionGate, ...] = ()
    """Those of plugins."""

    @property
    def waits_for_guard(self) -> bool:
        """Whether a version must be judged before any decision about it."""
        return self.mode == "guarded" or (self.suite is not None and self.guard.decide != "never")


DIRECT = RolloutRule()


def rule_of(settings: Settings, suite: Suite | None) -> RolloutRule:
    """Return the rule in force, with the guard's suite.

    Raises SettingsError for mode `guarded` without one, a limit of the cost without prices, or limits that nothing
    judges.
    """
    mode = settings.rollouts.mode
    if mode == "guarded" and suite is None:
        raise SettingsError(
            "rollouts.mode is guarded, but guard.suite names no file, so nothing would ever be promoted; set it to a "
            "suite, e.g. docs/examples/suite.yaml, or take another mode"
        )
    for name in ("max_cost_ratio", "max_recovery_loss") if mode == "canary" and suite is None else ():
        if getattr(settings.guard, name) is not None:
            raise SettingsError(
                f"guard.{name} has no effect on a canary alone: it is judged on the tasks of guard.suite, which is not "
                "set. Name a file, or leave the limit out: the canary's decisions show cost and recovery of both arms"
            )
    prices = TokenPrices.of(settings.prices)
    if settings.guard.max_cost_ratio is not None and prices is None:
        raise SettingsError(
            f"guard.max_cost_ratio is {settings.guard.max_cost_ratio:g}, and nothing says what tokens cost; set "
            "prices.prompt_usd and prices.completion_usd, or leave it out"
        )
    return RolloutRule(mode, settings.guard, suite, settings.canary, prices, build_gates(settings))


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The state of one policy's adapters that the next decision needs."""

    serving: Serving = field(default_factory=Serving)
    newest_at: int = 0
    """When the newest version was trained, ms."""
    pending: str | None = None
    """Id of the event that was written but not yet read back."""
    decided: frozenset[str] = frozenset()
    """Short ids of the decisions read so far (serving.DECISIONS): a second copy must have no effect."""
    swaps: int = 0
    """How often the primary was replaced: part of the ids, as a decision after a swap is another fact."""
    canary: CanaryTrial | None = None
    """The canary under way."""
    suite: str = ""
    """The guard's suite to which the next two fields refer; another suite resets them."""
    evaluating: frozenset[int] = frozenset()
    """Versions that are, or were, evaluated on it."""
    outside: Mapping[int, OutsideModel] = field(default_factory=dict)
    """The versions that are outside models."""
    judged: Mapping[tuple[int, int], Verdict] = field(default_factory=dict)
    """The guard's verdict by version and the primary it was compared with, for versions that wait."""


def prices_of(state: RolloutState, rule: RolloutRule, version: int) -> TokenPrices | None:
    """Return the prices of a version's tokens; None if unknown."""
    return version_prices(state.outside.get(version), rule.prices)


def waiting(state: RolloutState) -> list[int]:
    """Return the candidates for the next decision, newest first: versions newer than every decided one."""
    statuses = state.serving.statuses
    last = max(version for version, status in statuses.items() if status != "trained")
    return sorted((version for version in statuses if last < version), reverse=True)


# --- the table rows ---------------------------------------------------------------------------------------------------

ROW_VERSION = 5


def dump(state: RolloutState) -> bytes:
    """Return the table row of a state."""
    sets = {name: sorted(getattr(state, name)) for name in ("decided", "evaluating")}
    judged = [[*key, verdict] for key, verdict in state.judged.items()]
    return pack(ROW_VERSION, asdict(replace(state, judged={})) | sets | {"judged": judged})


def load(row: bytes | None) -> RolloutState:
    """Return the state in a table row; a new one for no row. Raises ValueError for a row of another version."""
    if row is None:
        return RolloutState()
    data = unpack(row, ROW_VERSION)
    serving, trial = data["serving"], data["canary"]
    statuses = {int(version): status for version, status in serving["statuses"].items()}
    return RolloutState(
        serving=Serving(**{**serving, "statuses": statuses}),
        newest_at=data["newest_at"],
        pending=data["pending"],
        decided=frozenset(data["decided"]),
        swaps=data["swaps"],
        canary=None if trial is None else _trial(*trial),
        suite=data["suite"],
        evaluating=frozenset(data["evaluating"]),
        outside={int(version): OutsideModel(**model) for version, model in data["outside"].items()},
        judged={(version, against): verdict for version, against, verdict in data["judged"]},
    )


def _trial(event_id: str, version: int, primary: int, steps: list[tuple[float, int]]) -> CanaryTrial:
    return CanaryTrial(event_id, version, primary, tuple((share, since) for share, since in steps))
