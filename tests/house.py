"""Count the house: its rooms, floors and circles, its longest functions, and the names inside them.

    python -m tests.house                       the table
    python -m tests.house --by-folder           fillers and participles, a row a folder
    python -m tests.house --worst streams/cli   each filler and each function named by a past participle
    python -m tests.house --list                long functions, many parameters, broad excepts, file names twice
    python -m tests.house --times               the slowest tests, files and fixtures of the runs here; --write: for all
    python -m tests.house --without NAME        whether the rest holds without a plugin; --all: with make test
    python -m tests.house --core                whether the core alone learns, and its log is audited and reproduced

`tests/lint/test_names.py` holds ceilings for what only may go down.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import import_graph, times, without
from tests.import_graph import ROOT, sources
from tests.names import Name, bound_names

LONG_LINES = 60
MANY_PARAMETERS = 7
BROAD = ("Exception", "BaseException")


@dataclass(frozen=True)
class Function:
    """A function, where it is defined."""

    where: str
    name: str
    lines: int
    parameters: int
    """Without `self` and `cls`, `*args` and `**kwargs`."""

    @property
    def is_command(self) -> bool:
        """Whether click calls it, with a parameter for each option."""
        return (
            self.where.startswith("streams/cli/") or re.search(r"^plugins/\w+/commands(\.py|/)", self.where) is not None
        )

    def __str__(self) -> str:
        return f"{self.where} {self.name}: {self.lines} lines, {self.parameters} parameters"


@cache
def names() -> dict[str, list[Name]]:
    """Return the names that each module binds, by its path."""
    return {module.path: bound_names(module.tree) for module in sources()}


def fillers(folder: str = "") -> list[str]:
    """Return where a filler is bound, a line each."""
    return _lines(folder, lambda name: name.is_filler)


def participles(folder: str = "") -> list[str]:
    """Return each function that is named by a past participle, a line each."""
    return _lines(folder, lambda name: name.is_participle)


def _lines(folder: str, is_wanted: Callable[[Name], bool]) -> list[str]:
    return [
        f"{path}:{name.line} {name.name}" + (f" in {name.scope}" if name.scope else "")
        for path, bound in names().items()
        if path.startswith(folder)
        for name in sorted(bound, key=lambda name: name.line)
        if is_wanted(name)
    ]


def filler_share(folder: str = "") -> float:
    """Return the share of fillers among bound names."""
    total = sum(len(bound) for path, bound in names().items() if path.startswith(folder))
    return len(fillers(folder)) / total


@cache
def functions() -> tuple[Function, ...]:
    """Return every function, also those inside others."""
    return tuple(
        Function(f"{module.path}:{node.lineno}", node.name, (node.end_lineno or 0) - node.lineno + 1, _parameters(node))
        for module in sources()
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([argument for argument in arguments if argument.arg not in ("self", "cls")])


def long_functions() -> list[Function]:
    """Return the functions of more than LONG_LINES lines, the longest first."""
    long = [function for function in functions() if function.lines > LONG_LINES]
    return sorted(long, key=lambda function: -function.lines)


def functions_with_many_parameters() -> list[Function]:
    """Return the functions with MANY_PARAMETERS or more, apart from the commands."""
    return [function for function in functions() if function.parameters >= MANY_PARAMETERS and not function.is_command]


def broad_excepts() -> list[str]:
    """Return each handler of any exception whose line does not say why."""
    return [
        f"{module.path}:{node.lineno} {module.lines[node.lineno - 1].strip()}"
        for module in sources()
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _has_reason(module.lines[node.lineno - 1])
    ]


def _is_broad(node: ast.ExceptHandler) -> bool:
    if node.type is None:
        return True
    types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(isinstance(kind, ast.Name) and kind.id in BROAD for kind in types)


def _has_reason(line: str) -> bool:
    comment = re.sub(r"noqa(:\s*[A-Z0-9, ]+)?|type: ignore(\[[\w, -]+\])?", "", line.partition("#")[2])
    return re.search(r"\w{3}", comment) is not None


def file_names_twice() -> dict[str, list[str]]:
    """Return the file names that two modules or more share; what each plugin has is not counted."""
    paths: dict[str, list[str]] = defaultdict(list)
    for module in sources():
        if not re.fullmatch(r"plugins/\w+/(commands|recount|settings|topics|views)\.py", module.path):
            paths[Path(module.path).name].append(module.path)
    return {name: same for name, same in paths.items() if len(same) > 1 and name not in ("__init__.py", "__main__.py")}


def loose_modules(folder: str) -> list[str]:
    """Return the modules that lie directly in `folder`."""
    return [module.path for module in sources() if module.folder == folder and not module.path.endswith("/__init__.py")]


def production_lines() -> int:
    """Return the number of lines of the program."""
    return sum(len(module.lines) for module in sources())


def per_1000_lines(*kinds: type[ast.AST]) -> float:
    """Return how often syntax of these kinds occurs in 1,000 lines."""
    nodes = [node for module in sources() for node in module.nodes if isinstance(node, kinds)]
    return 1000 * len(nodes) / production_lines()


def table() -> Iterator[tuple[str, str]]:
    """Yield each measure with its value."""
    graph, folders = import_graph.between_modules(), import_graph.between_folders()
    bound = sum(map(len, names().values()))
    for folder in ("streams", "gateway"):
        yield f"loose modules in {folder}/", str(len(loose_modules(folder)))
    yield "floors of packages, each with its folders", str(import_graph.floors(import_graph.between_packages()))
    yield "floors of folders, each on its own", str(import_graph.floors(folders))
    yield "floors of gateway's modules", str(import_graph.floors(import_graph.inside(graph, "gateway")))
    yield "floors of gateway's folders", str(import_graph.floors(import_graph.inside(folders, "gateway")))
    yield "circles between packages (folders)", _circles(import_graph.circles(folders))
    yield "circles between rooms of a folder", _circles(import_graph.circles_of_rooms())
    yield "circles between modules, also within functions", _circles(import_graph.circles(graph))
    yield "file names that occur twice", str(len(file_names_twice()))
    yield "longest function", str(max(functions(), key=lambda function: function.lines))
    yield f"functions over {LONG_LINES} lines", str(len(long_functions()))
    yield (
        f"functions with {MANY_PARAMETERS} or more parameters, outside cli",
        str(len(functions_with_many_parameters())),
    )
    yield "broad excepts without a reason", str(len(broad_excepts()))
    yield "production lines", f"{production_lines():,} in {len(sources())} modules"
    yield "test lines", f"{sum(len(path.read_text().splitlines()) for path in (ROOT / 'tests').rglob('*.py')):,}"
    dense = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp)
    yield "comprehensions and conditional expressions per 1,000 lines", f"{per_1000_lines(*dense):.1f}"
    yield "walruses per 1,000 lines", f"{per_1000_lines(ast.NamedExpr):.1f}"
    yield "fillers among bound names", f"{100 * filler_share():.2f} % ({len(fillers()):,} of {bound:,})"
    yield "functions named by a past participle", f"{len(participles())} of {len(functions()):,}"


def _circles(circles: list[list[str]]) -> str:
    return str(len(circles)) + "".join(f"; {', '.join(circle)}" for circle in circles)


def _print_folders() -> None:
    folders = sorted({module.folder for module in sources()})
    print(f"{'folder':46} {'bound':>6} {'fillers':>7} {'share':>7} {'participles':>11}")
    for folder in folders:
        bound = [name for path, inside in names().items() if str(Path(path).parent) == folder for name in inside]
        if bound:
            count, named = sum(name.is_filler for name in bound), sum(name.is_participle for name in bound)
            print(f"{folder:46} {len(bound):6} {count:7} {100 * count / len(bound):6.1f}% {named:11}")


def _print_worst(folder: str) -> None:
    print(*fillers(folder), sep="\n")
    print(f"\nfunctions named by a past participle ({len(participles(folder))}):")
    print(*participles(folder), sep="\n")
    frequent = Counter(line.split()[1].strip("_") for line in fillers(folder)).most_common(20)
    print(f"\n{len(fillers(folder))} fillers, {100 * filler_share(folder):.1f} % of bound names in {folder}:", end=" ")
    print(*(f"{name} {count}" for name, count in frequent), sep=", ")


def _print_lists() -> None:
    print("functions over 60 lines:", *long_functions(), sep="\n  ")
    print("many parameters:", *functions_with_many_parameters(), sep="\n  ")
    print("broad excepts without a reason:", *broad_excepts(), sep="\n  ")
    print("file names that occur twice:", *(f"{n}: {', '.join(p)}" for n, p in file_names_twice().items()), sep="\n  ")


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Count the house.")
    parser.add_argument("--by-folder", action="store_true", help="fillers and participles of each folder")
    parser.add_argument("--worst", metavar="FOLDER", help="each filler and participle in a folder or module")
    parser.add_argument(
        "--list", action="store_true", help="long functions, many parameters, broad excepts, names twice"
    )
    parser.add_argument("--times", action="store_true", help="the slowest files, cases and fixtures of the runs here")
    parser.add_argument("--write", action="store_true", help="with --times: write tests/seconds.json from them")
    parser.add_argument("--without", metavar="NAME", help="copy the tree without this plugin, and check it there")
    parser.add_argument("--all", action="store_true", help="with --without: run make test there, too")
    parser.add_argument("--core", action="store_true", help="copy the core, without gateway and plugins; learn there")
    options = parser.parse_args()
    if options.core:
        sys.exit(without.run_core())
    if options.without:
        sys.exit(without.run(options.without, with_tests=options.all))
    if options.times:
        print(*times.table(), sep="\n")
        if options.write:
            times.write_seed()
    elif options.worst:
        _print_worst(options.worst)
    elif options.by_folder:
        _print_folders()
    elif options.list:
        _print_lists()
    else:
        for measure, value in table():
            print(f"{measure:60} {value}")


if __name__ == "__main__":
    main()
