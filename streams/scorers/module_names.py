"""Check that the modules of scoring.modules in the working folder are the ones that these names import.

The working folder is searched last, so a file there with the name of an installed module is never imported: the
installed one is.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from streams.errors import SettingsError

if TYPE_CHECKING:
    from streams.settings.model import Scoring


def check_module_names(scoring: Scoring) -> None:
    """Raise SettingsError for a listed module of the working folder with a name that is taken or invalid."""
    folder = Path.cwd()
    packages = dict.fromkeys(name.partition(".")[0] for name in scoring.importable) if "." in scoring.importable else {}
    for name in filter(None, packages):
        local = [file for file in (folder / f"{name}.py", folder / name / "__init__.py") if file.exists()]
        origin = _origin(name, folder) if local else None
        if origin is not None and not any(os.path.exists(origin) and file.samefile(origin) for file in local):
            raise SettingsError(
                f"scoring.modules lists {name}, and that name imports {origin}, not {local[0]}; rename yours, and name "
                "the new one in scoring.modules and in the tasks"
            )


def is_in_reach(name: str, scoring: Scoring) -> bool:
    """Return whether the module of `module:function` is listed, and a worker process would find it."""
    module = name.partition(":")[0]
    if not scoring.lists(module):
        return False
    package, folder = module.partition(".")[0], Path.cwd()
    is_local = "." in scoring.importable and ((folder / f"{package}.py").exists() or (folder / package).is_dir())
    return is_local or _origin(package, folder) is not None


def _origin(name: str, folder: Path) -> str | None:
    """Return where a worker process would import a module from, except the working folder; None: nowhere."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [entry for entry in sys.path if entry and (entry in named or Path(entry) != folder)]
    for spec in (BuiltinImporter.find_spec(name), FrozenImporter.find_spec(name), PathFinder.find_spec(name, path)):
        if spec is not None:
            return spec.origin
    return None
