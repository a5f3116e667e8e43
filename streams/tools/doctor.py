"""Check a set-up, and suggest a fix for each problem.

    settings ──► broker, topics, trainer, agents, schemas, model, disk ──► findings: ok, warning, failed, skipped

Each check yields findings and does not raise; one that cannot run, because an earlier one failed, is skipped. Nothing
is changed: no topic is created, no model loaded or downloaded. It checks only two kinds of processes: the trainer,
without which the others go idle, and those that answer tasks (`streamward status` shows all). Tasks that no process
begins are listed. Policies that learn nothing, and scorers that fail, are listed with the likeliest cause.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streams.errors import LogError, SettingsError, StreamwardError
from streams.kafka.topics import NEWEST, OLDEST
from streams.output import size
from streams.plugins.installed import load_plugins
from streams.scorers.module_names import check_module_names
from streams.settings.load import default_address
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.status import ProcessStatus
    from streams.tools.unbegun_tasks import UnbegunTask

DISK_WARNING_BYTES = 5 * 2**30
"""About what an installed environment and a long demo need together."""
DISK_FAILED_BYTES = 512 * 2**20
"""Below this Kafka's next segments and a checkpoint may not fit."""

AGENT_BEHIND_S = 600.0
"""A task of an agent may wait as long as this, before anybody has to look."""
NAMED = 5
"""Tasks that are named in a finding."""
SERVER_S = 5.0
"""Timeout of the health check of the server of agents."""

State = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    check: str
    state: State
    what: str
    do: str = ""
    exit_code: int = 0

    def row(self) -> dict[str, Any]:
        """Return it for printing."""
        return {"check": self.check, "state": self.state, "what": self.what, "do": self.do}


def examine(load: Callable[[], tuple[Settings, Mapping[str, str]]]) -> list[DoctorFinding]:
    """Return every finding, in order. `load` returns the settings and their origins, or raises SettingsError."""
    try:
        settings, origins = load()
    except SettingsError as exc:
        return [
            DoctorFinding(
                "settings", "failed", str(exc), "`streamward config show` lists every key", SettingsError.exit_code
            ),
            *(
                DoctorFinding(check, "skipped", "needs settings")
                for check in ("broker", "topics", "schemas", "model", "disk")
            ),
        ]
    broker = _broker(settings, origins)
    reached = broker.state != "failed"
    topics = list(_topics(settings)) if reached else [DoctorFinding("topics", "skipped", "needs a broker that answers")]
    processes = _processes(settings) if all(finding.state in ("ok", "warning") for finding in topics) else []
    return [
        broker,
        *topics,
        *(groups(settings) if reached else ()),
        *processes,
        *_schemas(),
        *_registry(settings),
        *_scorers(settings),
        *_model(settings),
        *disk(settings),
        *_of_plugins(settings),
    ]


def _of_plugins(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield what the checks of the loaded plugins find."""
    for plugin, _, _ in load_plugins():
        if plugin.checks is not None:
            yield from plugin.load(plugin.checks)(settings)


def examine_model(base: str) -> list[DoctorFinding]:
    """Return the table of a model's tokens and every oddity of its tokenizer and template.

    It needs no settings and no broker, and downloads nothing.
    """
    packages = _packages()
    if packages is not None:
        return [packages]
    found = _base(base)
    if found.state == "warning":  # of the hub, and not in its cache
        return [DoctorFinding("model", "failed", found.what, f"Download it first: `hf download {base}`", 3)]
    return [found, *([] if found.state == "failed" else _tokens(base, odd_only=False))]


def _scorers(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield the module of a scorer that is not the one its name imports."""
    try:
        check_module_names(settings.scoring)
    except SettingsError as exc:
        yield DoctorFinding("scorers", "failed", str(exc), exit_code=exc.exit_code)


# --- the log ----------------------------------------------------------------------------------------------------------


def _broker(settings: Settings, origins: Mapping[str, str]) -> DoctorFinding:
    from streams.kafka import admin

    began = time.monotonic()
    try:
        found = admin.describe(settings)
    except LogError as exc:
        return DoctorFinding("broker", "failed", str(exc), _other_broker(settings), LogError.exit_code)
    took_ms = (time.monotonic() - began) * 1000
    answered = f"{settings.kafka.bootstrap} answered in {took_ms:.0f} ms and has {len(found)} topics"
    if unnamed := default_address(settings, origins):
        what, _, do = unnamed.partition("; ")
        return DoctorFinding("broker", "warning", f"{answered}; {what}", do[:1].upper() + do[1:])
    return DoctorFinding("broker", "ok", answered)


def _other_broker(settings: Settings) -> str:
    """Return what to do when the bootstrap does not answer: an embedded node may run at another one."""
    from streams.kafka.node import process as broker

    running = broker.status(settings.broker)
    if running is None or running.bootstrap == settings.kafka.bootstrap:
        return ""
    return f"An embedded node runs at {running.bootstrap}: leave kafka.bootstrap out to use it"


def _topics(settings: Settings) -> Iterator[DoctorFinding]:
    from streams.kafka import admin
    from streams.kafka.topics import topics

    wanted = topics(settings.topics)
    try:
        existing = admin.describe(settings)
        configs = admin.configs(settings, [topic.name for topic in wanted.values() if topic.name in existing])
        checked = _raised(lambda: admin.check_topics(settings))
    except LogError as exc:
        yield DoctorFinding("topics", "failed", str(exc), exit_code=exc.exit_code)
        return
    missing = [topic.name for topic in wanted.values() if topic.name not in existing]
    if missing:
        yield DoctorFinding(
            "topics", "failed", f"missing: {', '.join(missing)}", "Run `streamward admin topics apply`", 3
        )
    elif checked is not None:
        yield DoctorFinding("topics", "failed", str(checked), exit_code=checked.exit_code)
    else:
        yield DoctorFinding("topics", "ok", f"all {len(wanted)} exist with the right partitions")
    for topic in wanted.values():
        if topic.name in configs:
            yield from _topic_config(topic.name, topic.config, configs[topic.name])
    yield from _unbounded_times(configs)
    yield from _unread_topics(settings.topics.prefix, existing)
    if not missing:
        yield from _open_transactions(settings)


def _open_transactions(settings: Settings) -> Iterator[DoctorFinding]:
    """Say which transactions of other programs keep all readers of a partition waiting."""
    from streams.kafka import admin
    from streams.kafka.topics import LABELS

    do = "Have that program commit or abort; the broker aborts it after the producer's transaction.timeout.ms"
    try:
        for transaction in admin.open_transactions(settings, LABELS):
            yield DoctorFinding("topics", "warning", str(transaction), do)
    except LogError as exc:
        yield DoctorFinding("topics", "failed", str(exc), exit_code=exc.exit_code)


def _topic_config(name: str, wanted: dict[str, str], found: dict[str, str]) -> Iterator[DoctorFinding]:
    if "compact" in found.get("cleanup.policy", "delete"):
        yield DoctorFinding(
            "topics",
            "failed",
            f"{name} is compacted, which leaves gaps in the offsets that batches refer to",
            "Set cleanup.policy=delete on it, or use another topics.prefix",
            2,
        )
    for key in ("max.message.bytes", "retention.ms", "message.timestamp.type", OLDEST, NEWEST):
        if (got := found.get(key)) is not None and got != wanted[key]:
            yield DoctorFinding(
                "topics",
                "warning",
                f"{name} has {key}={got}, the settings have {wanted[key]}",
                "Change one of them; `admin topics apply` never changes a topic that exists",
            )


def _unbounded_times(configs: Mapping[str, Mapping[str, str]]) -> Iterator[DoctorFinding]:
    """Name the topics that take a record which retention deletes at once."""
    names = [
        name for name, config in configs.items() if config.get("retention.ms", "-1") != "-1" and OLDEST not in config
    ]
    if names:
        yield DoctorFinding(
            "topics",
            "warning",
            f"{', '.join(names)} take records that are older than retention.ms, which Kafka deletes within minutes",
            f"Set {OLDEST} of each to its retention.ms with kafka-configs.sh, so that their producer gets an error",
        )


def groups(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield whether the broker assigns partitions as kafka.group_protocol=consumer wants it; nothing for classic."""
    from streams.kafka import admin, group_protocol

    if settings.kafka.group_protocol == "classic":
        return
    try:
        problem = next(iter(group_protocol.problems(settings, admin.connected(settings))), None)
    except LogError as exc:
        problem = str(exc)
    if problem is None:
        yield DoctorFinding("groups", "ok", "the broker assigns partitions (kafka.group_protocol=consumer)")
    elif problem == group_protocol.TOO_OLD:
        yield DoctorFinding("groups", "failed", problem, "Set kafka.group_protocol to classic", LogError.exit_code)
    else:
        do = "Run `streamward admin topics apply`, as a principal with AlterConfigs on the cluster"
        yield DoctorFinding("groups", "warning", problem, do)


def _unread_topics(prefix: str, existing: Iterable[str]) -> Iterator[DoctorFinding]:
    """Name the topics of a plugin that was installed once: nothing reads, queries or audits them."""
    from streams.kafka.group_names import STREAMS
    from streams.kafka.topics import LABELS
    from streams.topics.shape import is_label

    labels = (name.removeprefix(prefix) for name in existing if prefix and name.startswith(prefix))
    unread = sorted(
        label for label in labels if is_label(label) and label not in LABELS and not label.startswith(f"{STREAMS}-")
    )
    if unread:
        yield DoctorFinding(
            "topics",
            "warning",
            f"{', '.join(prefix + label for label in unread)}: no plugin that is loaded reads this",
            "`streamward admin plugins` lists those that are installed; load the one that wrote it, or delete the "
            "topic",
        )


def _raised(act: Callable[[], object]) -> StreamwardError | None:
    try:
        act()
    except LogError:
        raise
    except StreamwardError as exc:
        return exc
    return None


def _processes(settings: Settings) -> Iterator[DoctorFinding]:
    from streams.tools.status import diagnoses, look
    from streams.tools.unbegun_tasks import unbegun_tasks
    from streams.tools.waiting import WAY_OUT, stalled_text

    try:
        status = look(settings)
        causes, unbegun = diagnoses(settings, status), unbegun_tasks(settings)
    except StreamwardError as exc:
        yield DoctorFinding("trainer", "failed", str(exc), exit_code=exc.exit_code)
        return
    processes = status.processes
    yield from _trainer(settings, processes)
    for name, diagnosis in causes.items():
        yield DoctorFinding("learning", "warning", f"policy {name}: {diagnosis.what}", diagnosis.do)
    for scorer in status.failing:
        do = f"Repair {scorer.scorer}, then `streamward admin rescore --failed` writes what is missing"
        yield DoctorFinding("scoring", "warning", str(scorer), do)
    for name, policy in status.policies.items():
        if policy.stalled:
            do = WAY_OUT[:1].upper() + WAY_OUT[1:]
            yield DoctorFinding("groups", "warning", f"policy {name}: {stalled_text(policy.stalled)}", do)
    agents = [one for one in processes if one.agent is not None]
    for process in processes:
        if process.process in ("policy", "agents"):
            own = [task for task in unbegun if (task.policy, task.agent) == (process.policy, process.agent)]
            yield from _answering(process, own)
    if any(one.alive or one.lag for one in agents):
        yield _server(settings)


def _answering(process: ProcessStatus, unbegun: list[UnbegunTask]) -> Iterator[DoctorFinding]:
    """Yield what is with the tasks of a policy, and of the agent that it runs."""
    from streams.stages.tasks.episodes import NOT_PLAYED
    from streams.tools.status import start_command

    start = start_command(process.process, process.policy, process.agent)
    check, for_agent = ("tasks", "") if process.agent is None else ("agents", f" for agent {process.agent}")
    count = process.lag if process.alive else len(unbegun)
    waits = f"{count or 'no'} task{'s' * (count != 1)} of policy {process.policy} wait{'s' * (count == 1)}{for_agent}"
    if names := _environments_without_player(unbegun):
        do = f"Load it here, and start {start}"
        yield DoctorFinding(check, "warning", f"{waits}, in {', '.join(names)}: {NOT_PLAYED}", do)
    elif unbegun and not process.alive:
        yield DoctorFinding(check, "warning", f"{waits}: no process serves them", f"Start {start}")
    elif process.agent is not None and process.alive and process.oldest_s > AGENT_BEHIND_S:
        do = (
            "Its output says what it waits for: the trainer, or the server. Otherwise raise --parallel, or run it twice"
        )
        yield DoctorFinding(check, "warning", f"{waits}, the oldest for {process.oldest_s / 60:.0f} min", do)
    elif process.agent is not None:
        who = f"{process.members[0]} runs it" if process.alive else "nobody runs it"
        yield DoctorFinding(check, "ok", f"{waits}, and {who}")
    overdue = [task for task in unbegun if task.closes_ms is not None and task.closes_ms < time.time() * 1000]
    if overdue:
        ids = ", ".join(task.task_id for task in overdue[:NAMED]) + (" …" if len(overdue) > NAMED else "")
        what = f"past their deadline, and begun by no process, of policy {process.policy}{for_agent}: {ids}"
        do = f"Start {start} and `streamward streams`, and submit again, under new ids, what is still wanted"
        yield DoctorFinding(check, "warning", what, do)


def _environments_without_player(unbegun: Iterable[UnbegunTask]) -> list[str]:
    """Return the environments of these tasks, where no loaded plugin plays any: they would wait for ever."""
    from streams.stages.tasks.episodes import is_played

    return [] if is_played() else sorted({task.environment for task in unbegun if task.environment is not None})


def _server(settings: Settings) -> DoctorFinding:
    import httpx2

    url = settings.serve.url
    try:
        httpx2.get(f"{url}/healthz", timeout=SERVER_S).raise_for_status()
        return DoctorFinding("server", "ok", f"{url} answers the calls of agents")
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        do = "Start `streamward serve`; if it is elsewhere, set serve.host and serve.port as it has them"
        return DoctorFinding("server", "warning", f"{url}, which answers the calls of agents, does not: {exc}", do)


def _trainer(settings: Settings, processes: Iterable[ProcessStatus]) -> Iterator[DoctorFinding]:
    for one in processes:
        if (one.process, one.policy) != ("trainer", settings.policy.name):
            continue
        batches = "1 batch waits" if one.lag == 1 else f"{one.lag or 'no'} batches wait"
        waits = f"{batches} for a trainer of policy {one.policy}"
        if one.alive:
            yield DoctorFinding("trainer", "ok", f"{waits}, and {one.members[0]} is one")
        elif one.lag:
            do = f"{one.waits_for.removeprefix('nobody: ')}. Until then train tasks are held back"
            yield DoctorFinding("trainer", "warning", f"{waits}, and none lives", do[:1].upper() + do[1:])
        else:
            yield DoctorFinding("trainer", "ok", f"{waits}, and none lives")


def _schemas() -> Iterator[DoctorFinding]:
    from schemas.versions import SchemaError, check, files

    try:
        registry = files()
        problems = list(check(registry))
    except SchemaError as exc:
        yield DoctorFinding("schemas", "failed", str(exc), exit_code=1)
        return
    for problem in problems:
        yield DoctorFinding("schemas", "failed", problem, exit_code=1)
    if not problems:
        yield DoctorFinding("schemas", "ok", f"{len(registry.schemas)} as locked, every version reads every other")


def _registry(settings: Settings) -> Iterator[DoctorFinding]:
    if not settings.schemas.registry_url:
        return
    from streams.kafka.registry import client as schema_registry

    try:
        schema_registry.connect(settings)
    except StreamwardError as exc:
        yield DoctorFinding("schemas", "failed", str(exc), exit_code=exc.exit_code)
    else:
        yield DoctorFinding("schemas", "ok", f"{settings.schemas.registry_url} holds every version")


# --- the machine ------------------------------------------------------------------------------------------------------


def _model(settings: Settings) -> Iterator[DoctorFinding]:
    packages = _packages()
    if packages is not None:
        yield packages
        return
    if settings.model.device != "cpu":
        yield from _device(settings.model.device)
    base = _base(settings.model.base)
    yield base
    if base.state == "ok" and Path(os.path.expanduser(settings.model.base)).is_dir():
        yield from _tokens(settings.model.base, odd_only=True)


def _packages() -> DoctorFinding | None:
    """Return the finding of packages that are missing; None if none is."""
    missing = [name for name in ("torch", "transformers", "peft", "trl") if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    do = "Install streamward with its dependencies (`make setup`)"
    return DoctorFinding("model", "failed", f"the packages {', '.join(missing)} are not installed", do, 1)


def _tokens(base: str, *, odd_only: bool) -> Iterator[DoctorFinding]:
    """Yield what the tokens and the template of a model do."""
    from streams.engines.base_model import load_token_table
    from streams.tools.model_findings import model_findings

    try:
        for finding in model_findings(*load_token_table(base)):
            if not odd_only or (finding.is_odd and finding.check != "tools"):
                state: State = "warning" if finding.is_odd else "ok"
                yield DoctorFinding(finding.check, state, finding.what, finding.do)
    except SettingsError as exc:
        yield DoctorFinding("model", "failed", str(exc), exit_code=exc.exit_code)


def _device(device: str) -> Iterator[DoctorFinding]:
    from streams.engines.base_model import check_device

    try:
        check_device(device)
    except SettingsError as exc:
        what, _, way_out = str(exc).rpartition("; ")
        yield DoctorFinding("model", "failed", what, way_out, 2)


def _base(base: str) -> DoctorFinding:
    from streams.engines import base_model

    if base in base_model.SHIPPED:
        try:
            file = base_model.gguf_file(base)
        except SettingsError as exc:
            return DoctorFinding("model", "failed", str(exc), exit_code=exc.exit_code)
        return DoctorFinding("model", "ok", f"{base} is installed ({file.name}, {size(file.stat().st_size)})")
    folder = Path(base)
    if folder.is_dir():
        lacking = [
            name
            for name, found in (
                ("config.json", (folder / "config.json").exists()),
                ("*.safetensors", any(folder.glob("*.safetensors"))),
            )
            if not found
        ]
        if lacking:
            return DoctorFinding(
                "model",
                "failed",
                f"{base} has no {' and no '.join(lacking)}",
                "Set model.base to a complete folder",
                2,
            )
        return DoctorFinding("model", "ok", f"{base} is a folder with config and weights")
    if base.startswith((".", "/", "~")):
        return DoctorFinding(
            "model", "failed", f"model.base={base}: there is no such folder", "Set it to one that exists", 2
        )
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(base, "config.json"), str):
        return DoctorFinding("model", "ok", f"{base} is in the hub's local cache")
    return DoctorFinding(
        "model",
        "warning",
        f"{base} is not in the hub's local cache",
        "It is downloaded at the first start, which needs network access",
    )


def disk(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield how much room there is where the settings keep things."""
    places = {"broker.data_dir": settings.broker.data_dir, "trainer.checkpoints": settings.trainer.checkpoints}
    if "://" not in settings.adapters.store:
        places["adapters.store"] = Path(settings.adapters.store)
    by_disk: dict[int, tuple[Path, list[str]]] = {}
    for name, path in places.items():
        parent = _existing(Path(os.path.expanduser(path)))
        if not os.access(parent, os.W_OK):
            yield DoctorFinding(
                "disk", "failed", f"{name}={path}: {parent} is not writable", f"Change its rights, or set {name}", 1
            )
        by_disk.setdefault(parent.stat().st_dev, (parent, []))[1].append(name)
    for parent, names in by_disk.values():
        yield _free(parent, names)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def _free(parent: Path, names: Iterable[str]) -> DoctorFinding:
    free = shutil.disk_usage(parent).free
    what = f"{size(free)} free at {parent} ({', '.join(names)})"
    do = "Make room, or move these folders (--set, or the settings file)"
    if free < DISK_FAILED_BYTES:
        return DoctorFinding("disk", "failed", what, do, 1)
    if free < DISK_WARNING_BYTES:
        return DoctorFinding("disk", "warning", what, do)
    return DoctorFinding("disk", "ok", what)
