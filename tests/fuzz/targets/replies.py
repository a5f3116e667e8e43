"""What servers and child processes answer: the judge, a Schema Registry and its clients."""

from __future__ import annotations

from pathlib import Path

from streams.settings.model import Settings
from tests.fuzz.target import Check, target


@target("judge", "json", light=300)
def judge(folder: Path) -> Check:
    """A chat completion is a score on the scale, or a ScoreError."""
    from streams.scorers.judge import JudgeOptions, parse
    from streams.scorers.verdict import Verdict, checked

    options = JudgeOptions()

    def check(data: bytes) -> str | None:
        said, reason = parse(data, options, "http://judge", "the answer is 5")
        assert options.low <= said <= options.high
        verdict = checked(Verdict(said, {"score": said}, reason, "judge/2"), "judge")
        str(verdict).encode()
        return None

    return check


@target("registry", "json", light=200)
def registry(folder: Path) -> Check:
    """What a Schema Registry holds is a schema of ours or none, and what its clients post gets an answer."""
    from schemas import ids
    from schemas.ids import RegistryIds, RegistryVersion
    from streams.kafka.registry.server import _subjects, answer, look_up

    subjects = _subjects(Settings())

    def check(data: bytes) -> str | None:
        text = data.decode(errors="replace")
        schema = ids.ours(text)
        held = RegistryIds([RegistryVersion("Task", 1, 7, text)], lambda _: text, where="http://registry")
        list(held.clashes())
        held.schema_of("Task", 99)
        status, _ = look_up("/subjects/tasks-value", data, subjects)
        answer(f"/subjects/{text[:200]}", subjects)
        return None if schema is not None else f"{status}"

    return check
