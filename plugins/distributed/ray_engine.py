"""Ray: rows are a Dataset, and work is `map_batches` and `map_groups` on tables of Arrow.

    map_numbers ──► ray.data.range(n), a block each ──► map_batches
    map_groups ──► groupby(bucket) ──► map_groups: the whole bucket in one call
    in_order ──► blocks in their order (`preserve_order`)          sorted_by ──► sort

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

from plugins.distributed import node_probe
from plugins.distributed.data_engine import (
    NodeProbe,
    Piecework,
    SharedValue,
    Tablework,
    executor_error,
)
from streams.errors import SettingsError

SHARED = 4
"""Shared values that an executor keeps."""


@contextmanager
def ray() -> Iterator[RayEngine]:
    """Yield Ray while the block runs. Raises SettingsError without Ray, or if its cluster cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray as package
    from ray import cloudpickle, data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its progress, and that there are no bars of it
    cloudpickle.register_pickle_by_value(node_probe)
    running = package.is_initialized()
    if not running:
        try:
            package.init(**_address(), log_to_driver=False, logging_level=logging.WARNING)
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


def _address() -> dict[str, Any]:
    """Return the arguments that connect to the named cluster, or start one that only this machine reaches."""
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}


class RayEngine:
    """A Ray cluster."""

    name = "ray"

    def __init__(self, package: Any, data: Any) -> None:
        self._ray, self._data = package, data

    @property
    def parallelism(self) -> int:
        """The number of CPUs."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def probe_nodes(self, probe: NodeProbe) -> list[dict[str, Any]]:
        """Return what `probe` returns on each node that is alive."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(num_cpus=0, max_retries=0)(node_probe.run)
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        calls = [remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)) for node in nodes]
        with _errors():
            results: list[dict[str, Any]] = self._ray.get([call.remote(probe) for call in calls])
        return results

    def share(self, value: Any) -> SharedValue:
        """Put a value into the object store."""
        return RayShared(self._ray.put(value))

    def map_numbers(self, count: int, parts: int, work: Piecework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of the numbers below `count`, in their order, by `parts` tasks."""
        numbers = self._data.range(count, override_num_blocks=parts)
        function = partial(_apply_to_numbers, work, schema)
        return RayRows(numbers.map_batches(function, batch_size=None, batch_format="pyarrow"))


@dataclass(frozen=True, slots=True)
class RayRows:
    """A Dataset."""

    dataset: Any

    def persist(self) -> RayRows:
        """Compute it, and keep it in the object store."""
        with _errors():
            return RayRows(self.dataset.materialize())

    def map_tables(self, work: Tablework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of each block."""
        function = partial(_apply_to_table, work, schema)
        return RayRows(self.dataset.map_batches(function, batch_size=None, batch_format="pyarrow"))

    def map_groups(self, column: str, parts: int, work: Tablework, schema: pa.Schema) -> RayRows:
        """Return what `work` makes of each group of `column`."""
        groups = self.dataset.groupby(column, num_partitions=parts)
        return RayRows(groups.map_groups(partial(_apply_to_table, work, schema), batch_format="pyarrow"))

    def in_order(self) -> Iterator[pa.Table]:
        """Yield the blocks one after the other."""
        with _errors():
            for table in self.dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                if len(table):
                    yield table

    def sorted_by(self, columns: Sequence[str]) -> Iterator[pa.Table]:
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
        raise executor_error("ray", exc) from exc


# --- on the executors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RayShared:
    """A value in the object store."""

    reference: Any

    @property
    def value(self) -> Any:
        """The value, from the store of this node."""
        return _fetch(self.reference)


@lru_cache(maxsize=SHARED)
def _fetch(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def _apply_to_numbers(work: Piecework, schema: pa.Schema, numbers: pa.Table) -> pa.Table:
    batches = [batch for number in numbers.column("id").to_pylist() for batch in work(number)]
    return pa.Table.from_batches(batches, schema)


def _apply_to_table(work: Tablework, schema: pa.Schema, table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(list(work(table)), schema)
