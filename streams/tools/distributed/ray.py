"""Ray: rows are a Dataset, and work is `map_batches` and `map_groups` on tables of Arrow.

    of ──► ray.data.range(n), a block each ──► map_batches
    together ──► groupby(bucket) ──► map_groups: the whole bucket in one call
    in_order ──► blocks in their order (`preserve_order`)          ordered ──► sort

`RAY_ADDRESS`, which `ray job submit` sets, names the cluster (`auto`: one that runs here). Without it Ray is started on
this machine, for as long as the work lasts, without dashboard and usage statistics.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from streams.errors import SettingsError
from streams.tools.distributed.engine import EngineName, Look, Piecework, SharedValue, Tablework, require, translated

SHARED = 4
"""Shared values that an executor keeps."""


@contextmanager
def ray() -> Iterator[RayEngine]:
    """Yield Ray while the block runs. Raises SettingsError without Ray, or if its cluster cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require("ray")
    import ray as package
    from ray import cloudpickle, data

    from streams.tools.distributed import probe

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its progress, and that there are no bars of it
    cloudpickle.register_pickle_by_value(probe)
    running = package.is_initialized()
    if not running:
        try:
            package.init(**_where(), log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError) as exc:
            raise SettingsError(f"--on ray: {exc}; RAY_ADDRESS names the cluster, or none for this machine") from exc
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    try:
        yield RayEngine(package, data)
    finally:
        if not running:
            package.shutdown()


def _where() -> dict[str, Any]:
    """Return how to begin: with the cluster that is named, or with one on this machine that listens to nobody else."""
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}


class RayEngine:
    """A Ray cluster."""

    name: EngineName = "ray"

    def __init__(self, package: Any, data: Any) -> None:
        self._ray, self._data = package, data

    @property
    def parallelism(self) -> int:
        """How many CPUs there are."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def looked_at(self, look: Look) -> list[dict[str, Any]]:
        """Return what `look` returns on each node that is alive."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from streams.tools.distributed import probe

        asked = self._ray.remote(num_cpus=0, max_retries=0)(probe.run)
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        each = [asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)) for node in nodes]
        with _errors():
            found: list[dict[str, Any]] = self._ray.get([there.remote(look) for there in each])
        return found

    def share(self, value: Any) -> SharedValue:
        """Put a value into the object store."""
        return RayShared(self._ray.put(value))

    def of(self, count: int, parts: int, work: Piecework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of the numbers below `count`, in their order, by so many tasks."""
        numbers = self._data.range(count, override_num_blocks=parts)
        made = partial(_of_numbers, work, schema)
        return RayRows(numbers.map_batches(made, batch_size=None, batch_format="pyarrow"))


@dataclass(frozen=True, slots=True)
class RayRows:
    """A Dataset."""

    dataset: Any

    def kept(self) -> RayRows:
        """Compute it, and keep it in the object store."""
        with _errors():
            return RayRows(self.dataset.materialize())

    def each(self, work: Tablework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of each block."""
        made = partial(_of_table, work, schema)
        return RayRows(self.dataset.map_batches(made, batch_size=None, batch_format="pyarrow"))

    def together(self, column: str, parts: int, work: Tablework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of each group of `column`."""
        groups = self.dataset.groupby(column, num_partitions=parts)
        return RayRows(groups.map_groups(partial(_of_table, work, schema), batch_format="pyarrow"))

    def in_order(self) -> Iterator[pa.Table]:
        """Yield the blocks one after the other."""
        with _errors():
            for table in self.dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                if len(table):
                    yield table

    def ordered(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield them sorted."""
        with _errors():
            is_empty = not self.dataset.count()
        if not is_empty:
            yield from RayRows(self.dataset.sort(list(columns))).in_order()


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what an executor raised."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, RuntimeError) as exc:
        raise translated("ray", exc) from exc


# --- on the executors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RayShared:
    """A value in the object store."""

    reference: Any

    @property
    def value(self) -> Any:
        """It, from the store of this node."""
        return _fetched(self.reference)


@lru_cache(maxsize=SHARED)
def _fetched(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def _of_numbers(work: Piecework, schema: pa.Schema, numbers: pa.Table) -> pa.Table:
    found = [batch for number in numbers.column("id").to_pylist() for batch in work(number)]
    return pa.Table.from_batches(found, schema)


def _of_table(work: Tablework, schema: pa.Schema, table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(list(work(table)), schema)
