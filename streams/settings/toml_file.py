"""Read a TOML file that a user wrote, with errors that name it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from schemas.file_text import FileTextError, whole_text
from streams.errors import NotFoundError, SettingsError


def read_toml(file: Path, way_out: str) -> dict[str, Any]:
    """Return its tables. Raises NotFoundError, with `way_out`, or SettingsError."""
    try:
        return tomllib.loads(whole_text(file.read_bytes()))
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}; {way_out}") from exc
    except FileTextError as exc:
        raise SettingsError(exc.at(file)) from exc
    except (ValueError, RecursionError) as exc:  # also endless nesting
        raise SettingsError(f"{file}: not TOML: {exc}") from exc
