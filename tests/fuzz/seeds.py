"""Write what each reader's corpus begins with: small inputs that it accepts.

    python -m tests.fuzz.seeds

Files called broke-… are inputs that once broke a reader; they stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import serde
from schemas.events import Coordinates, Reward
from streams.arrow.decode import side_by_side
from streams.kafka.record import Record, dead_letter
from streams.settings.model import Settings
from streams.tools.archive.columns import table_schema
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.store import Store
from streams.tools.archive.tables import ArchiveTable, Change
from streams.tools.dead_letters.letters import Letter, RedriveTarget, decision
from streams.worker.changelogs import Changelogs, Extent
from tests.fuzz import targets
from tests.fuzz.target import TARGETS
from tests.support import factories

ROOT = Path(__file__).parents[2]
AT = Coordinates("streamward.rewards", 0, 0)
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def _uploads() -> Iterator[tuple[str, str, bytes]]:
    yield (
        "forms",
        "file",
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a%22"\r\nContent-Type: x/y\r\n\r\n{}\n\r\n'
        b"--b--\r\n",
    )


def _plain(event: Any) -> bytes:
    return json.dumps(dataclasses.asdict(event)).encode()


def _letters() -> Iterator[tuple[str, bytes]]:
    record = Record(AT, 7, b"k", b"no event", (("traceparent", TRACE),))
    letter = dead_letter(record, stage="policy", reason="undecodable", error="odd")
    yield "letter", _plain(letter)
    target = RedriveTarget(0, 5)
    found = Letter(AT, 7, letter, 8)
    yield "decision", _plain(decision(found, "retried", 1, "again", now_ms=8, target=target))


def _archive() -> tuple[bytes, bytes, bytes]:
    """Return a segment, the log of a table that has it, and that of one without records."""
    rewards = [factories.reward() for _ in range(3)]
    payloads = [*(serde.encode(reward) for reward in rewards), b"no event", None]
    records = [
        Record(AT._replace(offset=at), 7 + at, b"k", payload, (("h", b"v"),)) for at, payload in enumerate(payloads)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        table = ArchiveTable(store, "streamward.rewards", "rewards", table_schema(Reward))
        table.create({0: 0})
        log = Path(folder) / "streamward.rewards" / "_delta_log"
        empty = b"".join(path.read_bytes() for path in sorted(log.iterdir()))
        writer = RangeWriter(Settings(), store, "rewards", 0)
        writer.add(side_by_side("streamward.rewards", records))
        (file,) = writer.write_files(0, 5)
        state = table.load()
        assert state is not None and table.commit(state, Change(added=(file,), nexts={0: 5}))
        begun, _, added = (path.read_bytes() for path in sorted(log.iterdir()))
        return Path(file[0].path).read_bytes(), begun + added, empty


def _parquet() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.parquet"
        pq.write_table(pa.Table.from_pylist([{"prompt": "1 + 1?", "answer": 2, "metadata": {"a": "b"}}]), path)
        return path.read_bytes()


def weights() -> bytes:
    """Return an adapter's weights, as safetensors."""
    import torch
    from safetensors.torch import save

    factors = {"lora_A": torch.ones(2, 4), "lora_B": torch.ones(4, 2)}
    return save({f"base_model.model.a.{name}.weight": tensor for name, tensor in factors.items()})


def _files() -> list[dict[str, Any]]:
    contents = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    return [
        {"path": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in contents.items()
    ]


def _answer() -> bytes:
    """Return what the real vLLM said (tests/contracts) as one answer to all that is asked of it."""
    from tests.support.vllm.contract import FILE

    recorded = json.loads(FILE.read_text())["modes"]["processed_logprobs"]
    wanted = ('"max_tokens": 6,', '"model": "base"', '"n": 4', '"prompt": [9, 10, 11]', '"temperature": 1.0')
    body = next(one["body"] for key, one in recorded.items() if all(part in key for part in wanted))
    first = body["choices"][0]
    first["prompt_logprobs"] = [None, {"10": {"logprob": -1.5}}, {"11": {"logprob": -2.5}}]
    first["logprobs"]["top_logprobs"] = [{"5": -1.5}]
    card = {"id": "base", "object": "model", "parent": None, "max_model_len": 256}
    return json.dumps({**body, "data": [card]}).encode()


def _tuning() -> Iterator[tuple[str, str, bytes]]:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    asked, answered = {"role": "user", "content": "4 7"}, {"role": "assistant", "content": "11"}
    called = {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0}
    messages = [asked, called, {"role": "tool", "content": "11", "tool_call_id": "c"}, answered]
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
    good, bad = [answered], [answered | {"content": "12 13"}]
    yield "tuning-sft", "one", json.dumps({"messages": messages, "tools": [tool], "reward": 1.0}).encode()
    yield "tuning-sft", "without calls", json.dumps({"messages": [asked, answered], "reward": 1.0}).encode()
    yield "tuning-dpo", "trl", json.dumps({"prompt": [asked], "chosen": good, "rejected": bad}).encode()
    openai = {"input": {"messages": [asked]}, "preferred_output": good, "non_preferred_output": bad}
    yield "tuning-dpo", "openai", json.dumps(openai).encode()


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield (reader, file name, content) of the readers of the core."""
    for event in factories.one_of_each():
        name, payload = type(event).__name__, serde.encode(event)
        yield "events", name, payload
        yield "columns", name, payload
    yield "headers", "traced", b"key\npayload\ntraceparent=" + TRACE + b"\nother=\xff\n=\n"
    for name, data in _letters():
        yield "dead-letters", name, data
    notes = Changelogs()
    notes.accept({("app-open-groups-changelog", 0): Extent(0, 5), ("c", 0): Extent(1, 7)})
    yield "commit-notes", "note", notes.note(0).rstrip("\0").encode()
    data, one, empty = _archive()
    yield "segments", "rewards", data
    yield "table-logs", "one", one
    yield "table-logs", "empty", empty
    task = {"prompt": "What is 2 + 3?", "answer": 5, "group_size": 4, "metadata": {"topic": "sums"}}
    call = {"id": "c", "name": "add", "arguments": {"a": 1}}
    full = {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "2 + 3?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
            {"role": "user", "content": "So?"},
        ],
        "task_id": "t",
        "purpose": "eval",
        "sampling": {"temperature": 0, "max_tokens": 8, "stop": ["."]},
        "verifier": {"answer": ["5", 5.0]},
        "reward_sources": [
            "exact",
            {
                "name": "mix",
                "weight": 2,
                "settings": {"of": [{"name": "exact"}, {"name": "length", "settings": {"limit": 5}}]},
            },
            {"name": "regex", "settings": {"pattern": "(a+)+$"}},
            {"name": "length", "settings": {"limit": 5}},
        ],
    }
    yield from _tuning()
    yield "task-lines", "two", b"\n".join(json.dumps(one).encode() for one in (task, full))
    yield from _uploads()
    yield "task-csv", "two", b'prompt,answer,metadata\n"2 + 3?",5,"{""a"": ""b""}"\n"1, 2?",x,\n'
    yield (
        "task-csv",
        "semicolons",
        "prompt;answer;reward_sources\nWieviel ist 2 + 3?;5;exact, numeric\n".encode("utf-8-sig"),
    )
    yield "task-parquet", "one", _parquet()
    yield "suites", "example", (ROOT / "docs" / "examples" / "suite.yaml").read_bytes()
    yield "suites", "file", b"name: s\nscenarios:\n  a: {file: tasks.jsonl, count: 2, success: reward >= 0.8}\n"
    given = (
        b'[kafka]\nbootstrap = "127.0.0.1:9092"\nclient = {debug = "broker"}\n[policy]\nengine = "scripted"\n'
        b'[batches]\ngroups = 8\n[trainer]\nlearning_rate = 1e-5\nlora_targets = "q_proj"\n[scoring]\ntimeout_s = 2.5\n'
        b'[adapters]\nstore = "s3://bucket/adapters"\n'
    )
    yield "settings", "some", given
    yield "recipes", "some", b"[trainer]\nlearning_rate = 1e-5\nbeta = 0.1\n"
    content = {"pid": 1, "port": 9092, "controller_port": 9093, "cluster_id": "c", "client": {}}
    yield "node", "node", json.dumps(content).encode()
    said = '{"score": 7, "reason": "short and right"}'
    yield "judge", "reply", json.dumps({"choices": [{"message": {"content": said}}]}).encode()
    yield "judge", "wordy", json.dumps({"choices": [{"message": {"content": f"Well, {{x}} then: {said}."}}]}).encode()
    schema = (ROOT / "schemas" / "avro" / "Task" / "1.avsc").read_text()
    yield "registry", "schema", schema.encode()
    yield "registry", "look-up", json.dumps({"schema": schema}).encode()
    state = {
        "policy": "p",
        "version": 3,
        "next_sequence": 3,
        "next_offset": 9,
        "base_digest": "d",
        "batch_id": "b",
        "recipe": {"seed": "1"},
        "metrics": {"loss": 0.5},
    }
    yield "checkpoints", "state", json.dumps(state).encode()
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "bias": "none",
        "use_rslora": False,
        "target_modules": ["a"],
    }
    yield "adapters", "config", json.dumps(config).encode()
    yield "weights", "lora", weights()
    said = {"id": "r", "version": "exact/1", "value": 1.0, "components": {"a": 0.5}, "rationale": "right", "steps": []}
    failed = {"id": "r", "version": "exact/1", "reason": "exception", "error": "it raised", "again": True}
    for name, last in (("verdict", said), ("failed", failed)):
        lines = [{"id": "r", "prepared": "exact/1"}, last]
        yield "sandbox", name, b"\n".join(json.dumps(line).encode() for line in lines)
    yield "fetches", "adapter", json.dumps({"uri": "file://STORE/p/1", "files": _files()}).encode()
    yield "vllm", "answer", _answer()


def main() -> None:
    """Write them all, those of plugins next to them."""
    of_plugins = (module.seeds() for module in targets.MODULES if hasattr(module, "seeds"))
    for reader, name, content in chain(seeds(), *of_plugins):
        path = TARGETS[reader].folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
