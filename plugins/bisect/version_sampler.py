"""Ask versions recorded questions again, in this process, within a budget of tokens.

    questions in a fixed order ──► engine, one version after another ──► responses that no log has ──► Shares

Every version gets the same questions in the same order. The engine is the one in the settings, with the adapters of the
store; nothing is written, and no running agent takes part.

Not covered: tasks of agents, with tools or in an environment, which are more than one answer of a model.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from plugins.bisect.version_search import Mark, VersionSearch
from schemas.events import Response, Task, derive_id
from streams.adapters.local import fetch_version
from streams.adapters.versions import Version
from streams.engines.build import build
from streams.engines.protocol import Engine, SamplingRequest
from streams.files import Scratch
from streams.kafka import times
from streams.settings.model import Settings
from streams.stages.policy.response_writer import ServedVersion, response
from streams.tools.replay.replay_context import Report, Stopped

ANSWERS = 4
"""Answers to one question at a time: their prompt is run once."""
ROUNDS = 8
"""How often a version is asked all questions at most, each time with other draws."""
CHUNK = 32
"""Questions between two looks at the result."""
COUNTERFACTUAL = 1_000_000
"""Added to the number of a version that was trained again without some groups."""


def questions_of(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks that a model answers by itself, in an order that is always the same and means nothing."""
    plain = (task for task in tasks if task.agent is None and task.environment is None and not task.tools)
    return sorted(plain, key=lambda task: hashlib.sha256(task.task_id.encode()).digest())


class VersionSampler:
    """Asks versions until the budget or the questions are used up."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        folder_of: Callable[[int], Path | None],
        questions: Sequence[Task],
        max_tokens: int,
    ) -> None:
        """`folder_of` returns the adapter of a version; None: the base model."""
        self._settings, self._engine, self._folder_of = settings, engine, folder_of
        self._questions, self.left = questions, max_tokens
        self.questions_asked: Counter[int] = Counter()
        """Questions by version."""

    @property
    def has_more(self) -> bool:
        """Whether a version without answers could be asked."""
        return self.left > 0 and bool(self._questions)

    def extend(
        self, search: VersionSearch, versions: Sequence[int], mark: Callable[[list[Response]], list[Mark]]
    ) -> bool:
        """Ask the first version more questions, and the others until they have as many; return whether it could."""
        target = min(self.questions_asked[versions[0]] + CHUNK, ROUNDS * len(self._questions))
        if target == self.questions_asked[versions[0]]:
            return False
        for version in versions:
            if self.left <= 0:
                return False
            if (first := self.questions_asked[version]) < target:
                responses = self._ask(version, range(first, target))
                search.shares.add("sampled", mark(responses))
                self.questions_asked[version] = target
        return True

    def _ask(self, version: int, numbers: range) -> list[Response]:
        self._engine.serve(version, self._folder_of(version))
        served = ServedVersion(
            adapter_version=version,
            engine=self._engine.name,
            base_digest=self._engine.base_digest,
            tokenizer_digest=self._engine.tokenizer_digest,
            created_at=times.now_ms(),
            latency_ms=0.0,
        )
        requests = [
            SamplingRequest(
                sampling_id=derive_id("bisect", task.task_id, version, number),
                task=replace(task, group_size=min(ANSWERS, task.group_size)),
            )
            for number in numbers
            for task in [self._questions[number % len(self._questions)]]
        ]
        responses = [
            response(request, completion, served)
            for request, completions in zip(requests, self._engine.sample(requests), strict=True)
            for completion in completions
        ]
        self.left -= sum(answer.prompt_tokens + answer.completion_tokens for answer in responses)
        return [answer for answer in responses if answer.error is None]


@contextmanager
def sampler(
    settings: Settings,
    versions: Mapping[int, Version],
    retrained: Mapping[int, Path],
    tasks: Iterable[Task],
    tokens: int,
) -> Iterator[VersionSampler]:
    """Yield a sampler of the versions of the log, and of those that were `retrained` here, by number.

    Raises SettingsError if the engine cannot start; asking raises EventError for a version that cannot be loaded.
    """
    engine = build(settings)
    try:
        with Scratch("bisect") as scratch:
            base_digest = None if engine.name == "scripted" else engine.base_digest

            folders: dict[int, Path] = dict(retrained)

            def folder_of(version: int) -> Path | None:
                if version and version not in folders:
                    target = scratch / str(version)
                    folders[version] = fetch_version(settings, versions[version], base_digest, target)
                return folders.get(version)

            yield VersionSampler(settings, engine, folder_of, questions_of(tasks), tokens)
    finally:
        engine.close()


def search_on(
    search: VersionSearch,
    sampled: VersionSampler | None,
    mark: Callable[[list[Response]], list[Mark]],
    *,
    stop: threading.Event,
    report: Report = lambda step, done, total: None,
) -> None:
    """Look at versions until the search ends; without a sampler only at what was recorded.

    Raises Stopped once `stop` is set, StreamwardError if a version cannot be asked.
    """
    if sampled is not None:
        search.findings = {version: finding for version, finding in search.findings.items() if finding != "open"}
    while (version := search.next()) is not None:
        while search.look(version) == "open" and sampled is not None:
            if stop.is_set():
                raise Stopped
            if not sampled.extend(search, (version, search.good), mark):
                break
            report(f"asking version {version}", sampled.questions_asked[version], None)


def too_few(search: VersionSearch) -> list[int]:
    """Return the versions whose answers do not suffice to tell where the behaviour began."""
    turning = search.turning
    if turning is None:
        return [search.bad] if search.findings.get(search.bad) == "open" else []
    return [version for version in range(turning.first, turning.last) if search.findings.get(version) == "open"]
