"""The command that recounts the log.

    audit ──► one report, exit code 0 if it balances      audit --follow ──► /metrics, until interrupted

It repairs nothing; `streamward admin dlq` redrives records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streams.cli.runtime import AppContext, pass_call, until_stopped

if TYPE_CHECKING:
    from streams.tools.audit.reading import Audit
    from streams.tools.audit.report import Report

FINDINGS = 20
"""Findings per category in the table; JSON has all."""


def _output(_: click.Context, __: click.Parameter, value: str | None) -> str:
    from streams.output import output_or_default

    return output_or_default(value, machine="json")


@click.command()
@click.option(
    "--since",
    metavar="TIME",
    default=None,
    help="Only tasks recorded since this time or age: 2026-01-31T12:00 (UTC), 7d.",
)
@click.option("--policy", metavar="NAME", default=None, help="Only this policy.")
@click.option(
    "--settled",
    is_flag=True,
    help="Nothing is in flight any more, as after draining: count missing records as lost, whatever was committed.",
)
@click.option("--follow", is_flag=True, help="Recount repeatedly, and serve the result as metrics, until Ctrl-C.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9465",
    show_default=True,
    help="With --follow: address of /metrics.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="With --follow: seconds between recounts.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    callback=_output,
    help="Output format. Default: a table on a terminal, one JSON object in a pipe.",
)
@click.pass_context
@pass_call
def audit(
    call: AppContext,
    ctx: click.Context,
    since: str | None,
    policy: str | None,
    settled: bool,
    follow: bool,
    listen: str,
    every_s: float,
    output: str,
) -> None:
    """Check the log for lost, duplicated or made-up records.

    Recounts the topics alone, with none of the code that wrote them; the rows of data sets are built again, and what
    versions were trained on is compared with the held-out questions that they name. Names every record that does not
    add up by topic[partition]@offset. The exit code is 0 only if everything balances. Nothing is committed.
    """
    from streams.kafka.times import parse_time
    from streams.rows.training_gate import gates
    from streams.tools.audit.reading import Audit
    from streams.tools.dataset_reader import dataset_reader

    since_ms = None if since is None else parse_time(since, "--since")
    look = Audit(call.settings, policy=policy, since_ms=since_ms, settled=settled)
    if follow:
        call.working = True
        _follow(look, listen, every_s)
        return
    report = look.look().including(*dataset_reader().recount(call.settings, policy))
    for gate in gates():
        report = report.including(*gate(call.settings).recount(policy))
    if output == "json":
        from streams import output as show

        print(show.json_line(report.plain()))
    else:
        _table(report)
    ctx.exit(0 if report.balanced else 1)


def _table(report: Report) -> None:
    from streams import output as show
    from streams.tools.audit.report import CATEGORIES

    plain = report.plain()
    show.record(report.main_counts(), "table")
    print()
    for name, text, holds in report.equations():
        print(f"{name}: {text}{'' if holds else '   does not add up'}")
    for name in ("in_flight", "dead_letters"):
        print(f"{name.replace('_', ' ')}: {show.cell(plain[name]) or 'none'}")
    if report.headers_left_out:
        print(f"headers left out: those of {report.headers_left_out} records with a name that is not UTF-8")
    for category in CATEGORIES:
        findings = report.of(category)
        if not findings:
            continue
        wrong = sum(not finding.accounted for finding in findings)
        print(f"\n{category.replace('_', ' ')}: {len(findings)}" + (f", {wrong} not accounted for" if wrong else ""))
        for finding in findings[:FINDINGS]:
            mark = "  " if finding.accounted else "! "
            print(f"  {mark}{finding.at}  {show.printable(finding.what)}")
        if len(findings) > FINDINGS:
            print(f"    and {len(findings) - FINDINGS} more; --output json has all of them")
    print(f"\n{'balanced' if report.balanced else f'NOT balanced: {report.imbalance} records do not add up'}")


def _follow(look: Audit, listen: str, every_s: float) -> None:
    """Recount every `every_s` seconds and serve the newest result, until a signal; wait for an unreachable broker."""
    import contextlib
    import logging

    from streams import output as show
    from streams.errors import LogError, SettingsError
    from streams.observability.http_server import serve
    from streams.tools.audit import audit_metrics

    log = logging.getLogger("streamward.audit")
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingsError(f"--listen {listen}: expected HOST:PORT, e.g. 127.0.0.1:9465")
    board = audit_metrics.Board(fresh_s=max(60.0, 5 * every_s))
    before = 0
    with until_stopped() as stop, contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(serve(board.site, host.strip("[]"), int(port)))
        except (OSError, OverflowError) as exc:
            raise SettingsError(f"--listen {listen}: {exc}. Name another address, or port 0 for any free one") from exc
        print(show.json_line({"url": url}), flush=True)
        while not stop.is_set():
            try:
                report = look.look()
            except LogError as exc:
                log.warning("not recounted: %s", exc)
            else:
                board.put(report)
                if report.imbalance != before:
                    before = report.imbalance
                    first = f", first {report.wrong[0].at}: {report.wrong[0].what}" if before else ""
                    log.log(logging.WARNING if before else logging.INFO, "%d do not add up%s", before, first)
            stop.wait(every_s)
