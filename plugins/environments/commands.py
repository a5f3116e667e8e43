"""The commands of environments: agents environments list, try, replay.

name, seed ──► episodes/trial_episode.py ──► the same episode twice, or an error
tasks, trajectories, turns ──► episode_replay.py ──► equal to the recorded episode, or the difference
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, output_option, pass_call

if TYPE_CHECKING:
    from streams.output import Output


@click.group()
def environments() -> None:
    """List, try and replay the environments that agents act in."""


@environments.command("list")
@output_option
@pass_call
def environments_list(call: AppContext, output: Output) -> None:
    """Print the listed environments, with their settings and defaults.

    Environments by reference (module:Class, gymnasium:ID, textarena:ID, openenv:URL, mcp:SERVER) are not listed;
    `agents environments try` opens one.
    """
    from plugins.environments.listed import LISTED
    from streams import output as show

    columns = [
        *show.columns("name, version, >turns=max_turns"),
        show.Column("settings", lambda row: ", ".join(f"{key}={value}" for key, value in row["settings"].items())),
    ]
    rows = [
        {
            "name": name,
            "version": game.version,
            "max_turns": game(game.options_type()).max_turns,
            "settings": {key: field.default for key, field in game.options_type.model_fields.items()},
        }
        for name, game in LISTED.items()
    ]
    show.rows(rows, columns, output)


@environments.command("try")
@click.argument("name", metavar="NAME|REFERENCE")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same episode.")
@click.option("--settings", default="{}", metavar="JSON", help="Settings of the environment.")
@click.option(
    "--action",
    "actions",
    multiple=True,
    metavar="TEXT",
    help='Action of the policy: text, or a tool call, e.g. {"name": "add", "arguments": {"a": 2}}; repeat it for more '
    "turns.  [default: random actions]",
)
@click.option("--max-turns", type=click.IntRange(1, 1024), default=32, show_default=True, help="Maximum of actions.")
@output_option
@pass_call
def environments_try(
    call: AppContext, name: str, seed: int, settings: str, actions: tuple[str, ...], max_turns: int, output: Output
) -> None:
    """Play an episode and check that its seed repeats it.

    It is played three times: after two resets, and in a new object. An environment by reference runs in a process with
    the limits environments.timeout_s and environments.memory_mib, as for tasks; its output goes to stderr. Its module
    must be in environments.modules, its server in environments.servers.
    """
    from contextlib import closing

    from plugins.environments.environment_pool import EnvironmentPool
    from plugins.environments.episodes.trial_episode import handwritten_actions, try_twice
    from plugins.environments.settings import Environments
    from schemas.events import EpisodeStart
    from streams import output as show

    start = EpisodeStart(name=name, settings=settings, seed=seed)
    scripted = handwritten_actions(actions) or None
    with closing(EnvironmentPool(call.settings.of_plugin(Environments), call.settings)) as pool:
        trial = try_twice(pool.open, start, max_turns, scripted)
    rows: list[dict[str, Any]] = [_row("", trial.observation.messages, trial.observed[0].digest)]
    for (action, result), observed in zip(trial.steps, trial.observed[1:], strict=True):
        outcome = {"reward": result.reward, "ok": result.ok, "tool": result.tool, "ended": result.is_over}
        written = " ".join([action.text, *(f"{call.name}({call.arguments})" for call in action.calls)]).strip()
        rows.append(_row(written, result.observation.messages, observed.digest) | outcome)
    columns = [
        show.Column("action", "action"),
        show.Column("reward", lambda row: "" if row.get("reward") is None else f"{row['reward']:g}", right=True),
        show.Column("ok", lambda row: row.get("ok", "")),
        show.Column("shown", "shown"),
    ]
    show.rows(rows, columns, output)
    success = {True: "reached", False: "not reached", None: "open"}[trial.success]
    click.echo(f"Repeatable from seed {seed}: {len(trial.steps)} actions; goal {success}.", err=True)


@environments.command("replay")
@click.argument("name", metavar="[TASK|TRAJECTORY]", required=False)
@click.option("--all", "replay_all", is_flag=True, help="Replay every episode in the log.")
@output_option
@pass_call
def environments_replay(call: AppContext, name: str | None, replay_all: bool, output: Output) -> None:
    """Replay recorded episodes and compare them.

    TASK or TRAJECTORY is an id, or the beginning of one. Nothing is sampled and nothing is written. Observations,
    rewards and success must equal the recorded ones; the command reports each difference and ends with an error.
    """
    from contextlib import closing

    from plugins.environments import episode_replay
    from plugins.environments.environment_pool import EnvironmentPool
    from plugins.environments.settings import Environments
    from streams import output as show
    from streams.errors import EventError, NotFoundError, SettingsError

    if (name is None) != replay_all:
        raise SettingsError("name a task or a trajectory, or give --all")
    recorded = episode_replay.read_episodes(call.settings, name)
    if not recorded:
        problem = "no episode is in the log" if name is None else f"no episode begins with {name!r}"
        raise NotFoundError(f"{problem}; `streamward agents list environment` shows the runs of the built-in agent")
    with closing(EnvironmentPool(call.settings.of_plugin(Environments), call.settings)) as pool:
        runs = list(episode_replay.replay_episodes(recorded, pool.open))
    differ = [run for run in runs if run.differs is not None]
    skipped = [run for run in runs if run.skipped is not None]
    for run in differ:
        click.echo(f"{run.trajectory_id} ({run.environment}): {run.differs}", err=True)
    for reason in dict.fromkeys(run.skipped for run in skipped):
        click.echo(f"not replayed: {reason}", err=True)
    counts = {"episodes": len(runs) - len(skipped), "turns": sum(run.turns for run in runs)}
    show.record(counts | {"differ": len(differ), "not_replayed": len(skipped)}, output)
    if differ:
        raise EventError(f"{len(differ)} of {len(runs)} episodes differ from the log")


def _row(action: str, messages: Any, digest: str) -> dict[str, Any]:
    return {"action": action, "shown": "\n".join(message.content for message in messages), "digest": digest}
