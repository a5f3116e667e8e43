"""`streamward adapters rollout`: the state of a rollout.

adapters rollout ──► serving versions, the canary's evidence, the next step     --watch ──► again at every change
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from streams.cli.adapters import check_known, policy_option
from streams.cli.release import adapters
from streams.cli.runtime import AppContext, json_option, pass_call, until_stopped

if TYPE_CHECKING:
    from streams.output import Column

__all__ = ["adapters"]
"""The group of commands, with those of release.py."""
EVERY_S = 2.0


@adapters.command("rollout")
@policy_option
@click.option("--watch", is_flag=True, help="Print again at every change, until Ctrl-C.")
@json_option
@pass_call
def adapters_rollout(call: AppContext, policy: str | None, watch: bool, output: str) -> None:
    """Show the rollout of new versions and its evidence.

    Primary, candidate and its share; groups, mean reward, success and guardrail figures of each arm; the gain with an
    interval that stays valid under repeated looks; what the rollout waits for; and the last decisions with their
    reasons. Success is the share of correct answers with Wilson's 95 % interval, which is valid for one look. If an
    agent refused to load a version, it names the version that answers instead. It reads the log and changes nothing.
    """
    from streams.stages.rollouts.status import RolloutWatch
    from streams.tools.dead_letters.refusals import Refusals

    name = policy or call.settings.policy.name
    watched, refusals = RolloutWatch(call.settings, name), Refusals(call.settings, name)

    def look() -> dict[str, Any]:
        rollout = watched.look()
        check_known(call, rollout.state)
        refused = refusals.look(rollout.state)
        answers = rollout.state.primary_without({refusal.version for refusal in refused})
        return rollout.plain(call.settings) | {
            "answers": answers,
            "refused": [refusal._asdict() for refusal in refused],
        }

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


def _show(state: dict[str, Any], output: str, *, again: bool = False) -> None:
    import sys

    from streams import output as show

    if output == "json":
        print(show.json_line(state), flush=True)
        return
    if again:
        print("\x1b[2J\x1b[H" if sys.stdout.isatty() else "", end="\n")
    arms, decisions, gain = state["arms"], state["decisions"], state["gain"]
    head = {name: state[name] for name in ("policy", "mode", "primary")}
    in_force = (state["primary"], state["candidate"])
    refused = [refusal for refusal in state["refused"] if refusal["version"] in in_force]
    if refused:
        texts = (f"version {r['version']} ({r['reason']}, dead letter {r['letter'][:8]})" for r in refused)
        head["answers"] = f"version {state['answers']}, since an agent refused {', '.join(texts)}"
    if state["candidate"] is not None:
        head |= {"candidate": f"{state['candidate']}, at share {state['share']:g}"}
        head |= {"gain": _gain(gain), "guardrails": "; ".join(state["guardrails"]) or "hold"}
    show.record(head | {"waits for": state["waits_for"]}, "table")
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
    """Return the success of both arms at a decision; empty if the decision is not based on any."""
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
