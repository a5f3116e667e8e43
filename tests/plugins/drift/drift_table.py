"""The table of docs/drift.md: the chat templates of TRL's wheel, over the tokenizer of SmolLM2.

    python -m tests.plugins.drift.drift_table

Marks: `=` no drift; `≠` the usual loop drifts, the recorder does not; `Y` the recorder's next call begins a chain of
its own; `×` the recorder refuses the conversation; nothing: the template takes no such conversation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from plugins.drift.commands import use_template
from plugins.drift.ways import EXACT, OWN_CHAIN, WAYS, DriftModel, WayReport, reports
from streams.engines.base_model import load_tokenizer
from streams.errors import StreamwardError

MODEL = "smollm2-135m-instruct"


def templates() -> list[Path]:
    """Return the chat templates that TRL's wheel has, but for those that it changed for training."""
    folder = Path(str(files("trl") / "chat_templates"))
    return sorted(path for path in folder.glob("*.jinja") if "_training" not in path.name)


@cache
def _tokenizer() -> Any:
    return load_tokenizer(MODEL)


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| template | {' | '.join(way.name for way in WAYS)} |"
    yield f"|---|{'---|' * len(WAYS)}"
    yield f"| its own | {' | '.join(map(mark, reports(DriftModel(_tokenizer()))))} |"
    for path in templates():
        tokenizer = copy.deepcopy(_tokenizer())
        use_template(tokenizer, path)
        try:
            marks = [*map(mark, reports(DriftModel(tokenizer)))]
        except StreamwardError:
            continue
        yield f"| {path.stem} | {' | '.join(marks)} |"


def mark(report: WayReport) -> str:
    """Return the mark of a report."""
    if not report.here:
        return ""
    if not report.here.startswith(EXACT):
        return "Y" if report.here.startswith(OWN_CHAIN) else "×"
    return "=" if report.drift is None else "≠"


if __name__ == "__main__":
    print("\n".join(lines()))
