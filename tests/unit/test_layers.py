"""Imports point down, never up, and never sideways between stages; the heavy libraries stay where they belong.

The layers are those of CONTRIBUTING. A new module is given its place here, in the same change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = [
    {name if name in ("schemas", "streamward", "trainer") else f"streams.{name}" for name in line.split()}
    for line in (
        # L0
        "schemas errors sections settings tracing tracing.context",
        # L1, the log, the broker, and how things look on a terminal
        "topics monitoring monitoring.names monitoring.metrics intake log patience reading following cluster positions "
        "observe quiet holding schema_server schema_registry schema_register delivery changelogs tracing.spans "
        "tracing.tracer tracing.otlp config_file broker deadline node jvm show shell supervisor",
        # L2, what stages are made of
        "app agents faust_fixes faust_start faust_guard lease tables watchdog engines scorers formulas rows groups "
        "group_rows refusals latecomers join serving adapters adapter_signing adapter_store generators admission arms "
        "shelf standing rounds sampling known_tasks tail evaluation evaluation.intervals evaluation.outcomes "
        "evaluation.pairing evaluation.guard evaluation.sequential evaluation.canary "
        # L2, what looks back
        "columns bulk archive history",
        # L3, stages, and tools beside them
        "tasks policy scoring advantages batches line rollouts rollout_status progress display report doctor "
        "show_events dead_letters put_back audit decisions keeping lineage evaluation.suites evaluation.evaluate "
        "evaluation.asking query replay replay.selection replay.recorded_lag replay.experiments replay.comparison "
        "replay.copying replay.rescoring export monitoring.promql monitoring.alerts monitoring.dashboard_json "
        "monitoring.dashboards monitoring.grafana",
        # L4, what drives stages
        "trainer drive replay.run replay.join replay.plan replay.evaluate",
        # L5, composition roots
        "worker demo cli streamward",
    )
]
STAGES = {f"streams.{name}" for name in ("tasks", "policy", "scoring", "advantages", "batches", "rollouts")}
KNOW_FAUST = {
    f"streams.{name}"
    for name in ("app", "agents", "drive", "faust_fixes", "faust_start", "faust_guard", "tables", "watchdog")
}
KNOW_TORCH = {"trainer", "streams.engines"}
PACKAGES = {"schemas", "trainer"} | {
    f"streams.{name}" for name in ("engines", "scorers", "columns", "archive", "audit", "query", "cli")
}
"""Each of these is one place; inside, its modules arrange themselves."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place(module: str) -> str:
    """Return the name under which `module` stands in LAYERS."""
    return next((package for package in PACKAGES if module == package or module.startswith(package + ".")), module)


@cache
def modules() -> dict[str, Path]:
    packages = ("schemas", "streams", "streamward", "trainer")
    paths = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {module_name(path): path for path in paths if module_name(path) != "streams"}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield every module imported in a file, and whether only inside `register`; imports for type checkers are left."""

    def walk(node: ast.AST, in_register: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, in_register) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in modules() else node.module), in_register
        within = in_register or (isinstance(node, ast.FunctionDef) and node.name == "register")
        for child in ast.iter_child_nodes(node):
            yield from walk(child, within)

    yield from walk(ast.parse(path.read_text()), False)


def layer(module: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if place(module) in layer)


EVERY = modules()


@pytest.mark.parametrize("module", EVERY)
def test_every_module_has_its_place(module: str) -> None:
    assert any(place(module) in layer for layer in LAYERS), f"{module}: give it a layer in LAYERS"


@pytest.mark.parametrize("module", EVERY)
def test_no_import_points_up(module: str) -> None:
    up = [
        name
        for name, _ in imports(EVERY[module])
        if name in EVERY and place(name) != place(module) and layer(name) > layer(module)
    ]
    assert up == [], f"{module} (layer {layer(module)}) imports from above"


@pytest.mark.parametrize("module", sorted(STAGES & EVERY.keys()))
def test_stages_meet_only_at_topics(module: str) -> None:
    assert {name for name, _ in imports(EVERY[module]) if name in STAGES - {module}} == set()


@pytest.mark.parametrize("module", [name for name in EVERY if place(name) == "trainer"])
def test_the_trainer_imports_no_stage(module: str) -> None:
    assert {name for name, _ in imports(EVERY[module])} & STAGES == set()


@pytest.mark.parametrize("module", [name for name in EVERY if name not in KNOW_FAUST])
def test_only_register_knows_faust(module: str) -> None:
    assert [name for name, inside in imports(EVERY[module]) if name.split(".")[0] == "faust" and not inside] == []


@pytest.mark.parametrize("module", [name for name in EVERY if place(name) not in KNOW_TORCH])
def test_only_trainer_and_engines_know_torch(module: str) -> None:
    heavy = {"torch", "transformers", "peft", "trl", "vllm", "safetensors", "gguf"}
    assert [name for name, _ in imports(EVERY[module]) if name.split(".")[0] in heavy] == []


def test_the_words_import_nothing_of_ours() -> None:
    for module, path in EVERY.items():
        if place(module) == "schemas":
            assert [name for name, _ in imports(path) if name.split(".")[0] in ("streams", "trainer")] == [], module
