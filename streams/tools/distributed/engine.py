"""What Streamward asks of an engine that spreads work over machines: four things, and the same of Spark and of Ray.

    numbers 0 to n ──► of ──► Rows ─┬─► each       a table here, a table there, in whatever pieces
                                    ├─► together   all rows of one bucket in one call
                                    ├─► in_order   as they were made, to this process
                                    └─► ordered    sorted, to this process

    opened(name) ──► spark.py | ray.py, which alone import those packages ──► check: every node is as this process

Where the cluster is and how large it is, the engine knows by its own means (`spark-submit`, `PYSPARK_SUBMIT_ARGS`,
`spark-defaults.conf`; `RAY_ADDRESS`, `ray job submit`); without any it runs on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import pyarrow as pa

from streams import errors
from streams.errors import LogError, SettingsError, StreamwardError
from streams.tools.distributed.executor import Release

EngineName = Literal["ray", "spark"]
Look = Callable[[], dict[str, Any]]
"""Looks at the node that it runs on."""
Piecework = Callable[[int], Iterator[pa.RecordBatch]]
"""Makes the rows of a numbered piece."""
Tablework = Callable[[pa.Table], Iterator[pa.RecordBatch]]
"""Makes rows of rows."""
_RAISED = re.compile(r"\bstreams\.errors\.(\w+): (.+)")
_MISSING = re.compile(r"ModuleNotFoundError: (No module named '[^']+')")


class SharedValue(Protocol):
    """Something large that every executor gets once."""

    @property
    def value(self) -> Any:
        """It."""


class Rows(Protocol):
    """Rows that an engine holds, or will make when they are needed."""

    def kept(self) -> Rows:
        """Make them now, once; return them."""

    def each(self, work: Tablework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of them, piece by piece; the engine chooses the pieces."""

    def together(self, column: str, parts: int, work: Tablework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of them, given all rows that have the same in `column` at once, in any order.

        The table may hold the rows of several such values. `parts`: how many of those there are, about.
        """

    def in_order(self) -> Iterator[pa.Table]:
        """Yield them in the order of the pieces that they were made of."""

    def ordered(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield them sorted."""


class DataEngine(Protocol):
    """Spark, or Ray."""

    name: EngineName

    @property
    def parallelism(self) -> int:
        """How much it does at once."""

    def looked_at(self, look: Look) -> list[dict[str, Any]]:
        """Return what `look`, which is sent there as source, returns on each node, as far as the engine shows nodes."""

    def share(self, value: Any) -> SharedValue:
        """Send a value to every executor that asks for it."""

    def of(self, count: int, parts: int, work: Piecework, schema: pa.Schema) -> Rows:
        """Return what `work` makes of the numbers below `count`, in their order, by so many tasks."""


def require(name: EngineName) -> None:
    """Return if an engine's package is installed. Raises SettingsError."""
    package = {"ray": "ray.data", "spark": "pyspark"}[name]
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        java = ", and a Java 17 or 21" if name == "spark" else ""
        raise SettingsError(
            f"--on {name} needs a package that is not installed: pip install 'streamward[{name}]'{java}"
        )


def opened(name: EngineName) -> AbstractContextManager[DataEngine]:
    """Start an engine, or connect to it, for as long as the block runs.

    Raises SettingsError without its package, or if it does not start.
    """
    if name == "spark":
        from streams.tools.distributed.spark import spark

        return spark()
    from streams.tools.distributed.ray import ray

    return ray()


def check(engine: DataEngine, mine: Release, store: str, folders: Sequence[str]) -> None:
    """Return if every node has the same Streamward as this process, and sees these folders of the archive in `store`.

    Raises SettingsError, naming the node and what it has.
    """
    from streams.tools.distributed import probe

    for found in engine.looked_at(partial(probe.look, store, tuple(folders))):
        refuse_another(engine.name, found, mine, store)


def refuse_another(name: EngineName, found: Mapping[str, Any], mine: Release, store: str) -> None:
    """Raise SettingsError unless a node, which says this of itself, is as this process."""
    where = f"--on {name}: {found['host']} ({found['python']})"
    same = f"pip install 'streamward[{name}]=={mine.version}' on every node, and the same there as here"
    if "error" in found:
        raise SettingsError(f"{where} cannot run Streamward: {found['error']}. Nothing was written; {same}")
    theirs = Release(found["version"], found["code"], tuple(found["schemas"]))
    if lacking := sorted(set(mine.schemas) - set(theirs.schemas)):
        raise SettingsError(
            f"{where} lacks the schema {lacking[0]}{' and others' if lacking[1:] else ''} of schemas/lock.json, in "
            f"which archived events may be: it has Streamward {theirs.version}. Nothing was written; {same}"
        )
    if theirs != mine:
        raise SettingsError(
            f"{where} has Streamward {theirs.version} ({theirs.code}), expected {mine.version} ({mine.code}), so what "
            f"it makes may have other bytes. Nothing was written; {same}"
        )
    if unseen := found["unseen"]:
        raise SettingsError(
            f"{where} does not see {unseen[0]} of the archive in {store}. Nothing was written; a folder must be on a "
            "file system that every node has under this path, or set archive.store to an object store"
        )


def translated(name: EngineName, exc: BaseException) -> StreamwardError:
    """Return the error that an executor raised, taken out of what the engine makes of it."""
    found: BaseException | None = exc
    while found is not None:
        if isinstance(found, StreamwardError):
            return found
        found = getattr(found, "cause", None) or found.__cause__
    text = str(exc)
    for kind, message in reversed(_RAISED.findall(text)):
        made = getattr(errors, kind, None)
        if isinstance(made, type) and issubclass(made, StreamwardError):
            return made(message)
    if missing := _MISSING.findall(text):
        return SettingsError(f"--on {name}: an executor cannot run Streamward: {missing[-1]}; install it there")
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(exc).__name__)
    return LogError(f"--on {name}: {type(exc).__name__}: {last}; see the engine's own log")


def as_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, most: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of at most `most` of them."""
    held: list[tuple[Any, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == most:
            yield _batch(held, schema)
            held = []
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
