"""The import graph of the program: its modules, what each imports, the circles in it and its floors.

Imports inside functions count like any other; those for type checkers alone do not, since they never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "plugins", "schemas", "streams", "streamward", "trainer")

Import = tuple[str, bool]
"""The imported name, and whether that happens inside a function called `register`."""
Graph = Mapping[str, set[str]]
"""Each node with the nodes it imports."""


class Source:
    """A source file, which is parsed once, for every test that looks at it. No one may change its tree."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its tree."""
        return tuple(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        """Its folder."""
        return str(Path(self.path).parent)


source = cache(Source)
"""A source file by its path from the root."""


@cache
def sources() -> tuple[Source, ...]:
    """Return every file of the program."""
    return tuple(source(path.relative_to(ROOT).as_posix()) for path in sorted(modules().values()))


@cache
def modules() -> dict[str, Path]:
    """Return the path of every module, by its dotted name; a package stands for its `__init__`."""
    paths = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Return what `module` imports, wherever in the file; a name that is no module of ours stands for its module."""
    return tuple(_imports(source(path_of(module)).tree, in_register=False))


@cache
def loads(module: str) -> frozenset[str]:
    """Return what `module` imports when it is imported itself: not what its functions import once they are called."""
    return frozenset(_loads(source(path_of(module)).tree))


def _loads(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (name for name, _ in _imports(node, in_register=False))
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        for child in ast.iter_child_nodes(node):
            yield from _loads(child)


def _imports(node: ast.AST, *, in_register: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, in_register) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield (name if name in modules() else node.module), in_register
    within = in_register or (isinstance(node, ast.FunctionDef) and node.name == "register")
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, in_register=within)


@cache
def ours(module: str) -> frozenset[str]:
    """Return the modules of the program that `module` imports."""
    return frozenset(name for name, _ in imports(module) if name in modules())


def between_modules() -> dict[str, set[str]]:
    """Return the graph of the modules."""
    return {module: {*ours(module)} - {module} for module in modules()}


def between_folders() -> dict[str, set[str]]:
    """Return the graph of the folders: one imports another if one of the modules directly in it does."""
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = graph.setdefault(folder_of(module), set())
        targets |= {folder_of(name) for name in ours(module)} - {folder_of(module)}
    return graph


def between_packages() -> dict[str, set[str]]:
    """Return the graph of the packages: a part of the program with all that is inside it.

    These are each folder of streams/, each stage, gateway, trainer and schemas; the loose modules of streams/ are one.
    A reader who climbs from the log to the command line passes these floors. Folders inside a package are rooms of the
    same floor, whose order `between_folders` shows.
    """
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = graph.setdefault(package_of(module), set())
        targets |= {package_of(name) for name in ours(module)} - {package_of(module)}
    return graph


def package_of(module: str) -> str:
    """Return the package of a module, as a path: `gateway`, `streams/kafka`, `streams/stages/policy`."""
    folders = folder_of(module).split("/")
    if folders[:2] == ["streams", "stages"]:
        depth = 3
    elif folders[0] == "streams":
        depth = 2
    else:
        depth = 1
    return "/".join(folders[:depth])


def between_rooms(folder: str) -> dict[str, set[str]]:
    """Return the graph inside `folder`: the modules directly in it and its folders, each with all that it holds."""
    graph: dict[str, set[str]] = {}
    for module in modules():
        room = _room_of(module, folder)
        if room is not None:
            targets = {_room_of(name, folder) for name in ours(module)} - {room, None}
            graph.setdefault(room, set()).update(target for target in targets if target is not None)
    return graph


def _room_of(module: str, folder: str) -> str | None:
    path = path_of(module)
    if not path.startswith(f"{folder}/"):
        return None
    return folder + "/" + path.removeprefix(f"{folder}/").partition("/")[0]


def circles_of_rooms() -> list[list[str]]:
    """Return the circles between the rooms of any folder.

    A folder that imports what its parent's modules declare, and that another module of the parent imports, is in no
    circle here, but it is one of `between_folders`.
    """
    return [circle for folder in sorted(between_folders()) for circle in circles(between_rooms(folder))]


def folder_of(module: str) -> str:
    """Return the folder of a module, as a path: `plugins/page`."""
    return path_of(module).rpartition("/")[0]


@cache
def path_of(module: str) -> str:
    """Return the path of a module: `plugins/page/app.py`."""
    return modules()[module].relative_to(ROOT).as_posix()


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components, each after those that it imports (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            start = stack.index(node)
            result.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return result


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that import one another in a circle."""
    return [component for component in components(graph) if len(component) > 1]


def floors(graph: Graph) -> int:
    """Return the number of nodes on the longest chain of imports; nodes in a circle count as one."""
    floor: dict[str, int] = {}
    for component in components(graph):
        below = {target for node in component for target in graph[node]} - set(component)
        height = 1 + max((floor[target] for target in below), default=0)
        floor.update(dict.fromkeys(component, height))
    return max(floor.values(), default=0)


def inside(graph: Graph, prefix: str) -> dict[str, set[str]]:
    """Return the part of `graph` whose nodes begin with `prefix`."""
    nodes = {node for node in graph if node.startswith(prefix)}
    return {node: graph[node] & nodes for node in nodes}
