"""What the image without torch has installed, as a process of this machine may see it: everything else is hidden.

    requirements.streams ──► packages, and what they require ──► a folder for PYTHONPATH that hides the rest

Not covered: the image with torch, whose libraries look around for what else there is; programs of the system.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
HIDING = """\
import sys

HIDDEN = frozenset({hidden!r})

class Elsewhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{{name}} is not in the image", name=name)

sys.meta_path.insert(0, Elsewhere())
"""


def listed(root: Path = ROOT) -> list[str]:
    """Return the packages that the image is told to install, by the sources under `root`."""
    lines = (root / "requirements.streams").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@cache
def hidden(root: Path = ROOT) -> frozenset[str]:
    """Return the modules that are installed here and not in the image."""
    wanted, taken = listed(root), {("streamward", "")}
    while wanted:
        asked = Requirement(wanted.pop())
        name, extras = canonicalize_name(asked.name), ["", *sorted(asked.extras)]
        if {(name, extra) for extra in extras} <= taken:
            continue
        taken |= {(name, extra) for extra in extras}
        try:
            needs = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue
        wanted += [
            f"{need.name}[{','.join(need.extras)}]"
            for need in needs
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    seen = {name for name, _ in taken}
    owners = {module: set(map(canonicalize_name, names)) for module, names in packages_distributions().items()}
    return frozenset(module for module, names in owners.items() if not names & seen)


def hide(folder: Path, root: Path = ROOT) -> Path:
    """Write the folder that a process of the image has to have first on its PYTHONPATH, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDING.format(hidden=sorted(hidden(root))), encoding="utf-8")
    return folder
