"""One module per kind of fault, or tests/plugins/NAME/faults.py; importing this package fills `matrix.FAULTS`."""

from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]

for file in (*sorted(HERE.glob("[a-z]*.py")), *sorted(TESTS.glob("plugins/*/faults.py"))):
    import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
