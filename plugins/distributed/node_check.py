"""Check that every node of an engine is as this process, before it gets work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from plugins.distributed import node_probe
from plugins.distributed.data_engine import DataEngine
from plugins.distributed.executor import Release
from streams.errors import SettingsError


def check_nodes(engine: DataEngine, release: Release, store: str, folders: Sequence[str]) -> None:
    """Return if every node runs this release of Streamward, and sees these folders of the archive in `store`.

    Raises SettingsError, naming the node and what it has.
    """
    for node in engine.probe_nodes(partial(node_probe.describe, store, tuple(folders))):
        check_node(engine.name, node, release, store)


def check_node(name: str, node: Mapping[str, Any], release: Release, store: str) -> None:
    """Raise SettingsError unless a node, described by itself, is as this process."""
    place = f"--on {name}: {node['host']} ({node['python']})"
    remedy = f"pip install 'streamward[{name}]=={release.version}' on every node, and the same there as here"
    if "error" in node:
        raise SettingsError(f"{place} cannot run Streamward: {node['error']}. Nothing was written; {remedy}")
    installed = Release(node["version"], node["code"], tuple(node["schemas"]))
    if lacking := sorted(set(release.schemas) - set(installed.schemas)):
        raise SettingsError(
            f"{place} lacks the schema {lacking[0]}{' and others' if lacking[1:] else ''} of schemas/lock.json, in "
            f"which archived events may be: it has Streamward {installed.version}. Nothing was written; {remedy}"
        )
    if installed != release:
        raise SettingsError(
            f"{place} has Streamward {installed.version} ({installed.code}), expected {release.version} "
            f"({release.code}), so what it makes may have other bytes. Nothing was written; {remedy}"
        )
    if unseen := node["unseen"]:
        raise SettingsError(
            f"{place} does not see {unseen[0]} of the archive in {store}. Nothing was written; a folder must be on a "
            "file system that every node has under this path, or set archive.store to an object store"
        )
