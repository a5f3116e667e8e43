"""The commands that install the dashboards in Grafana: admin dashboards apply, check, alerts.

    apply ──► created or updated, and read back      check ──► exit code 0 if they are equal
    alerts ──► the rules of Prometheus, those of plugins included

The Grafana of docker compose and of the chart reads the files directly and needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streams.cli.runtime import output_option

if TYPE_CHECKING:
    from streams.observability.grafana.upload import DashboardState, Grafana
    from streams.output import Output

URL = click.option(
    "--grafana", "url", metavar="URL", required=True, help="Address of Grafana, e.g. http://localhost:3000."
)
TOKEN = click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the token of a service account.  [default: anonymous requests]",
)


@click.group()
def dashboards() -> None:
    """Install the dashboards in Grafana, print the alerts."""


@dashboards.command("apply")
@URL
@TOKEN
@output_option
def apply(url: str, token_file: Path | None, output: Output) -> None:
    """Create or update each dashboard, and read it back.

    They are in Grafana's folder Streamward. Manual changes there are overwritten; `check` shows them.
    """
    from streams.observability.grafana.dashboards import DASHBOARDS

    _show(_grafana(url, token_file).apply(DASHBOARDS), output)


@dashboards.command("check")
@URL
@TOKEN
@output_option
@click.pass_context
def check(ctx: click.Context, url: str, token_file: Path | None, output: Output) -> None:
    """Compare each dashboard in Grafana with ours.

    Shows differences and writes nothing. The exit code is 0 only if all are equal.
    """
    from streams.observability.grafana.dashboards import DASHBOARDS

    states = _grafana(url, token_file).check(DASHBOARDS)
    _show(states, output)
    ctx.exit(0 if all(dashboard.state == "same" for dashboard in states) else 1)


@dashboards.command("alerts")
def write_alerts() -> None:
    """Print the alerts as rules for Prometheus.

    They are those of the core and of all loaded plugins.
    """
    from streams.observability.grafana import alerts

    click.echo(alerts.text(), nl=False)


def _grafana(url: str, token_file: Path | None) -> Grafana:
    from streams.errors import SettingsError
    from streams.observability.grafana.upload import Grafana

    if token_file is None:
        return Grafana(url)
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"--token-file {token_file}: {exc}") from exc
    if not token:
        raise SettingsError(f"--token-file {token_file} is empty; it should hold the token of a service account")
    return Grafana(url, token)


def _show(states: Sequence[DashboardState], output: Output) -> None:
    from streams import output as show

    columns = [
        *show.columns("dashboard, state"),
        show.Column("differences", lambda row: "; ".join(row["differences"])),
    ]
    show.rows((dashboard._asdict() for dashboard in states), columns, output)
