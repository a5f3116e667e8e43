"""The scorers by name, with the place where each may run.

    name ──► Scorer(version, settings, function, home)        inline | sandbox | judge

`inline` scorers are built in and quick. `sandbox` scorers can hang, crash or exhaust memory (a pattern, a computer
algebra system, a user's function) and run in a worker process. `judge` waits for another server. A version string
identifies the code of a score: when the code changes, increment the version.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import Field

from schemas.events import MAX_REWARD, Response, RewardSource, Task
from schemas.faults import nearest
from streams.errors import SettingsError
from streams.references import describe_module
from streams.scorers import episode, gym, judge, mathematics, ranking_judge, text
from streams.scorers.term_swaps import SWAPPED, SwappedScorer
from streams.scorers.verdict import (
    ScoreError,
    ScorerOptions,
    Verdict,
    answers,
    check_verdict,
    json_object,
    options,
)

Home = Literal["inline", "sandbox", "judge"]
CACHED_CHARACTERS = 10_000
"""Longest checked settings that are cached: a record may hold 4 MiB of them, and memory is bounded."""
_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class ScorerTask:
    """Every field of a `Task`; `verifier` is a dict, and `verifier_text` the JSON text in the log.

    >>> task = ScorerTask(Task(task_id="t", created_at=0, policy="p", verifier='{"answer": "11"}'))
    >>> task.verifier["answer"], task.verifier_text, task.policy
    ('11', '{"answer": "11"}', 'p')
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def verifier(self) -> dict[str, Any]:
        """The right answer and its settings. Raises ScoreError(bad_verifier) if it is not a JSON object."""
        return json_object(self._task.verifier, f"task {self._task.task_id}: verifier", reason="bad_verifier")

    @property
    def verifier_text(self) -> str:
        """The verifier's text in the log."""
        return self._task.verifier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


@dataclass(frozen=True, slots=True)
class Scorer:
    """One scorer."""

    name: str
    version: str
    home: Home
    options: type[ScorerOptions] | None = None
    """None: the function checks its settings."""
    function: Callable[..., Any] | None = None
    """None: runs elsewhere (the judge), or is imported in a worker (entry points)."""
    of_group: bool = False
    """Whether it compares all responses to a task, so that it cannot score one."""

    def __call__(self, task: Task, response: Response, settings: dict[str, Any]) -> Verdict:
        """Return the verdict, a finite number, in this process. Raises ScoreError, or the function's errors."""
        if self.function is None:
            raise ScoreError(f"{self.name} cannot be called here; use streams.scorers.Scorers", reason="exception")
        checked_settings = settings if self.options is None else options(self.options, settings, self.name)
        verdict = check_verdict(self.function(task, response, checked_settings), self.name)
        return replace(verdict, version=self.version)


class MixPart(ScorerOptions):
    """One scorer in a mix."""

    name: str
    weight: float = Field(1.0, ge=-MAX_REWARD, le=MAX_REWARD)
    label: str | None = Field(None, alias="as")
    """Name of the component; default: the scorer's name."""
    settings: dict[str, Any] = Field(default_factory=dict)


class Mix(ScorerOptions):
    """Settings of `mix`: the weighted sum of its parts, each part a component under its own name."""

    of: tuple[MixPart, ...] = Field(min_length=1)


SCORERS: dict[str, Scorer] = {
    scorer.name: scorer
    for scorer in (
        Scorer("exact", "exact/2", "inline", text.Exact, text.exact),
        Scorer("numeric", "numeric/2", "inline", text.Numeric, text.numeric),
        Scorer("math", "math/1", "sandbox", mathematics.Mathematics, mathematics.mathematics),
        Scorer("regex", "regex/2", "sandbox", text.Regex, text.regex),
        Scorer("format", "format/2", "inline", text.Format, text.format_),
        Scorer("environment", "environment/1", "inline", episode.EnvironmentOptions, episode.environment),
        Scorer("tools", "tools/1", "inline", ScorerOptions, episode.tools),
        Scorer("verified", "verified/1", "inline", ScorerOptions, episode.verified),
        Scorer("length", "length/1", "inline", text.Length, text.length),
        Scorer("mix", "mix/1", "inline", Mix),
        Scorer(SWAPPED, "swapped/1", "inline", SwappedScorer),
        Scorer("reasoning-gym", "reasoning-gym/1", "sandbox", gym.Gym, gym.gym),
        Scorer("judge", "judge/3", "judge", judge.JudgeOptions),
        Scorer(ranking_judge.NAME, "ranking_judge/1", "judge", ranking_judge.RankingOptions, of_group=True),
    )
}


def find(name: str) -> Scorer:
    """Return a scorer by name, or by `module:function`, which is not imported here.

    Raises ScoreError(unknown_scorer), naming the nearest and all known ones.
    """
    if name in SCORERS:
        return SCORERS[name]
    if _ENTRY_POINT.fullmatch(name):
        return Scorer(name, f"{name}/unknown", "sandbox")
    if ":" in name:
        raise ScoreError(
            f"{name!r} names no function of a Python module, whose names have letters, digits and _ alone; rename the "
            "file or the function, e.g. my_scorers:short",
            reason="unknown_scorer",
        )
    own = ":".join(name.rsplit(".", 1))
    meant = f"did you mean {own}? " if _ENTRY_POINT.fullmatch(own) else ""
    raise ScoreError(
        f"no scorer is called {name!r}; {meant}{nearest(name, SCORERS)}, or module:function", reason="unknown_scorer"
    )


def load(name: str) -> Scorer:
    """Return a scorer ready to be called; an entry point is imported, so call this in a worker process only.

    Raises ScoreError(unknown_scorer) if the module or function does not exist, or is not marked as a scorer.
    """
    scorer = find(name)
    if name in SCORERS:
        return scorer
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as exc:
        raise ScoreError(
            f"scorer {name} cannot be loaded: {exc}; install it with Streamward, put it on PYTHONPATH, or add "
            "`.` to scoring.modules if it is in the working folder",
            reason="unknown_scorer",
        ) from exc
    origin = describe_module(module)
    function = getattr(module, function_name, None)
    if function is None:
        marked = (attribute for attribute, value in vars(module).items() if hasattr(value, "scorer_version"))
        raise ScoreError(
            f"{origin} has no function {function_name!r}; {nearest(function_name, marked)}",
            reason="unknown_scorer",
        )
    version = getattr(function, "scorer_version", None)
    if not callable(function) or not isinstance(version, str):
        raise ScoreError(
            f"{origin} has {function_name!r}, which is not marked as a scorer; write "
            f"@streamward.entry_point('{function_name}/1') above it",
            reason="unknown_scorer",
        )
    return Scorer(name, version, "sandbox", None, lambda task, *arguments: function(ScorerTask(task), *arguments))


def parts(source: RewardSource) -> tuple[MixPart, ...]:
    """Return the scorers of a reward source, settings checked: the parts of a mix, that of `swapped`, or only itself.

    Raises ScoreError: unknown_scorer, bad_settings.
    """
    return _parts(source) if len(source.settings) <= CACHED_CHARACTERS else _parts.__wrapped__(source)


@lru_cache(maxsize=1024)
def _parts(source: RewardSource) -> tuple[MixPart, ...]:
    settings = json_object(source.settings, f"reward source {source.name}: settings", reason="bad_settings")
    if source.name == SWAPPED:
        averaged = options(SwappedScorer, settings, SWAPPED)
        if averaged.scorer in ("mix", SWAPPED) or find(averaged.scorer).of_group:
            raise ScoreError(f"{SWAPPED}: it averages one scorer, and not {averaged.scorer}", reason="bad_settings")
        _check(averaged.scorer, averaged.settings)
        return (MixPart(name=averaged.scorer, settings=averaged.settings),)
    if find(source.name) is not SCORERS["mix"]:
        _check(source.name, settings)
        return (MixPart(name=source.name, settings=settings),)
    mixed = options(Mix, settings, "mix").of
    labels = [part.label or part.name for part in mixed]
    for part in mixed:
        if part.name == "mix":
            raise ScoreError("mix: a mix inside a mix; list its parts in the outer one", reason="bad_settings")
        if part.name == SWAPPED:
            raise ScoreError(f"mix: {SWAPPED} is a reward source of its own, with a weight", reason="bad_settings")
        if find(part.name).of_group:
            raise ScoreError(
                f"mix: {part.name} compares the responses of a group, and a mix scores one; name it as a reward source "
                "of its own, with a weight",
                reason="bad_settings",
            )
        if labels.count(part.label or part.name) > 1:
            raise ScoreError(
                f'mix: two parts are called {part.label or part.name}; tell them apart with "as": "another name"',
                reason="bad_settings",
            )
        _check(part.name, part.settings)
    return mixed


def is_of_group(source: RewardSource) -> bool:
    """Return whether a reward source compares all responses to a task, so that they are scored together."""
    return compares_group(source.name)


def compares_group(name: str) -> bool:
    """Return whether the scorer of this name compares all responses to a task."""
    return name in SCORERS and SCORERS[name].of_group


def named_sources(options: Iterable[str]) -> tuple[RewardSource, ...]:
    """Return the reward sources in `--scorer NAME` or `--scorer NAME=JSON`. Raises SettingsError.

    >>> named_sources(['length={"limit": 6}'])[0].settings
    '{"limit": 6}'
    """
    sources = []
    for option in options:
        name, equals, settings = option.partition("=")
        source = RewardSource(name=name, settings=settings if equals else "{}")
        try:
            parts(source)
        except ScoreError as exc:
            raise SettingsError(f"--scorer {option}: {exc}") from exc
        sources.append(source)
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingsError(f"--scorer {twice[0]} is given twice; combine them in one `mix`")
    return tuple(sources)


def blend(mixed: Sequence[MixPart], verdicts: list[Verdict]) -> Verdict:
    """Return the weighted sum of the parts, rounded once.

    Components: each part's value under its label, and the part's own components as label.name. Steps: their weighted
    sum, too; a part without steps scores the whole, and adds nothing to them. A part that abstains adds nothing; if all
    do, so does the mix.
    """
    values = [
        part.weight * verdict.value for part, verdict in zip(mixed, verdicts, strict=True) if verdict.value is not None
    ]
    components: dict[str, float] = {}
    for part, verdict in zip(mixed, verdicts, strict=True):
        label = part.label or part.name
        if verdict.value is None:
            continue
        components[label] = verdict.value
        components.update({f"{label}.{name}": number for name, number in verdict.components.items()})
    words = [verdict.rationale for verdict in verdicts if verdict.rationale]
    versions = ",".join(dict.fromkeys(verdict.version for verdict in verdicts))
    weighted = [
        [part.weight * step for step in verdict.steps]
        for part, verdict in zip(mixed, verdicts, strict=True)
        if verdict.steps
    ]
    steps = tuple(math.fsum(of_turn) for of_turn in zip(*weighted, strict=True))
    value = math.fsum(values) if values else None
    return check_verdict(Verdict(value, components, "\n".join(words) or None, f"mix/1[{versions}]", steps), "mix")


def source_problems(task: Task) -> Iterator[str]:
    """Yield each problem of a task's reward sources, before it is answered.

    Entry points are not imported, so a missing function is only noticed when it is called.
    """
    for source in task.reward_sources:
        try:
            for part in parts(source):
                if is_of_group(source) and task.group_size < 2:
                    yield f"{source.name} compares responses, and group_size is {task.group_size}; use 2 or more"
                if part.name == "numeric":
                    _ = text.numeric_answers(task)
                elif part.name == "math":
                    _ = mathematics.formula_answers(task)
                elif part.name == "exact" or part.settings.get("shape") == "prefix":
                    _ = answers(task, part.name)
        except ScoreError as exc:
            yield str(exc)


def _check(name: str, settings: dict[str, Any]) -> None:
    scorer = find(name)
    if scorer.options is not None:
        options(scorer.options, settings, name)
