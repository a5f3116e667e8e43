"""Run the benchmarks that are named, or all: one JSON line on stdout for each case, progress on stderr.

    python -m tests.benchmarks [NAME ...] [SEED ...] [--write] [--list]

Numbers are the seeds of benchmarks that have some.

Not covered: pass or fail. A line says its target and whether it was met; a busy machine is no failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from tests.benchmarks.table import write

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("tests/benchmarks/*.py"), *ROOT.glob("tests/plugins/*/benchmarks/*.py")]
MODULES = {
    file.stem: ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in sorted(FILES, key=lambda file: file.stem)
    if "\ndef run(" in file.read_text(encoding="utf-8")
}
"""The module of each benchmark by its name: ours, and those of plugins."""
NAMES = tuple(MODULES)
DOCS = ROOT / "docs" / "benchmarks.md"


def main(arguments: list[str]) -> int:
    """Run what `arguments` name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all if none is named")
    parser.add_argument("--write", action="store_true", help=f"put the results into the table of docs/{DOCS.name}")
    parser.add_argument("--list", action="store_true", help="say what each measures, and run nothing")
    given = parser.parse_args(arguments)
    seeds = [int(word) for word in given.names if word.isdecimal()]
    names = [word for word in given.names if not word.isdecimal()]
    if unknown := set(names) - set(NAMES):
        parser.error(f"no benchmark is called {sorted(unknown)[0]!r}; there are {', '.join(NAMES)}")
    lines = []
    for name in names or NAMES:
        module = importlib.import_module(MODULES[name])
        if given.list:
            print(f"{name:17} {(module.__doc__ or '').splitlines()[0]}")
            continue
        for line in module.run(seeds) if seeds else module.run():
            print(json.dumps(line), flush=True)
            lines.append(line)
    if given.write:
        DOCS.write_text(write(DOCS.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
