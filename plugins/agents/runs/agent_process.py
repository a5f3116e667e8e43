"""Run an agent's program over one task, in its own process, and leave no process behind.

    AgentProcess, ProgramRun ──► folder/  task.json  stdout  stderr ──► supervisor.py ──► the program ──► TrajectoryEnd

The program runs in the folder of its run, where its files stay. Words of its command that name files in the folder
where the manager was started are made absolute, and Python finds that folder's modules: `python my_agent.py` works as
in a terminal. Its task is in task.json, which is its stdin, too; the last message of the user is in STREAMWARD_PROMPT,
unless it is longer than a variable may be. Neither contains the expected answer.

Exit code 0 is a completed run. A program that fails in any way ends its run and nothing else.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil
from pydantic import SecretStr

from schemas.events import Ending, Task
from streams.errors import SettingsError
from streams.output import json_line
from streams.processes import supervisor
from streams.processes.child import ChildProcess, describe_exit, is_ready
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.trajectories.chat_format import message_of, tool_of

LOOK_S = 0.1
ROOT = Path(supervisor.__file__).parents[2]
START_SUPERVISOR = "import sys; sys.path.append(sys.argv[1]); from streams.processes.supervisor import main; main()"
TASK = "task.json"
MAX_VARIABLE = 100_000
"""Maximum bytes of a variable: Linux takes 128 KiB (execve(2), MAX_ARG_STRLEN)."""
TASK_FIELDS = ("task_id", "policy", "purpose", "scenario", "max_turns", "thread", "metadata")
"""Fields of its task that an agent gets, besides its messages and tools."""
NO_KEY = "none"
"""The key that clients send if the environment has none: they refuse to start without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """A program that works on tasks, and the limits of one run."""

    command: tuple[str, ...]
    """The program and its arguments, e.g. of `from_text`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set for it, in addition to this process's."""
    time_limit_s: float = 600.0
    grace_s: float = 2.0
    """How long it may take to end after SIGTERM, seconds; then it is killed."""
    output_bytes: int = 10_000_000
    """How much of stdout and of stderr is kept, each."""
    folder_bytes: int = 1_000_000_000
    """Maximum size of its folder."""

    @classmethod
    def from_text(cls, command: str, **limits: float) -> AgentProcess:
        """Return the process of a command line, split as a shell would. Raises SettingsError."""
        try:
            words = shlex.split(command)
        except ValueError as exc:
            raise SettingsError(f"the command {command!r} is no command line: {exc}") from None
        return cls(command=_absolute(words), **limits)  # type: ignore[arg-type]

    @classmethod
    def from_entry_point(cls, name: str, **limits: float) -> AgentProcess:
        """Return the process of a function `package.module:function`, called with the prompt. Raises SettingsError."""
        module, colon, function = name.partition(":")
        if not (module and colon and function):
            raise SettingsError(f"the entry point {name!r} is no package.module:function")
        command = (sys.executable, "-m", "streams.processes.entry_point", name)
        return cls(command=command, **limits)  # type: ignore[arg-type]


class ProgramRun(NamedTuple):
    """One run: its task, its server and its folder."""

    agent_id: str
    trajectory_id: str
    task: Task
    base_url: str
    """The server's URL for this run, without /v1."""
    folder: Path
    """Its own folder, which is created. Files that an earlier run left there stay."""
    key: SecretStr | None = None
    """The server's key, if it requires one."""


def run_process(process: AgentProcess, run: ProgramRun, stop: threading.Event) -> TrajectoryEnd:
    """Run the program until it ends, `stop` is set or its time is up; then none of its processes is left.

    Raises OSError if the folder cannot be written.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / TASK).write_text(json_line(task_for_agent(run.task)) + "\n", encoding="utf-8")
    order = {
        "command": process.command,
        "env": _environment(process, run),
        "folder": str(run.folder),
        "time_limit_s": process.time_limit_s,
        "grace_s": process.grace_s,
        "output_bytes": process.output_bytes,
        "folder_bytes": process.folder_bytes,
    }
    command = [sys.executable, "-I", "-S", "-c", START_SUPERVISOR, str(ROOT)]
    with ChildProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        line = _supervise(child, json.dumps(order).encode() + b"\n", stop)
    try:
        end = json.loads(line)
        return TrajectoryEnd(cast(Ending, end["ending"]), end["reason"], end["exit_code"], output=end.get("output"))
    except (ValueError, RecursionError):  # the supervisor was killed
        _kill_run(run.trajectory_id)
        return TrajectoryEnd("failed", f"the supervisor of the program ended with {describe_exit(child.returncode)}")


def task_for_agent(task: Task) -> dict[str, Any]:
    """Return the task as its agent sees it, in the format of chat clients, without the right answer and the scorer."""
    return {
        "prompt": prompt_of(task),
        "messages": [message_of(message) for message in task.messages],
        "tools": [tool_of(tool) for tool in task.tools],
        **{name: getattr(task, name) for name in TASK_FIELDS},
    }


def prompt_of(task: Task) -> str:
    """Return the last message of the user."""
    return next((message.content for message in reversed(task.messages) if message.role == "user"), "")


def _absolute(words: list[str]) -> tuple[str, ...]:
    """Return the words of a command with the files they name made absolute. Raises SettingsError."""
    if not words:
        raise SettingsError('the command is empty; give one, e.g. --command "python my_agent.py"')
    program = shutil.which(words[0])
    if program is None:
        raise SettingsError(f"there is no program {words[0]!r} that can be run here; give its path, or see PATH")
    arguments = (os.path.abspath(word) if os.path.exists(word) else word for word in words[1:])
    return (os.path.abspath(program), *arguments)


def _environment(process: AgentProcess, run: ProgramRun) -> dict[str, str]:
    """Return the program's environment: the server for clients of either kind, and which run it is.

    This process's settings are left out: they may hold passwords of the log. The server's key is, as the key of
    either client: a process that can read the program's environment may call the server.
    """
    prompt = prompt_of(run.task)
    fits = len(prompt.encode()) <= MAX_VARIABLE and "\0" not in prompt
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
    server_key = None if run.key is None else run.key.get_secret_value()
    keys = {name: server_key or inherited.get(name, NO_KEY) for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
    python_path = os.pathsep.join(part for part in (os.getcwd(), inherited.get("PYTHONPATH", "")) if part)
    return {
        **inherited,
        **keys,
        "PYTHONPATH": python_path,
        **process.env,
        "OPENAI_BASE_URL": f"{run.base_url}/v1",
        "ANTHROPIC_BASE_URL": run.base_url,
        "STREAMWARD_AGENT_ID": run.agent_id,
        "STREAMWARD_TRAJECTORY_ID": run.trajectory_id,
        "STREAMWARD_TASK_ID": run.task.task_id,
        "STREAMWARD_TASK_FILE": str(run.folder.absolute() / TASK),
        **({"STREAMWARD_PROMPT": prompt} if fits else {}),
    }


def _supervise(child: ChildProcess, order: bytes, stop: threading.Event) -> bytes:
    """Return the supervisor's final output. Once `stop` is set its stdin is closed, upon which it ends the program."""
    orders, answers = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
    output = b""
    try:
        with suppress(BrokenPipeError):
            orders.write(order)
            orders.flush()
        while True:
            if stop.is_set():
                _close(orders)
            if is_ready(answers.fileno(), "read", LOOK_S):
                chunk = os.read(answers.fileno(), 1 << 16)
                if not chunk:
                    return output
                output += chunk
    finally:
        _close(orders)


def _close(orders: IO[bytes]) -> None:
    with suppress(BrokenPipeError):  # the supervisor was killed, perhaps before it read its order
        orders.close()


def _kill_run(trajectory_id: str) -> None:
    """Kill the processes with this run in their environment, after its supervisor was killed."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        processes = [process for process in psutil.process_iter() if _is_of_run(process, trajectory_id)]
        if not processes:
            return
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def _is_of_run(process: psutil.Process, trajectory_id: str) -> bool:
    with suppress(psutil.Error, OSError):
        return bool(process.environ().get("STREAMWARD_TRAJECTORY_ID") == trajectory_id)
    return False
