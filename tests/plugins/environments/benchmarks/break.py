"""What a run learns where nine of ten of its training sessions die, next to a run where none does.

    streamward demo --task calculator [--break environment=0.9] ──► its log ──► what died, and what learning saw of it

    python -m tests.benchmarks break [SEED ...]   two lines for each seed

Held-out episodes do not die. An answer whose session died has an error; it is counted wherever it is in a group, and
each group's mean is compared with that of its scored answers alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from streams.kafka.node import process as broker
from streams.settings.load import load
from tests.benchmarks.side_by_side import cpu_s
from tests.support.commands import invoke, rows_of
from tests.support.processes import command

STEPS, SHARE = int(os.environ.get("STEPS", "20")), 0.9
DEAD = """
WITH dead AS (SELECT DISTINCT response_id FROM responses SEMI JOIN (SELECT task_id FROM tasks WHERE purpose = 'train')
    USING (task_id) WHERE error IS NOT NULL),
learnt AS (SELECT reward_mean, unnest(members) AS m, group_id FROM groups WHERE purpose = 'train' AND len(members) > 0),
means AS (SELECT group_id, any_value(reward_mean) AS said, avg(m.reward) AS counted FROM learnt GROUP BY group_id)
SELECT (SELECT count(DISTINCT r.response_id) FROM responses AS r JOIN tasks AS t USING (task_id)
        WHERE t.purpose = 'train') AS sessions,
    (SELECT count(*) FROM dead) AS dead,
    (SELECT count(*) FROM learnt WHERE m.response_id IN (FROM dead)) AS dead_in_groups,
    (SELECT count(*) FROM means WHERE abs(said - counted) > 1e-9) AS means_that_differ
"""


def run(seeds: Sequence[int] = (0,)) -> Iterator[dict[str, Any]]:
    """Yield the line of an undisturbed run, and that of one whose sessions die, for each seed."""
    for seed in seeds:
        for share in (0.0, SHARE):
            with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
                yield {"bench": "break", "seed": seed, "share": share} | _result(Path(folder), seed, share)


def _result(folder: Path, seed: int, share: float) -> dict[str, Any]:
    words = ["demo", "--task", "calculator", "--seed", str(seed), "--steps", str(STEPS), "--minutes", "60"]
    words = ["--set", "learning.stop_after=0", *words]  # it also ends where every answer is right
    words += ["--output", "json", *(["--break", f"environment={share}"] if share else [])]
    began, before = time.monotonic(), cpu_s()
    done = subprocess.run(command(*words), cwd=folder, check=True, stdout=subprocess.PIPE)
    took, report = time.monotonic() - began, json.loads(done.stdout)
    settings = load(file=folder / ".streamward" / "demo" / "streamward.toml")
    with broker.embedded(folder / ".streamward" / "demo" / "kafka") as node:
        kafka = settings.kafka.model_copy(update={"bootstrap": node.bootstrap})
        log = settings.model_copy(update={"kafka": kafka})
        (counts,) = rows_of(invoke(log, "query", DEAD, "--output", "jsonl"))
        audit = invoke(log, "audit").exit_code
    scores = {look["version"]: look["exact"] for look in report["held_out"]}
    return counts | {"held_out": scores, "audit": audit, "wall_s": round(took), "cpu_s": round(cpu_s() - before)}
