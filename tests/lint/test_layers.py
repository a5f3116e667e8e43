"""Imports point down: never up, and never from one stage to another, not even by way of a third module.

The layers are folders (CONTRIBUTING draws them). Imports inside functions count like any other; those for type checkers
alone do not, since they never run.
"""

from __future__ import annotations

import re

from tests.import_graph import ROOT, imports, loads, modules, ours

LAYERS = [
    ["schemas", "streams.errors"],
    ["streams.references"],
    ["streams.plugins"],
    ["streams.advantage_formulas"],
    [
        "streams.settings",
        "streams.files",
        "streams.output",
    ],
    ["streams.processes", "streams.topics", "streams.egress"],
    ["streams.observability"],
    ["streams.kafka"],
    ["streams.engines", "streams.scorers", "streams.adapters", "streams.arrow", "streams.worker"],
    ["streams.evaluation"],
    ["streams.stages", "trainer"],
    ["streams.rows"],
    ["streams.access"],
    ["streams.tools"],
    ["streams.demo", "gateway"],
    ["streams.cli", "streamward"],
    ["plugins"],
]
"""From the bottom up. What shares a line imports nothing of its neighbours there."""
KNOW_FAUST = ("streams.worker",)
KNOW_AIOKAFKA = (*KNOW_FAUST, "streams.kafka.transactions")
"""librdkafka shows no markers of transactions."""
KNOW_TORCH = ("trainer", "streams.engines", "plugins")
TORCH = {"torch", "transformers", "peft", "trl", "vllm", "safetensors", "gguf"}


def inside(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def place(module: str) -> tuple[int, str] | None:
    """Return the number of the layer and the folder in it where `module` belongs."""
    return next(((n, folder) for n, layer in enumerate(LAYERS) for folder in layer if inside(module, folder)), None)


def stage_of(module: str) -> str | None:
    return ".".join(module.split(".")[:3]) if module.startswith("streams.stages.") else None


def reached(module: str) -> dict[str, str]:
    """Return every module of ours that `module` imports, directly or through others, each with who imports it."""
    found: dict[str, str] = {}
    ahead = [module]
    while ahead:
        importer = ahead.pop()
        for name in ours(importer) - found.keys():
            found[name] = importer
            ahead.append(name)
    return found


def test_every_module_is_in_a_folder_with_a_layer() -> None:
    assert [module for module in modules() if place(module) is None and module != "streams"] == []


def test_the_picture_of_the_layers_is_the_list() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"^```text\n( plugins .*?)^```", page, re.DOTALL | re.MULTILINE)
    names = [re.split(r" {3,}", line.strip())[0].split() for line in picture.splitlines()]
    assert names == [[folder.rpartition(".")[2] for folder in layer] for layer in reversed(LAYERS)]


def test_no_import_points_up_or_sideways() -> None:
    wrong = [
        f"{module} -> {name}"
        for module in modules()
        for name in sorted(ours(module))
        if (here := place(module)) and (there := place(name)) and there[1] != here[1] and there[0] >= here[0]
    ]
    assert wrong == []


def test_no_stage_reaches_another_even_through_a_third_module() -> None:
    wrong = [
        f"{module} reaches {name} through {importer}"
        for module in modules()
        if (stage := stage_of(module))
        for name, importer in reached(module).items()
        if stage_of(name) not in (None, stage)
    ]
    assert wrong == []


def test_the_trainer_reaches_no_stage() -> None:
    wrong = [(m, name) for m in modules() if inside(m, "trainer") for name in reached(m) if stage_of(name)]
    assert wrong == []


def test_only_the_worker_and_register_know_faust() -> None:
    wrong = [
        f"{module} -> {name}"
        for module in modules()
        for name, in_register in imports(module)
        if (library := name.split(".")[0]) in ("faust", "mode", "aiokafka") and not in_register
        if not inside(module, *(KNOW_AIOKAFKA if library == "aiokafka" else KNOW_FAUST))
    ]
    assert wrong == []


def test_only_trainer_and_engines_know_torch() -> None:
    wrong = [
        f"{module} -> {name}"
        for module in modules()
        if not inside(module, *KNOW_TORCH)
        for name, _ in imports(module)
        if name.split(".")[0] in TORCH
    ]
    assert wrong == []


def test_only_a_process_with_a_model_loads_torch() -> None:
    """It takes four seconds of a core to import, and most commands and every reader of the log need none of it."""
    heavy = {module for module in modules() if any(name.split(".")[0] in TORCH for name in loads(module))}
    while more := {module for module in modules() if loads(module) & heavy} - heavy:
        heavy |= more
    wrong = sorted(module for module in heavy if not inside(module, *KNOW_TORCH))
    assert wrong == []


def test_only_gateway_and_plugins_know_starlette_and_only_the_command_imports_the_gateway() -> None:
    http = ("fastapi", "starlette", "uvicorn", "jinja2")
    commands = ("streams.cli.serve", "streams.cli.mcp", "streams.cli.route_commands")
    wrong = [
        f"{module} -> {name}"
        for module in modules()
        if not inside(module, "gateway", "plugins")
        for name, _ in imports(module)
        if name.split(".")[0] in http or (inside(name, "gateway") and module not in commands)
    ]
    assert wrong == []


def test_only_the_engines_read_tool_calls() -> None:
    """Whoever reads an answer a second time may read it otherwise than its agent did."""
    readers = [module for module in modules() if "streams.engines.rendering.tool_calls" in ours(module)]
    assert readers and all(inside(module, "streams.engines") for module in readers)
