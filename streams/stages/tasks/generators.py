"""Generate tasks from a seed.

    TaskSpec ──► TaskFamily: questions ──► Task, Task, Task, …        sums | reasoning-gym:NAME | families of plugins

`sums` asks what reasoning-gym's chain_sum asks ("State the final answer to the following arithmetic problem: 4 + 7 ="),
without needing reasoning-gym. The split depends only on a hash of the question's text, so no seed, count or option
turns a held-out question into a train question. Similar questions are split like any others: 4 + 7 may be held out
while 7 + 4 is trained on.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from schemas.events import Message, Purpose, RewardSource, Sampling, Task, derive_id
from streams.errors import EventError, NotFoundError, SettingsError
from streams.plugins.installed import plugin_entries
from streams.scorers import ScoreError, gym
from streams.scorers.verdict import ScorerOptions, options
from streams.settings.model import Settings
from streams.stages.tasks.task_problems import group_problem

HELD_OUT_PERCENT = 40
"""Share of the questions kept for `eval`; of the 100 sums of two one-digit terms it holds out 35."""
SYSTEM_PROMPT = "Reply with only the final answer."
GYM = "reasoning-gym:"
_ENUMERABLE = 10_000
_CHUNK = 500
"""Entries of a reasoning-gym dataset made at a time. Changing it changes which tasks a seed gives."""
DRAWS_PER_TASK = 200
"""Questions drawn in search of one on the right side of the split before a family counts as empty."""

SHAPED = {
    "of": [
        {"name": "exact", "weight": 0.7},
        {"name": "format", "weight": 0.2, "as": "bare_number", "settings": {"shape": "bare_number"}},
        {"name": "format", "weight": 0.1, "as": "leading_digit", "settings": {"shape": "leading_digit"}},
    ]
}
"""Reward of `sums`: 1 if exact, else 0.2 for a bare number and 0.1 for beginning with a digit."""


class Question(NamedTuple):
    """A question of a family: text, verifier, reward sources, and the longest answer."""

    text: str
    verifier: dict[str, Any]
    train_source: RewardSource
    eval_source: RewardSource
    max_tokens: int
    train_temperature: float = 1.0
    eval_temperature: float = 0.0
    fields: Mapping[str, Any] = MappingProxyType({})
    """Other fields of its task, or other values, such as an agent."""


class SumsConfig(ScorerOptions):
    """Options of `sums`."""

    terms: int = Field(2, ge=2, le=10)
    digits: int = Field(1, ge=1, le=9, description="of each term; one digit includes 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Describes the tasks that a generator makes. Equal specs give equal tasks with equal ids."""

    family: str
    """`sums`, `reasoning-gym:NAME`, or a family of a plugin."""
    count: int
    seed: int = 0
    purpose: Purpose
    policy: str
    group_size: int = 8
    """Responses per task; `eval` tasks have 1."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the family."""
    max_tokens: int | None = None
    """Maximum tokens of an answer; None: as many as the family's longest answer needs."""

    @property
    def held_out(self) -> bool:
        """Whether the tasks ask held-out questions, once each."""
        return self.purpose == "eval"


LookBack = Callable[[Settings, Path, Callable[[str], None]], None]
"""Called with the settings of a log, the folder of its run, and a function that prints a line."""


class TaskFamily(NamedTuple):
    """A family of tasks. A plugin names its own as `generators`, a mapping by name."""

    options: type[BaseModel]
    questions: Callable[[TaskSpec], Iterator[Question]]
    """Yields questions on the side of the split that a spec asks for, for ever. Raises as `generate`."""
    demo_steps: int = 20
    """Versions of a demo on this family."""
    look_back: LookBack | None = None
    """Shows more at the end of a demo on this family."""


def generate(spec: TaskSpec, *, now_ms: int) -> Iterator[Task]:
    """Yield the tasks of `spec`, created at `now_ms`.

    `eval` tasks ask held-out questions once each (group size 1), greedily, except of families that are better judged at
    temperature 1. `train` and `serve` tasks ask the others, at temperature 1. A family with fewer questions than
    `count` starts over in another order.

    Raises NotFoundError for an unknown family, SettingsError for bad options, a missing package or an unknown dataset,
    EventError for a dataset whose entries cannot be stored in a log.
    """
    if spec.purpose == "train" and (problem := group_problem(spec.group_size)):
        raise SettingsError(f"generator {spec.family}: {problem}")
    try:
        for index, question in enumerate(itertools.islice(_questions(spec), spec.count)):
            yield _task(spec, question, index, now_ms)
    except ScoreError as exc:
        raise SettingsError(f"generator {spec.family}: {exc}") from exc


def is_held_out(question: str) -> bool:
    """Return whether this question is kept for `eval`."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8]) % 100 < HELD_OUT_PERCENT


def _questions(spec: TaskSpec) -> Iterator[Question]:
    if spec.family.startswith(GYM):
        return _gym(spec)
    family = OWN.get(spec.family) or families_of_plugins().get(spec.family)
    if family is not None:
        return family.questions(spec)
    known = {name.removeprefix(GYM): name for name in families()}
    close = difflib.get_close_matches(spec.family, known, n=1, cutoff=0.5)
    hint = f"did you mean {known[close[0]]}? " if close else ""
    raise NotFoundError(f"no generator is called {spec.family!r}; {hint}`tasks generate --list` shows all there are")


@cache
def families_of_plugins() -> dict[str, TaskFamily]:
    """Return the families that loaded plugins declare, by name. Raises SettingsError if a name is taken."""
    entries = plugin_entries(
        lambda plugin: {} if plugin.generators is None else plugin.load(plugin.generators), "generator", OWN
    )
    return {name: family for name, (_, family) in entries.items()}


def families() -> dict[str, dict[str, Any]]:
    """Return every generator with its options and their defaults; without reasoning-gym only the others."""
    ours = {
        name: {option: field.default for option, field in family.options.model_fields.items()}
        for name, family in (OWN | families_of_plugins()).items()
    }
    try:
        return ours | {f"{GYM}{name}": found for name, found in gym.families().items()}
    except ScoreError:
        return ours


def _task(spec: TaskSpec, question: Question, index: int, now_ms: int) -> Task:
    options_id = [json.dumps(dict(spec.options), sort_keys=True)] if spec.options else []
    options_id += [f"max_tokens={spec.max_tokens}"] if spec.max_tokens is not None else []
    task = Task(
        task_id=derive_id("generator", spec.family, spec.purpose, spec.policy, spec.seed, index, *options_id),
        created_at=now_ms,
        metadata={"generator": spec.family, "seed": str(spec.seed), "index": str(index)},
        policy=spec.policy,
        purpose=spec.purpose,
        scenario=spec.family,
        group_size=1 if spec.held_out else spec.group_size,
        sampling=Sampling(temperature=_temperature(spec, question), max_tokens=spec.max_tokens or question.max_tokens),
        verifier=json.dumps(question.verifier),
        reward_sources=(question.eval_source if spec.held_out else question.train_source,),
        messages=(Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=question.text)),
    )
    return replace(task, **question.fields)


def _temperature(spec: TaskSpec, question: Question) -> float:
    if spec.held_out:
        return question.eval_temperature
    return question.train_temperature if spec.purpose == "train" else 1.0


# --- sums -------------------------------------------------------------------------------------------------------------


def _sums(spec: TaskSpec) -> Iterator[Question]:
    config = options(SumsConfig, dict(spec.options), "sums")
    exact, shaped = RewardSource(name="exact"), RewardSource(name="mix", settings=json.dumps(SHAPED))
    for terms in _terms(config, spec):
        answer = str(sum(terms))
        yield Question(_sum_text(terms), {"answer": answer}, shaped, exact, max_tokens=12)


def _sum_text(terms: tuple[int, ...]) -> str:
    return f"State the final answer to the following arithmetic problem: {' + '.join(map(str, terms))} ="


def _terms(config: SumsConfig, spec: TaskSpec) -> Iterator[tuple[int, ...]]:
    """Yield terms on the right side of the split, for ever: all of them shuffled if they are few, else random draws."""
    low, high = (0 if config.digits == 1 else 10 ** (config.digits - 1)), 10**config.digits
    if (high - low) ** config.terms <= _ENUMERABLE:
        every = [
            terms
            for terms in itertools.product(range(low, high), repeat=config.terms)
            if is_held_out(_sum_text(terms)) == spec.held_out
        ]
        for turn in itertools.count():
            order = every.copy()
            rng_of(spec, turn).shuffle(order)
            yield from order
    for index in itertools.count():
        rng = rng_of(spec, index)
        while True:
            terms = tuple(rng.randrange(low, high) for _ in range(config.terms))
            if is_held_out(_sum_text(terms)) == spec.held_out:
                yield terms
                break


def rng_of(spec: TaskSpec, index: int) -> random.Random:
    """Return the random numbers from which the question of this index is drawn."""
    return random.Random(f"{spec.seed}/{spec.purpose}/{index}")  # noqa: S311 - for variety, not for secrets


OWN = {"sums": TaskFamily(SumsConfig, _sums)}
"""The families of this module, by name; those of reasoning-gym are its own."""


# --- reasoning-gym ----------------------------------------------------------------------------------------------------


def _gym(spec: TaskSpec) -> Iterator[Question]:
    name, config = spec.family.removeprefix(GYM), dict(spec.options)
    source = RewardSource(name="reasoning-gym")
    without = 0
    for index, (data, entry) in enumerate(_entries(name, config, spec.seed * 1_000_003 % 2**31)):
        if is_held_out(entry["question"]) != spec.held_out:
            without += 1
            if without == DRAWS_PER_TASK:
                side = "held-out" if spec.held_out else "train"
                raise EventError(
                    f"generator {GYM}{name}: {without} questions in a row and none on the {side} side; the dataset has "
                    "too few different questions to split; widen its options"
                )
            continue
        without = 0
        kept = _kept(name, data, entry, check=index < 100)
        yield Question(
            entry["question"], {"dataset": name, "config": config, "entry": kept}, source, source, max_tokens=256
        )


def _entries(name: str, config: dict[str, Any], first: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield (dataset, entry) for ever, seeds counting up from `first`; some datasets prepare all entries at once."""
    for start in itertools.count(first, _CHUNK):
        data = gym.dataset(name, config, seed=start, size=_CHUNK)
        for index in range(_CHUNK):
            yield data, data[index]


def _kept(name: str, data: Any, entry: dict[str, Any], *, check: bool) -> dict[str, Any]:
    """Return the entry as it comes back from the log. Raises EventError if it then differs for the verifier."""
    try:
        kept: dict[str, Any] = json.loads(json.dumps(entry, allow_nan=False))
        answer = entry["answer"]
        same = not check or answer is None or data.score_answer(answer, kept) == data.score_answer(answer, entry)
    except (TypeError, ValueError) as exc:
        raise _lossy(name, str(exc)) from exc
    if not same:
        raise _lossy(name, "its verifier scores the stored entry differently")
    return kept


def _lossy(name: str, why: str) -> EventError:
    return EventError(
        f"generator {GYM}{name}: an entry of this dataset cannot be stored as JSON ({why}); use another dataset, or "
        "submit tasks with a scorer of your own"
    )
