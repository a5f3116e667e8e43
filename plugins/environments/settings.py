"""The settings of environments: which may be opened, and the limits of their processes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from streams.settings.model import VARIABLES, Section
from streams.settings.name_lists import split_names


class Environments(Section):
    """Environments that are not built in: each episode runs in its own process."""

    modules: str = Field(
        "",
        pattern=r"^[\w., ]*$",
        description="modules and packages whose classes tasks may name as environments (module:Class), comma "
        "separated; `.` also finds them in the working folder; empty: none",
    )
    servers: str = Field(
        "",
        description="servers that tasks and tools may name, comma separated and spelt as there: openenv:URL, mcp:URL, "
        "mcp:COMMAND, which is started, a2a:URL, or the URL of a tool; environments may connect to no other; "
        "empty: none",
    )
    credentials: Path | None = Field(
        None,
        description="JSON file of bearer tokens by server, spelt as in servers (mcp:URL, a2a:URL, or the URL of a "
        "tool); neither the log nor an environment's settings have them",
    )
    variables: str = Field("", pattern=r"^[\w, ]*$", description=VARIABLES)
    timeout_s: float = Field(10.0, gt=0, description="time limit for one reset or step, seconds")
    memory_mib: int = Field(2048, ge=64, description="memory limit of a process, MiB")
    dead_share: float = Field(
        0.0, ge=0, le=1, description="share of episodes of train tasks that are made to fail on the way, for trials"
    )
    network: bool = Field(False, description="whether environments may open connections")

    @property
    def importable(self) -> tuple[str, ...]:
        """The modules and packages that may be imported, and `.`."""
        return split_names(self.modules)

    @property
    def allowed_servers(self) -> tuple[str, ...]:
        """The servers that tasks may name."""
        return split_names(self.servers)
