"""Write settings as the TOML file that loads them again.

    Settings ──► what differs from the defaults ──► FOLDER/streamward.toml ──► streamward --config THIS_FILE …

A log of its own (a demo, an experiment) has its settings in its own folder, so that every command works on it.

Not covered: secrets. They are left out, and the file says which: give them in the environment, as for any other log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from streams.settings.load import CONFIG_FILE, ENV_PREFIX, dotted
from streams.settings.model import Settings, is_secret_name


def write(settings: Settings, folder: Path, *, by: str) -> Path:
    """Write what differs from the defaults to `folder`, which exists, and return the file. `by` is the command."""
    default = dict(dotted(Settings()))
    sections: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for key, value in dotted(settings):
        if value == default[key]:
            continue
        section, _, name = key.partition(".")
        if isinstance(value, dict):
            secret = [inner for inner in value if is_secret_name(inner)]
            left_out += [f"{key}: {inner}" for inner in secret]
            value = {inner: text.get_secret_value() for inner, text in value.items() if inner not in secret}
        if isinstance(value, SecretStr):
            left_out.append(f"{ENV_PREFIX}{section}__{name}".upper())
        else:
            sections.setdefault(section, {})[name] = value
    lines = [f"# Written by `{by}`; use it with `streamward --config THIS_FILE …`."]
    lines += [f"# A secret that is not written here, to be given in the environment: {name}" for name in left_out]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
    path = folder / CONFIG_FILE
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(text)}" for key, text in value.items()) + " }"
    return json.dumps(value if isinstance(value, bool | int | float) else str(value))
