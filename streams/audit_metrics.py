"""Say over HTTP how the last recount came out.

    Report ──► GET /metrics   text format 0.0.4 of Prometheus
           └─► GET /healthz   200 while recounts succeed, else 503

Not covered: TLS and access rights. It listens on the loopback address unless told otherwise.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from streams.audit import CATEGORIES, Report

IMBALANCE = "streamward_ledger_imbalance_records"
"""The gauge that must be 0."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(report: Report, *, at_s: float) -> str:
    """Return the metrics of a report that was made at `at_s`, seconds since the epoch."""
    lines = [
        f"# HELP {IMBALANCE} Records that are lost, doubled, phantom or contradict others, unaccounted for.",
        f"# TYPE {IMBALANCE} gauge",
        f"{IMBALANCE} {report.imbalance}",
        "# HELP streamward_ledger_in_flight_records What is on its way and has no effect yet.",
        "# TYPE streamward_ledger_in_flight_records gauge",
        f"streamward_ledger_in_flight_records {sum(report.in_flight.values())}",
        "# HELP streamward_ledger_findings_records Records by what was found about them.",
        "# TYPE streamward_ledger_findings_records gauge",
    ]
    for category in CATEGORIES:
        found = report.of(category)
        for accounted in (True, False):
            count = sum(one.accounted is accounted for one in found)
            labels = f'category="{category}",accounted="{str(accounted).lower()}"'
            lines.append(f"streamward_ledger_findings_records{{{labels}}} {count}")
    lines += [
        "# HELP streamward_adapters_refused_total Adapter versions that an agent would not serve, by reason.",
        "# TYPE streamward_adapters_refused_total counter",
        *(
            f'streamward_adapters_refused_total{{reason="{_label(reason)}"}} {count}'
            for reason, count in sorted(report.refused_adapters.items())
        ),
        "# HELP streamward_ledger_recount_timestamp_seconds When the last recount ended.",
        "# TYPE streamward_ledger_recount_timestamp_seconds gauge",
        f"streamward_ledger_recount_timestamp_seconds {at_s:.3f}",
    ]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    """Return the value of a label as the format wants it: anybody may write a dead letter."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Board:
    """The newest report, for whoever asks."""

    def __init__(self, *, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._text = ""
        self._at = 0.0

    def put(self, report: Report) -> None:
        """Show this report from now on."""
        self._text, self._at = text(report, at_s=time.time()), time.monotonic()

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and body for a GET of `path`."""
        if path == "/metrics":
            return (200, self._text) if self._text else (503, "no recount yet\n")
        if path == "/healthz":
            is_fresh = bool(self._text) and time.monotonic() - self._at < self._fresh_s
            return (200, "ok\n") if is_fresh else (503, "no recount succeeded lately; see the log of this process\n")
        return 404, "there are /metrics and /healthz\n"


@contextlib.contextmanager
def serve(board: Board, host: str, port: int) -> Iterator[str]:
    """Serve `board` while the block runs, and yield its URL; port 0 takes any free one. Raises OSError if taken."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = board.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scrape is no news."""

    server = ThreadingHTTPServer((host, port), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
