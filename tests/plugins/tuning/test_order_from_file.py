"""The examples of a tuning job that is ordered on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from plugins.tuning.order_from_file import content_of


def test_examples_of_a_job_are_read_from_a_table(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a\u2028b"}, {"role": "assistant", "content": "c"}]
    (tmp_path / "e.csv").write_text('messages\n"' + json.dumps(messages).replace('"', '""') + '"\n')
    raw, name = content_of(tmp_path / "e.csv")
    assert (json.loads(raw), name, raw.count(b"\n")) == ({"messages": messages}, "e.csv.jsonl", 1)
