"""The readers that are fuzzed, by what they read; those of a plugin, and their seeds, are in
tests/plugins/NAME/fuzz_targets.py, and their corpus is in the folder fuzz_corpus there."""

from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]

FILES = (*sorted(HERE.glob("[a-z]*.py")), *sorted(TESTS.glob("plugins/*/fuzz_targets.py")))
MODULES = tuple(import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts)) for file in FILES)
