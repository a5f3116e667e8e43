"""Functions of a user's own, which settings name as `module:function`.

    trainer.loss = "my_losses:mine" ──► load ──► the function, or SettingsError with the way out
                                          └────► source_digest ──► kept with the versions and groups it made

The module is imported from the working folder, PYTHONPATH or the installed packages. It runs inside the process that
needs it, with that process's rights: only settings of this deployment name a function, never a record.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from streams.errors import SettingsError

REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def is_reference(name: str) -> bool:
    """Return whether `name` has the form `module:function`."""
    return re.fullmatch(REFERENCE, name) is not None


def checked_name(name: str, known: Iterable[str]) -> str:
    """Return `name` if it is one of `known` or a reference, which is not imported. Raises ValueError."""
    names = list(known)
    if name in names or is_reference(name):
        return name
    close = get_close_matches(name, names, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"{name!r} does not exist; {meant}expected {', '.join(names)}, or module:function of your own")


def describe_module(module: ModuleType) -> str:
    """Return an imported module in words, with its file: another may have the same name."""
    return f"module {module.__name__!r}, imported from {getattr(module, '__file__', None) or 'the interpreter'},"


@cache
def load(setting: str, reference: str) -> Callable[..., Any]:
    """Return the function that the setting `setting` names. Raises SettingsError with the way out."""
    module_name, _, function_name = reference.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:  # the module is the user's, and may raise anything while it is imported
        raise SettingsError(
            f"{setting}={reference}: module {module_name!r} cannot be imported from {folder}, PYTHONPATH or the "
            f"installed packages ({type(exc).__name__}: {exc}); put it there, or set {setting} to a built-in name"
        ) from exc
    function = getattr(module, function_name, None)
    if not inspect.isfunction(function):
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise SettingsError(
            f"{setting}={reference}: {describe_module(module)} has no function {function_name!r}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    return function


def source_digest(setting: str, reference: str) -> str:
    """Return the sha256 of the file that the function is written in. Raises SettingsError as `load`."""
    file = inspect.getsourcefile(load(setting, reference))
    if file is None or not Path(file).is_file():
        raise SettingsError(f"{setting}={reference}: no file has its source, which is recorded; put it in a file")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
