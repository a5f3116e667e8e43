"""The commands that show adapter versions: list, show, lineage, diff, export. Those that change them: release.py."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, VersionNumber, output_option, pass_call, source_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streams.adapters.decisions import AdapterHistory
    from streams.adapters.versions import AdapterState, Version
    from streams.output import Output
    from streams.rows.training_gate import VersionExposure
    from streams.tools.archive.history import Source
    from streams.tools.lineage import LineageStep

policy_option = click.option("--policy", default=None, metavar="NAME", help="Policy.  [default: policy.name]")


@click.group()
def adapters() -> None:
    """Inspect, promote and retire adapter versions."""


@adapters.command("list")
@policy_option
@click.option("--registry", type=click.Path(path_type=Path), metavar="FILE", help="Also write adapter_registry.json.")
@output_option
@pass_call
def adapters_list(call: AppContext, policy: str | None, registry: Path | None, output: Output) -> None:
    """Print every version, its status and held-out scores.

    Also shows versions that an agent refused to load. Status `refused` marks a version number that a producer claimed
    out of turn: there is no such version.
    """
    from streams import output as show
    from streams.adapters.version_row import row_of
    from streams.adapters.versions import read_state
    from streams.tools.dead_letters.refusals import Refusals

    name = policy or call.settings.policy.name
    state = read_state(call.settings, name)
    check_known(call, state)
    refused = {refusal.version: refusal._asdict() for refusal in Refusals(call.settings, name).look(state)}
    has_imports = any(version.trained_elsewhere for version in state.versions.values())
    has_unchanged = any(version.is_unchanged for version in state.versions.values())
    columns = [
        show.Column("version", "version", right=True),
        show.Column("status", _status),
        show.Column("parent", "parent_version", right=True),
        show.Column("batches", lambda row: row["batches"] or row["tuned_by"] or ("outside" if row["outside"] else "")),
        *([show.Column("elsewhere", lambda row: row.get("trained_elsewhere") or "")] if has_imports else []),
        *([show.Column("changes", lambda row: "nothing" if row["unchanged"] else "")] if has_unchanged else []),
        show.Column("held out", lambda row: {suite: _score(metrics) for suite, metrics in row["held_out"].items()}),
        show.Column("sha256", lambda row: (row["sha256"] or "")[:12]),
        show.Column("age", lambda row: _age(row["created_at"])),
        *([show.Column("refused", lambda row: refused_text(row["refused"]))] if refused or state.strays else []),
        show.Column("uri", _place, optional=True),
    ]
    rows = [
        row_of(state, number)
        | {
            "refused": refused.get(number),
            "trained_elsewhere": version.trained_elsewhere,
            "unchanged": version.is_unchanged,
        }
        for number, version in sorted(state.versions.items())
    ]
    rows += [_stray(state, number) for number in sorted(state.strays)]
    if registry is not None:
        from streams.cli import adapter_registry

        adapter_registry.write(registry, adapter_registry.registry(state, call.settings.model.base))
    show.rows(rows, columns, output)


@adapters.command("show")
@click.argument("version", type=VersionNumber(min=0))
@click.option(
    "--suite",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Look for its questions, too, in what the version was trained on.",
)
@policy_option
@output_option
@pass_call
def adapters_show(call: AppContext, version: int, suite: Path | None, policy: str | None, output: Output) -> None:
    """Print what the log records about a version.

    Its recipe, metrics, held-out scores, files, agents and events, whether an agent refused to load it, and how many
    questions of guard.suite, of the suites that versions of its policy were asked and of --suite it was trained on.
    """
    from streams import output as show
    from streams.adapters.version_row import row_of
    from streams.errors import SettingsError
    from streams.rows.training_gate import gates
    from streams.tools.dead_letters.refusals import Refusals

    if suite is not None and not gates():
        raise SettingsError(f"--suite {suite}: no loaded plugin looks for its questions; see plugins.load")
    history = read(call, policy)
    row = row_of(history.state, version)
    refusals = Refusals(call.settings, history.state.policy).look(history.state)
    row["refused"] = next((refusal._asdict() for refusal in refusals if refusal.version == version), None)
    trained = history.trained_event(version)
    exposures = [gate(call.settings).exposure(history, version, suite) for gate in gates()]
    for exposure in exposures:
        row |= exposure.row
    row |= {
        "recipe": dict(trained.recipe) if trained else {},
        "files": [
            {"path": f.path, "bytes": f.bytes, "sha256": f.sha256} for f in history.state.versions[version].files
        ],
        "agents": [
            {"agent_id": agent.agent_id, **(asdict(agent.program) if agent.program else {})}
            for agent in (trained.agents if trained else ())
        ],
        "events": [
            {
                "at": str(coordinates),
                "created_at": show.moment(event.created_at),
                "kind": event.kind,
                "version": event.version,
                "actor": event.actor,
                "reason": event.reason,
                "expected_version": event.expected_version,
                "share": event.share,
                "verdict": event.verdict,
                "suite": event.suite,
                "refused": history.no_effect(coordinates, event),
            }
            for coordinates, event in history.about(version)
        ],
    }
    if output == "jsonl":
        print(show.json_line(row))
        return
    _show_version(row, exposures)


@adapters.command("lineage")
@click.argument("version", type=VersionNumber(min=0))
@click.option("--steps", type=click.IntRange(min=1), default=None, help="Only the newest N steps.")
@policy_option
@source_option
@output_option
@pass_call
def adapters_lineage(
    call: AppContext, version: int, steps: int | None, policy: str | None, source: Source, output: Output
) -> None:
    """Print the training data of a version, step by step.

    From the version back to the base model: the batches of each step, and the coordinates of its groups, responses,
    rewards and tasks, as topic[partition] first-last (number of offsets).
    """
    from streams import output as show
    from streams.tools import lineage
    from streams.tools.archive import history

    trained = lineage.steps(call.settings, read(call, policy), version, history.of(call.settings, source), last=steps)
    if output == "jsonl":
        for step in trained:
            print(show.json_line(step.plain()))
        return
    for step in trained:
        print(f"version {step.version} ({step.status}), from {_origin(step)}")
        print(f"  trained    {step.trained_at}")
        for label, ranges in step.made_of.items():
            for number, offsets in enumerate(ranges):
                print(f"  {label if number == 0 else '':<10} {offsets}")
        for label, count in step.missing.items():
            print(f"  {label:<10} of {count} {'groups' if label == 'tasks' else 'responses'} are gone: retention")
    first = trained[-1].parent if trained else version
    if first is not None:
        print(f"version {first} is the base model" if first == 0 else f"and so on: version {first} has a parent")


def _origin(step: LineageStep) -> str:
    from schemas.conventions import trained_elsewhere

    tuning = step.tuning
    if tuning is None:
        batches = "no batch" if step.first_batch is None else f"batches {step.first_batch}-{step.last_batch}"
        if step.imported:
            return (
                f"version {step.parent}, trained elsewhere ({trained_elsewhere(step.imported)}) in place of {batches}"
            )
        return f"version {step.parent} by {batches}"
    policy = "" if tuning.start_policy is None else f" of {tuning.start_policy}"
    data = tuning.file or f"{len(tuning.groups)} groups of {tuning.groups_policy}"
    if tuning.dataset is not None:
        data = f"data set {tuning.dataset}@{(tuning.dataset_digest or '')[:12]}"
    return f"version {tuning.start_version}{policy} by {tuning.method} on {tuning.examples} examples ({data})"


@adapters.command("diff")
@click.argument("first", metavar="A", type=click.IntRange(min=0))
@click.argument("second", metavar="B", type=click.IntRange(min=0))
@click.option("--weights", is_flag=True, help="Fetch both adapters and compare them tensor by tensor.")
@policy_option
@output_option
@pass_call
def adapters_diff(call: AppContext, first: int, second: int, weights: bool, policy: str | None, output: Output) -> None:
    """Print the differences between two versions.

    The recipe's settings that differ, metrics and scores side by side, files, and the batches between them.
    """
    from streams import output as show
    from streams.tools import lineage

    history = read(call, policy)
    difference = lineage.difference(history, first, second)
    if weights:
        versions = [history.state.versions[number] for number in (first, second)]
        difference["tensors"] = _tensors(call, versions, history.state.policy)
    if output == "jsonl":
        print(show.json_line(difference))
        return
    _show_difference(difference)


@adapters.command("export")
@click.argument("version", type=VersionNumber(min=1))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--merge", is_flag=True, help="Merge the adapter into the base model.")
@policy_option
@output_option
@pass_call
def adapters_export(
    call: AppContext, version: int, folder: Path, merge: bool, policy: str | None, output: Output
) -> None:
    """Export a version for other programs.

    transformers, peft and vLLM load FOLDER as it is, with the tokenizer and its chat template. Without --merge it holds
    an adapter, whose config names the base model: a hub id, or an absolute path that is valid only on this machine.
    """
    from streams import output as show
    from streams.adapters.version_row import row_of
    from streams.errors import NotFoundError

    history = read(call, policy)
    row_of(history.state, version)  # raises if there is none
    trained = history.trained_event(version)
    if trained is None or history.state.versions[version].status == "retired":
        raise NotFoundError(f"version {version} of {history.state.policy} has no files in the store: it is retired")
    from trainer.versions.export_adapter import export

    show.record(asdict(export(call.settings, trained, folder, merge=merge)), output)


# --- reading ----------------------------------------------------------------------------------------------------------


def read(call: AppContext, policy: str | None) -> AdapterHistory:
    """Return the history of a policy's adapters. Raises NotFoundError for an unknown policy."""
    from streams.adapters.decisions import read_history

    history = read_history(call.settings, policy or call.settings.policy.name)
    check_known(call, history.state)
    return history


def check_known(call: AppContext, state: AdapterState) -> None:
    """Raise NotFoundError, which names the policies of the log, if it has some and this is none of them."""
    from streams.errors import check_policy
    from streams.tools.status import known_policies

    if len(state.versions) == 1:
        check_policy(state.policy, known_policies(call.settings))


def _stray(state: AdapterState, number: int) -> dict[str, Any]:
    """Return the row of a version number that was claimed out of turn: no version, so its other columns are empty."""
    from streams import output as show
    from streams.adapters.version_row import row_of

    empty = dict.fromkeys([*row_of(state, 0), "trained_elsewhere", "unchanged"]) | {"held_out": {}, "metrics": {}}
    stray = state.strays[number]
    row = {"policy": state.policy, "version": number, "created_at": show.moment(stray.event.created_at)}
    return empty | row | {"status": "refused", "refused": {"version": number, "reason": stray.reason}}


def _tensors(call: AppContext, versions: list[Version], policy: str) -> list[dict[str, Any]]:
    """Compare two adapters tensor by tensor. Raises EventError if one differs from the log, NotFoundError."""
    from streams.adapters import signing, store
    from streams.errors import NotFoundError
    from streams.files import Scratch
    from trainer.versions.differences import relative_changes

    with Scratch("diff") as scratch:
        folders = []
        for version in versions:
            if version.uri is None or version.status == "retired":
                without = "it is an outside model" if version.outside else "it is the base model"
                raise NotFoundError(
                    f"version {version.version} of {policy} has no files in the store "
                    f"({'it is retired' if version.uri else without}); leave --weights out"
                )
            signed = signing.expected_signer(call.settings.adapters, policy, version.version)
            folders.append(store.fetch(call.settings.adapters.store, version.uri, version.files, scratch, signed))
        return [change._asdict() for change in relative_changes(*folders)]


# --- printing ---------------------------------------------------------------------------------------------------------


TABLES = {
    "files": ("path", "bytes", "sha256"),
    "agents": ("agent_id", "program", "file", "sha256", "commit", "dirty"),
}


def _show_version(row: dict[str, Any], exposures: Sequence[VersionExposure]) -> None:
    from streams import output as show

    row["refused"] = refused_text(row["refused"])
    parts = {name: row.pop(name) for name in ("metrics", "held_out", "recipe", "files", "agents", "events")}
    apart = {name for exposure in exposures for name in exposure.row}
    show.record({name: value for name, value in row.items() if value not in (None, "") and name not in apart}, "table")
    for sentence in (sentence for exposure in exposures for sentence in exposure.sentences):
        print(f"\n{sentence}")
    for title, part in parts.items():
        if not part:
            continue
        print(f"\n{title.replace('_', ' ')}")
        if isinstance(part, dict):
            show.record(part, "table")
        elif title in TABLES:
            show.rows(part, [show.Column(name, name) for name in TABLES[title]], "table")
        else:
            time_column = show.Column("time", "created_at")
            columns = [show.Column(name, name) for name in ("kind", "version", "actor", "at")]
            show.rows(part, [time_column, *columns, show.Column("reason", _reason)], "table")


def _reason(event: Mapping[str, Any]) -> str:
    """Return the reason of an event, and if it had no effect, the reason for that."""
    return event["reason"] if event["refused"] is None else f"{event['reason']} (no effect: {event['refused']})"


def _show_difference(difference: dict[str, Any]) -> None:
    from streams import output as show

    titles = [f"version {number}" for number in difference["versions"]]
    batches = difference["batches_between"]
    show.record(
        {
            "common parent": difference["common_parent"],
            "batches between": "none" if batches is None else f"{batches['first']}-{batches['last']}",
            "base model": "the same" if len({*difference["base_digest"]} - {None}) < 2 else "another",
        },
        "table",
    )
    held_out: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for suite, scores in difference["held_out"].items():
        held_out |= {f"{suite}/{name}": pair for name, pair in scores.items()}
    for path, part in difference["files"].items():
        label = f"{path} ({'the same' if part['same'] else 'differs'})"
        files[label] = [_size(number) for number in part["bytes"]]
    sections = {"recipe": difference["recipe"], "metrics": difference["metrics"], "held out": held_out, "files": files}
    for title, pairs in sections.items():
        _pairs(title, titles, pairs)
    if "tensors" in difference:
        print()
        columns = [
            show.Column("tensor", "tensor"),
            show.Column("shape", lambda row: "x".join(map(str, row["shape"]))),
            show.Column("norm", "norm", right=True),
            show.Column("change", lambda row: "" if row["relative"] is None else f"{row['relative']:.3%}", right=True),
        ]
        show.rows(difference["tensors"], columns, "table")


def _pairs(title: str, titles: list[str], pairs: Mapping[str, list[Any]]) -> None:
    from streams import output as show

    if not pairs:
        return
    print()
    columns = [show.Column(title, "name"), *(show.Column(name, name) for name in titles)]
    show.rows(
        [{"name": name, titles[0]: pair[0], titles[1]: pair[1]} for name, pair in pairs.items()], columns, "table"
    )


def _size(bytes_: int | None) -> str:
    from streams import output as show

    return "" if bytes_ is None else show.size(bytes_)


def refused_text(refused: Mapping[str, Any] | None) -> str | None:
    """Return in a few words why a version was refused, and if an agent refused it, which version answers instead."""
    if refused is None:
        return None
    instead = f"; version {refused['answers']} answers in its place" if "answers" in refused else ""
    return f"{refused['reason']}{instead}"


def _place(row: Mapping[str, Any]) -> str:
    """Return where its files are, or where the model is that answers."""
    return row["uri"] or (f"{row['outside']['model']} at {row['outside']['url']}" if row["outside"] else "")


def _status(row: Mapping[str, Any]) -> str:
    return str(row["status"]) if row["share"] is None else f"{row['status']} {row['share']:.0%}"


def _age(created_at: str | None) -> str:
    """Return an age in its largest unit."""
    if not created_at:
        return ""
    seconds = max(0.0, time.time() - datetime.fromisoformat(created_at).timestamp())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _score(metrics: Mapping[str, float]) -> str:
    """Return the headline metric of a held-out evaluation, its mean reward if that differs, and its number of tasks."""
    from streams.adapters.retention import headline

    name = headline(metrics)
    if name is None:
        return "no metric"
    reward = f", reward {metrics['mean_reward']:.3f}" if name != "mean_reward" and "mean_reward" in metrics else ""
    count = f" (n {metrics['n']:.0f})" if "n" in metrics else ""
    return f"{metrics[name]:.3f}{reward}{count}"
