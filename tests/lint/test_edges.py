"""What comes from a record, a file, a socket or a child process can end nothing but itself: that rule, in the source.

    a call that decodes  ──► inside a try that catches what it raises, or listed with the reason why it is not
    except Exception     ──► raises again, or its line says what may raise anything

What readers do with odd values, not only with odd bytes, is for tests/fuzz.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.import_graph import ROOT, sources

VALUE, NESTED = {"ValueError"}, {"ValueError", "RecursionError"}
RAISES = {
    "json.load": NESTED,
    "json.loads": NESTED,
    "raw_decode": NESTED,
    "json_text.parse": VALUE,
    "json_text.parse_first": VALUE,
    "from_json": VALUE,
    "tomllib.load": NESTED,
    "tomllib.loads": NESTED,
    "yaml.compose": {"YAMLError", "RecursionError"},
    "yaml.safe_load": {"YAMLError", "RecursionError"},
    "yaml.scan": {"YAMLError", "RecursionError"},
    "b64decode": VALUE,
    "load_file": {"OSError", "SafetensorError"},
    "ParquetFile": {"ArrowException", "OSError", "ValueError"},
    "read_schema": {"ArrowException", "OSError", "ValueError"},
    "result": {"KafkaException"},
}
"""What decodes, by the end of its name, and what the try around it has to catch. `result` is that of a future."""
RUNS_CODE = {"pickle.load", "pickle.loads", "torch.load", "yaml.load", "marshal.loads", "eval", "exec"}
"""Readers that run what they read."""
LAST = {name.rpartition(".")[2] for name in (*RAISES, *RUNS_CODE)}
NAMED = re.compile(rf"\b(?:{'|'.join(LAST)})\(")
"""A call of one of them, in a file as it is written: only files with one are walked."""

OWN = "it reads what this process, or this package, has written itself"
CALLER = "whoever calls it catches what its docstring names"
TRANSLATED = "a context manager or the caller's try around it catches more than this raises"
IN_THREAD = "the job catches what it reads; what is left is a bug, and ends the process as any other"
WITHOUT_TRY = {
    "gateway/agents/anthropic.py::_blocks_of json_text.parse": "a call's arguments are JSON, or it is no call",
    "plugins/page/cookie.py::_explain json.loads": OWN,
    "schemas/prompt_events.py::render json_text.parse": CALLER,
    "schemas/generate.py::_schemas json.loads": OWN,
    "schemas/ids.py::__init__ json.loads": "its fingerprint was taken, which an odd text has none of",
    "schemas/versions.py::__init__ json.loads": OWN,
    "schemas/versions.py::_parse json.loads": "Avro has parsed the same text",
    "schemas/versions.py::definition json.loads": OWN,
    "schemas/json_text.py::parse_first raw_decode": CALLER,
    "streams/adapters/signing.py::verify json.loads": OWN,
    "streams/adapters/signing.py::verify json_text.parse": "its signature was verified: the publisher wrote it",
    "streams/cli/dlq.py::_show json.loads": OWN,
    "plugins/data/synthetic_rows.py::_verified_answer json_text.parse": OWN,
    "streams/engines/decoding_loop.py::call result": "the order's own result or error",
    "streams/engines/rendering/answer_form.py::__str__ json_text.parse": "the gateway read it and wrote it again",
    "plugins/environments/environment_worker.py::_answer json.loads": OWN,
    "plugins/knowledge/embedders/server_vectors.py::_vector b64decode": CALLER,
    "plugins/tools/registry/tool_caller.py::answer json_text.parse": "an earlier call that the environment took",
    "streams/engines/rendering/answer_form.py::of_schema json_text.parse": "the gateway read it and wrote it again",
    "streams/engines/rendering/chat_template.py::_as_function json_text.parse": CALLER,
    "streams/engines/rendering/chat_template.py::_as_dictionary json_text.parse": CALLER,
    "streams/engines/rendering/control_tokens.py::_text_tokenizer json.loads": "the tokenizer wrote it",
    "streams/engines/rendering/template_rendering.py::__init__ json.loads": "the tokenizer wrote it",
    "streams/engines/rendering/template_rendering.py::_writes json.loads": OWN,
    "streams/engines/rendering/tool_calls.py::_read json_text.parse_first": CALLER,
    "streams/engines/outside/outside_model.py::sample result": IN_THREAD,
    "streams/engines/vllm/vllm_engine.py::sample result": IN_THREAD,
    "streams/engines/vllm/vllm_engine.py::sample_mixed result": IN_THREAD,
    "plugins/improve/annotation/annotate.py::_judge_rows result": "the label, or the error that the docstring names",
    "plugins/improve/curation/curator.py::_judge result": "the opinion, or the error that the judge's docstring names",
    "plugins/threads/acp/run_actions.py::accept result": "the call around it ends as failed, whatever it raises",
    "plugins/improve/curation/transcript.py::lines json.loads": OWN,
    "streams/kafka/record.py::_without_original b64decode": OWN,
    "streams/kafka/record.py::key_of b64decode": OWN,
    "streams/kafka/topic_ids.py::_id_in result": CALLER,
    "streams/kafka/retry.py::_aside result": "it is the call's own result or error",
    "streams/kafka/retry.py::close result": "likewise",
    "streams/scorers/gym.py::_verifier json.loads": OWN,
    "streams/processes/entry_point.py::main json.loads": OWN,
    "streams/processes/supervisor.py::main json.loads": OWN,
    "plugins/agents/runs/agent_runner.py::_look result": IN_THREAD,
    "streams/stages/scoring/scoring_agent.py::_collect result": IN_THREAD,
    "streams/stages/tasks/generators.py::_kept json.loads": OWN,
    "streams/stages/tasks/suites.py::_lines yaml.scan": TRANSLATED,
    "streams/worker/table_rows.py::unpack json.loads": OWN,
    "streams/tools/archive/segments.py::open_segment ParquetFile": TRANSLATED,
    "streams/tools/archive/sync.py::_commit_waiting result": "a range's own result or LogError",
    "streams/tools/archive/sync.py::_note result": "likewise",
    "streams/tools/archive/sync.py::_start_writing result": "likewise",
    "plugins/data/contamination/contamination_recount.py::_read json_text.parse": CALLER,
    "streams/tools/dead_letters/originals.py::_bytes b64decode": TRANSLATED,
    "streams/tools/query/dataset_card.py::add json.loads": "a line that the export has just made",
    "streams/tools/query/archived.py::_has_columns read_schema": "of a segment, which is checked when it is read",
    "streams/tools/query/export.py::_as_parquet json.loads": OWN,
    "streams/tools/replay/regroup.py::_join_all result": IN_THREAD,
    "streams/tools/replay/rescore.py::rescore result": IN_THREAD,
    "streams/tools/replay/rescore.py::result result": IN_THREAD,
    "streams/settings/load.py::move_settings tomllib.loads": OWN,
    "streams/tools/query/splits.py::add json.loads": OWN,
    "streams/worker/faust/fixes.py::on_settled result": "asked for its exception first",
    "trainer/versions/checkpoint.py::_read json_text.parse": CALLER,
    "plugins/tinker/worker/called_model.py::_check_shape json.loads": "its sha256 is the manifest's",
    "plugins/tinker/worker/called_model.py::load load_file": "its sha256 is the manifest's",
    "trainer/versions/checkpoint.py::restore load_file": "its sha256 is the manifest's",
    "trainer/versions/export_adapter.py::_with_tokenizer json.loads": OWN,
    "trainer/step/model.py::plain json.loads": OWN,
    "trainer/step/model.py::load_adapter json.loads": "its sha256 is the manifest's",
    "trainer/step/model.py::load_adapter load_file": "its sha256 is the manifest's",
    "trainer/ranks/exchange.py::_agree json.loads": OWN,
    "trainer/examples/from_file.py::_tools json_text.parse": CALLER,
}
"""Calls outside a try that catches what they raise, by file, function and name."""


class Call(NamedTuple):
    place: str
    name: str
    caught: frozenset[str]
    docstring: str


def types(handler: ast.ExceptHandler) -> set[str]:
    """The exceptions of a handler, without their modules."""
    if handler.type is None:
        return {"BaseException"}
    each = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(one).rpartition(".")[2] for one in each}


def calls(file: str, tree: ast.Module) -> list[Call]:
    """Every call in a file that may be one of these, with what the tries of its function around it catch."""
    found: list[Call] = []

    def walk(node: ast.AST, function: str, docstring: str, caught: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function, docstring, caught = node.name, ast.get_docstring(node) or "", frozenset()
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LAST:
            found.append(Call(f"{file}::{function}", ast.unparse(node.func), caught, docstring))
        elif isinstance(node, ast.Try):
            within = caught.union(*map(types, node.handlers))
            for child in ast.iter_child_nodes(node):
                walk(child, function, docstring, within if child in node.body else caught)
            return
        for child in ast.iter_child_nodes(node):
            walk(child, function, docstring, caught)

    walk(tree, "", "", frozenset())
    return found


@cache
def calls_of_program() -> list[Call]:
    """Every call of the program that may be one of these."""
    return [call for file in sources() if NAMED.search(file.text) for call in calls(file.path, file.tree)]


def is_called(call: Call, name: str) -> bool:
    return call.name == name or call.name.endswith(f".{name}")


def uncaught(call: Call) -> str | None:
    """The name of what decodes here without a try that catches what it raises."""
    for name, raised in RAISES.items():
        if is_called(call, name) and not (raised <= call.caught or call.caught & {"Exception", "BaseException"}):
            return f"{call.place} {name}"
    return None


def _is_of_this_checkout(place: str) -> bool:
    """Return whether a place is in no plugin that was left out (`python -m tests.house --without`)."""
    return not place.startswith("plugins/") or (ROOT / "plugins" / place.split("/")[1]).exists()


def test_what_decodes_is_inside_a_try_that_catches_what_it_raises() -> None:
    found = {place: call for call in calls_of_program() if (place := uncaught(call)) is not None}
    assert found.keys() - WITHOUT_TRY.keys() == set(), "catch what it raises, as an error of streams/errors.py"
    gone = [place for place in WITHOUT_TRY.keys() - found.keys() if _is_of_this_checkout(place)]
    assert gone == [], "these are not there any more; take them out of the list"
    silent = [place for place, call in found.items() if WITHOUT_TRY[place] == CALLER and "Raises" not in call.docstring]
    assert silent == [], "their docstring does not say what they raise"


def test_what_is_read_is_never_run() -> None:
    found = [call.place for call in calls_of_program() if call.name in RUNS_CODE]
    allowed = {
        "schemas/convert.py::function": "code made of the fields of our own dataclasses",
        "streams/scorers/scorer_worker.py::_answer": "the sandbox's worker unpickles, from its parent",
        "streams/tools/views/statement_worker.py::answer": "the process of a statement unpickles, from its parent",
    }
    assert found == list(allowed)


def test_a_handler_of_any_exception_raises_again_or_says_what_may_raise_anything() -> None:
    silent = [
        f"{file.path}:{node.lineno}"
        for file in sources()
        for node in file.nodes
        if isinstance(node, ast.ExceptHandler) and types(node) & {"Exception", "BaseException"}
        if "#" not in "".join(file.lines[node.lineno - 1 : node.lineno + 1])
        if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("def f(x):\n    return json.loads(x)", "a.py::f json.loads"),
        (
            "def f(x):\n    try:\n        json.loads(x)\n    except ValueError:\n        pass",
            "a.py::f json.loads",
        ),
        ("def f(x):\n    try:\n        pass\n    except Exception:\n        json.loads(x)", "a.py::f json.loads"),
        ("try:\n    def f(x):\n        future.result()\nexcept Exception:\n    pass", "a.py::f result"),
        ("def f(x):\n    try:\n        json.loads(x)\n    except (ValueError, RecursionError):\n        pass", None),
        ("def f(x):\n    try:\n        future.result()\n    except ck.KafkaException:\n        pass", None),
    ],
)
def test_a_call_counts_as_caught_only_in_the_body_of_such_a_try(source: str, place: str | None) -> None:
    found = [uncaught(call) for call in calls("a.py", ast.parse(source))]
    assert [one for one in found if one is not None] == ([] if place is None else [place])
