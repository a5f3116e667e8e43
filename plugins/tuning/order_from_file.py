"""An order of a tuning job from the command line: its examples are put into the adapter store.

FILE (JSON lines, a table, stdin) ──► checked ──► the store ──► TuningRequest ──► JobOrder
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api import tuning_request
from schemas.events import DatasetEvent
from schemas.json_text import one_line
from streams.adapters import training_files
from streams.adapters.training_files import TrainingFile
from streams.adapters.versions import read_state
from streams.arrow.file_rows import OF_EXAMPLES, TABLES, read_objects
from streams.errors import JobRequestError
from streams.kafka import times
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import known_agents
from streams.tools.dataset_reader import dataset_reader


def order(settings: Settings, body: dict[str, Any], file: Path | None) -> JobOrder:
    """Return a job that tunes, after putting its file into the adapter store. Raises JobRequestError, RefusedError."""
    agent_id, agents = body["policy"], known_agents(settings)
    policy = agents[agent_id].policy if agent_id in agents else agent_id
    request = tuning_request.read_request({**body, "policy": policy})
    now_ms = times.now_ms()
    stored: TrainingFile | DatasetEvent | None = None
    if request.config.dataset is not None and file is None:
        stored = dataset_reader().find(settings, request.config.dataset)
    if file is not None:
        raw, name = content_of(file)
        tuning_request.check_lines(settings, request.method, training_files.lines_of(raw))
        stored = training_files.put(
            settings.adapters.store, raw, filename=name, purpose=training_files.PURPOSE, now_ms=now_ms
        )
    tuning_order = tuning_request.order(request, settings, read_state(settings, policy), stored, now_ms)
    if agent_id in agents:
        return tuning_order.of_agent(agent_id)
    return tuning_order


def content_of(file: Path) -> tuple[bytes, str]:
    """Return the JSON lines of a file, of a table or of stdin, and its name. Raises JobRequestError."""
    if str(file) == "-":
        return sys.stdin.buffer.read(), "stdin.jsonl"
    if file.suffix.lower() in TABLES:
        examples = read_objects(file, "--examples", "file", OF_EXAMPLES)
        return "".join(f"{one_line(example)}\n" for example in examples).encode(), f"{file.name}.jsonl"
    try:
        return file.read_bytes(), file.name
    except OSError as exc:
        message = f"--examples {file}: {exc.strerror}; name a file of JSON lines, .csv or .parquet"
        raise JobRequestError(message, "file") from exc
