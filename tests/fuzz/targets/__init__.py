"""The readers that are fuzzed, by what they read; those of a plugin are in tests/plugins/NAME/fuzz_targets.py."""

from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]

for file in (*sorted(HERE.glob("[a-z]*.py")), *sorted(TESTS.glob("plugins/*/fuzz_targets.py"))):
    import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
