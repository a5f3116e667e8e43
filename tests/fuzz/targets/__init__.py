"""The readers that are fuzzed, by what they read; those of a plugin are in tests/plugins/NAME/fuzz_targets.py."""

from importlib import import_module
from pathlib import Path

from tests.fuzz.targets import (
    archive as archive,
    data_rows as data_rows,
    models as models,
    records as records,
    replies as replies,
    tasks as tasks,
    uploads as uploads,
)

for file in sorted((Path(__file__).parents[2] / "plugins").glob("*/fuzz_targets.py")):
    import_module(f"tests.plugins.{file.parent.name}.{file.stem}")
