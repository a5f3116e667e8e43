"""The command that shows the state of a rollout.

rollout status ──► who answers, the canary's evidence, what is waited for     --watch ──► again when it changes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from streams.cli.adapters import check_known, policy_option
from streams.cli.runtime import AppContext, json_option, pass_call, until_stopped

if TYPE_CHECKING:
    from streams.output import Column

EVERY_S = 2.0


@click.group()
def rollout() -> None:
    """Show the rollout of new versions."""


@rollout.command("status")
@policy_option
@click.option("--watch", is_flag=True, help="Print it again at every change, until Ctrl-C.")
@json_option
@pass_call
def rollout_status(call: AppContext, policy: str | None, watch: bool, output: str) -> None:
    """Show who answers, the canary's evidence, and what is waited for.

    Primary, candidate and its share; groups, mean reward, success and guardrail figures of each arm; the gain with its
    interval, which is valid however often it is looked at; and the last decisions with their reasons. Success is the
    share of right answers with Wilson's 95 % interval, which is valid for one look. If an agent refused to load a
    version, it says so, and who answers in its place. It reads the log and changes nothing.
    """
    from streams.stages.rollouts.status import RolloutWatch
    from streams.tools.dead_letters.refusals import Refusals

    name = policy or call.settings.policy.name
    watched, refusals = RolloutWatch(call.settings, name), Refusals(call.settings, name)

    def look() -> dict[str, Any]:
        rollout = watched.look()
        check_known(call, rollout.state)
        refused = refusals.look(rollout.state)
        answers = rollout.state.primary_without({one.version for one in refused})
        return rollout.plain(call.settings) | {"answers": answers, "refused": [one._asdict() for one in refused]}

    before = look()
    _show(before, output)
    if not watch:
        return
    call.working = True
    with until_stopped() as stop:
        while not stop.wait(EVERY_S):
            now = look()
            if now != before:
                _show(now, output, again=True)
                before = now


def _show(found: dict[str, Any], output: str, *, again: bool = False) -> None:
    import sys

    from streams import output as show

    if output == "json":
        print(show.json_line(found), flush=True)
        return
    if again:
        print("\x1b[2J\x1b[H" if sys.stdout.isatty() else "", end="\n")
    arms, decisions, gain = found["arms"], found["decisions"], found["gain"]
    head = {name: found[name] for name in ("policy", "mode", "primary")}
    in_force = (found["primary"], found["candidate"])
    if refused := [one for one in found["refused"] if one["version"] in in_force]:
        who = ", ".join(
            f"version {one['version']} ({one['reason']}, dead letter {one['letter'][:8]})" for one in refused
        )
        head["answers"] = f"version {found['answers']}, since an agent refused {who}"
    if found["candidate"] is not None:
        head |= {"candidate": f"{found['candidate']}, at share {found['share']:g}"}
        head |= {"gain": _gain(gain), "guardrails": "; ".join(found["guardrails"]) or "hold"}
    show.record(head | {"waits for": found["waits_for"]}, "table")
    if arms:
        print()
        show.rows(arms, [_arm_column(name) for name in arms[0] if not name.endswith(("_low", "_high"))], "table")
    if decisions:
        print()
        columns = [
            show.Column("at", lambda row: show.moment(row["at"])),
            *(show.Column(name, name) for name in ("kind", "version", "by")),
            show.Column("success", lambda row: _success(row["metrics"])),
            show.Column("reason", "reason"),
        ]
        show.rows(decisions, columns, "table")
    sys.stdout.flush()


def _arm_column(name: str) -> Column:
    from streams import output as show

    if name == "success":
        return show.Column(name, lambda row: show.with_interval(row, "success"))
    return show.Column(name.replace("_", " "), name)


def _success(metrics: Mapping[str, float]) -> str:
    """Return the success of both arms at the time of a decision, if it rests on any."""
    from streams.output import with_interval

    candidate, primary = (with_interval(metrics, f"{arm}_success") for arm in ("candidate", "primary"))
    return f"{candidate}, primary {primary}" if candidate and primary else ""


def _gain(gain: dict[str, float | None]) -> str:
    guess, low, high = gain["estimate"], gain["low"], gain["high"]
    if guess is None:
        return "nothing to compare yet"
    if low is None or high is None:
        return f"{guess:+.4g}, and too few groups for an interval"
    return f"{guess:+.4g}, between {low:+.4g} and {high:+.4g}"
