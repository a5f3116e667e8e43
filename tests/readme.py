"""Run the README and the pages behind it as their reader would: every command, in order, on a terminal.

    README.md, docs/*.md ──► console, sh, python and toml blocks ──► bash on a pseudo-terminal ──► what each printed

    python -m tests.readme    print the commands of all pages with what they print now

In a `console` block a line that begins with `$ ` is a command and what follows is its output; an `sh` block is one
script. A `python` or `toml` block is a file, named by its first line (`# NAME`). The output must be what was printed,
line by line, where `…` stands for anything, a line of `…` for any lines, and times, ids, ports and sizes for any other.

One node serves all pages. The README starts it in an empty folder. Pages in `CONTINUED` are walked in that folder,
after the README's jobs and before its last block, which stops everything. Pages in `ALONE` have a folder and a bash of
their own.

Not covered: what `make` does. Its targets take minutes and have tests of their own; here they only have to exist and to
call what they are said to (`MAKES`). Broker and server take free ports and the judge is a double, so that tests can run
beside each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from streams.kafka.node import process as broker
from streams.settings.load import section_types
from streams.settings.model import Broker
from tests.support.log.shared_node import SharedNode

ROOT = Path(__file__).parents[1]
FIRST = "README.md"
CONTINUED = ("docs/promises.md", "docs/replay.md", "docs/archive.md", "docs/tasks.md", "docs/scorers.md")
ALONE = (
    "docs/release.md",
    "docs/kafka.md",
    "docs/agents.md",
    "docs/environments.md",
    "docs/jobs.md",
    "docs/gateway.md",
    "docs/improve.md",
    "docs/data.md",
    "docs/prompts.md",
    "docs/mcp.md",
)
WALKED = (FIRST, *CONTINUED, *ALONE)
STOP = "kill $(jobs -p); wait"
"""The command with which the README's last block begins."""
COLUMNS = 120
LIMIT_S = 90.0
"""For one command."""
MAKES = {
    "make demo": ".venv/bin/streamward demo",
    "make test": ".venv/bin/python -m pytest",
    "make bench": "-m tests.benchmarks",
    "make chaos": "-m tests.chaos",
    "make check": ".venv/bin/mypy",
    "make setup-gym": "--editable '.[gym]'",
}
"""What a target must call."""
SERVED = "8790"
"""The port of `streamward serve` on the pages."""
LOOP = r"""
exec < /dev/null
again() { return $code; }
while IFS= read -r -d '' command <&3; do again; eval "$command"; code=$?; printf '\036%d\036' $code; done
"""
LOGIN = "import os, sys; os.login_tty(0); os.execvp('bash', ['bash', '--norc', '-c', sys.argv[1]])"
"""Makes the pseudo-terminal the controlling one: all that runs in it ends with whoever holds its other end."""


class Step(NamedTuple):
    """One command of a page, or one file."""

    page: str
    line: int
    command: str
    expected: str = ""
    file: str | None = None


class Ran(NamedTuple):
    """What a step did."""

    step: Step
    code: int
    output: str


def steps(name: str) -> Iterator[Step]:
    """Yield what a page tells its reader to do, in order."""
    page = (ROOT / name).read_text(encoding="utf-8")
    for block in re.finditer(r"^```(console|sh|python|toml)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        kind, text = block[1], block[2]
        line = page.count("\n", 0, block.start()) + 2
        if kind == "sh":
            yield Step(name, line, text)
        elif kind == "console":
            yield from _commands(name, text, line)
        else:
            first, _, _ = text.partition("\n")
            if not re.fullmatch(r"# [\w.]+", first):
                raise ValueError(f"{name}:{line}: a {kind} block begins with its file's name, e.g. `# tasks.py`")
            yield Step(name, line, text, file=first.removeprefix("# "))


def _commands(name: str, text: str, line: int) -> Iterator[Step]:
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        if part:
            head, _, expected = part.partition("\n")
            if not head.startswith("$ "):
                raise ValueError(f"{name}:{line}: a console block begins with a command, `$ …`; got {head!r}")
            yield Step(name, line, head.removeprefix("$ "), expected)
        line += part.count("\n")


# --- running ----------------------------------------------------------------------------------------------------------


def walk(pages: tuple[str, ...] = CONTINUED + ALONE) -> list[Step]:
    """Return the steps of the README and of `pages`, in the order in which they are run."""
    first = list(steps(FIRST))
    end = next(number for number, step in enumerate(first) if step.command == STOP)
    return [*first[:end], *(step for name in pages for step in steps(name)), *first[end:]]


def run(walked: list[Step], folder: Path) -> Iterator[Ran]:
    """Take the steps of a walk in `folder`, which is empty, and yield what each did.

    What a page of ALONE leaves running ends with its last step: it would take time from the pages after it.
    """
    port = _free_port()
    with ExitStack() as stack:
        judge = stack.enter_context(_judge())
        stack.callback(broker.stop, Broker(data_dir=folder / ".streamward" / "kafka"))
        first = stack.enter_context(_place(folder))
        for page, of_page in groupby(walked, key=lambda step: step.page):
            place = _place(folder / Path(page).stem) if page in ALONE else nullcontext(first)
            with place as (where, bash, served):
                for step in of_page:
                    command = step.command.replace(SERVED, served)
                    yield _run_step(step._replace(command=command), where, bash, port, judge)


@contextmanager
def _place(folder: Path) -> Iterator[tuple[Path, Callable[[str], tuple[int, str]], str]]:
    """Give a folder with the program in it, a bash there, and the port of its server."""
    folder.mkdir(exist_ok=True)
    (folder / ".venv").symlink_to(sys.prefix)
    with _bash(folder) as bash:
        yield folder, bash, str(_free_port())


def run_page(name: str, folder: Path, *, more: str, limit_s: float) -> Iterator[Ran]:
    """Walk one page in an empty folder, on a node that it starts itself, and yield what each step did.

    `more` is added to its settings file; `limit_s` is for one command.
    """
    (folder / ".venv").symlink_to(sys.prefix)
    served = str(_free_port())
    with _bash(folder, limit_s) as bash:
        for step in (step._replace(command=step.command.replace(SERVED, served)) for step in steps(name)):
            if step.file is not None:
                (folder / step.file).write_text(step.command + (more if _is_settings(step) else ""))
            yield Ran(step, 0, "") if step.file is not None else Ran(step, *bash(step.command))


def _is_settings(step: Step) -> bool:
    """Return whether a file has settings and leaves it open where the log is."""
    sections = tomllib.loads(step.command) if step.file is not None and step.file.endswith(".toml") else {}
    return bool(sections) and sections.keys() <= section_types().keys() - {"kafka"}


def _run_step(step: Step, folder: Path, bash: Callable[[str], tuple[int, str]], port: int, judge: str) -> Ran:
    if step.file is not None:
        more = f'\n[kafka]\nbootstrap = "127.0.0.1:{port}"\n' if _is_settings(step) else ""
        (folder / step.file).write_text(step.command + more)
        return Ran(step, 0, "")
    text = step.command.replace("127.0.0.1:8000", judge)
    text = text.replace("streamward admin broker start", f"streamward admin broker start --port {port}")
    if text.startswith("make "):
        text = f"make -n -B -C {ROOT} {text.removeprefix('make ')}"
    return Ran(step, *bash(text))


@contextmanager
def _bash(folder: Path, limit_s: float = LIMIT_S) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Give a function that runs one command in a bash of its own and returns (exit code, what the terminal showed)."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    commands, write = os.pipe()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMWARD_", "PYTEST_"))}
    bash = subprocess.Popen(
        [sys.executable, "-c", LOGIN, LOOP.replace("<&3", f"<&{commands}")],
        cwd=folder,
        env=env | {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(COLUMNS)},
        stdin=end,
        stdout=end,
        stderr=end,
        pass_fds=[commands],
    )
    os.close(end)
    os.close(commands)

    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(terminal, select.POLLIN)

    def run_one(command: str) -> tuple[int, str]:
        os.write(write, command.encode() + b"\0")
        shown, until = b"", time.monotonic() + limit_s
        while not (ended := re.search(rb"\x1e(\d+)\x1e", shown)):
            left = until - time.monotonic()
            if left < 0 or not poller.poll(1000 * left):
                raise TimeoutError(f"{command!r} took more than {limit_s:g} s; so far it said {shown.decode()!r}")
            shown += os.read(terminal, 65536)
        text = shown[: ended.start()].decode().replace("\r\n", "\n")
        return int(ended[1]), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    try:
        yield run_one
    finally:
        os.close(write)
        os.close(terminal)  # a hang-up for all that still runs
        bash.wait(300)


@contextmanager
def _judge() -> Iterator[str]:
    """Give the address of a server that answers every chat completion with 7 of 10."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = json.dumps({"score": 7, "reason": "Short and polite."})
            body = json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- comparing --------------------------------------------------------------------------------------------------------

ANY = [
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"^\d\d:\d\d:\d\d ", "<time> "),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b", "<hash>"),
    (r"127\.0\.0\.1:\d+", "<address>"),
    (r"\b\d+(\.\d+)? (ms|s|B|KiB|MiB|GiB)\b", "<size>"),
    (r"\bpid +\d+", "pid <n>"),
    (r"\b\d+@\d+\b", "<at>"),
    (r" +", " "),
]
"""What may differ between two runs (times, ids, places, sizes), and the name of its place."""


def check_page(name: str, folder: Path, *, more: str, limit_s: float) -> None:
    """Run a page as `run_page` does. Fails at the first command that does not print what the page says."""
    for ran in run_page(name, folder, more=more, limit_s=limit_s):
        place = f"{name}:{ran.step.line}: exit code {ran.code}, and it prints\n{ran.output}"
        assert ran.code == 0 and (ran.step.file or fits(ran.step.expected, ran.output)), place


def check_page_at(node: SharedNode, name: str, folder: Path, *, prefix: str, limit_s: float = 500) -> None:
    """Check a page at a node as `check_page` does, and delete its topics, whose names begin with `prefix`."""
    try:
        check_page(name, folder, more=f'\n[kafka]\nbootstrap = "{node.bootstrap}"\n', limit_s=limit_s)
    finally:
        node.delete_topics(prefix)


def fits(expected: str, output: str) -> bool:
    """Return whether `output` is what the page says."""
    pattern = ""
    for line in _plain(expected):
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in _plain(output))) is not None


def _plain(text: str) -> list[str]:
    lines = []
    for line in text.strip("\n").splitlines():
        for what, place in ANY:
            line = re.sub(what, place, line)
        lines.append(line.rstrip())
    return lines


def main() -> None:
    """Print every step with what it prints now."""
    folder = Path(tempfile.mkdtemp(prefix="streamward-readme-"))
    try:
        for ran in run(walk(), folder):
            name = f"(file {ran.step.file})" if ran.step.file else "$ " + ran.step.command
            good = "" if fits(ran.step.expected, ran.output) or ran.step.file else "   <── not what the page says"
            print(f"{ran.step.page}:{ran.step.line}: exit {ran.code}{good}\n{name}\n{ran.output}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
