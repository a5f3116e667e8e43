"""What is read of a judge: its verdict on a transcript."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.target import Check, target


@target("verdict", "json", light=300)
def verdict(folder: Path) -> Check:
    """A chat completion about a transcript is a verdict, or a ScoreError."""
    from plugins.improve.curation.transcript import Transcript
    from plugins.improve.curation.verifier import VERDICTS, parse_verdict
    from streams.scorers.judge_client import JudgeQuestion, model_of, text_of

    question = JudgeQuestion(text="", max_tokens=9, limit="improve.max_tokens")
    transcript = Transcript(text='{"end":"completed"}\n', digest="d", quotable='{"end":"completed"}')

    def check(data: bytes) -> str | None:
        str(model_of(data)).encode(errors="replace")
        given, rationale = parse_verdict(text_of(data, question, "http://judge"), transcript, "http://judge")
        assert given in VERDICTS
        rationale.encode()
        return None

    return check


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content)."""
    opinion = json.dumps({"verdict": "reject", "rationale": "It is wrong."})
    yield "verdict", "reply", json.dumps({"model": "m", "choices": [{"message": {"content": opinion}}]}).encode()
