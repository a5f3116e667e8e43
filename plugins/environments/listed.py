"""The built-in environments by name, and reading the settings of any environment.

    calculator, lookup, …        built in, and listed: the same episode for the same seed, in this thread
    gymnasium:ID, module:Class   by reference: imported when it is opened, in a process of its own (by_reference.py)

A name in a task of the log is only looked up here, and never imported.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from pydantic import ValidationError

from plugins.environments.episodes.environment import EpisodeError
from plugins.environments.games.calculator import Calculator
from plugins.environments.games.corridor import Corridor
from plugins.environments.games.distractor import Distractor
from plugins.environments.games.guess import Guess
from plugins.environments.games.lookup import Lookup
from plugins.environments.games.text_game import TextGame
from plugins.environments.games.tictactoe import TicTacToe
from schemas import json_text

LISTED: dict[str, type[TextGame[Any]]] = {
    game.name: game for game in (Calculator, Lookup, Guess, Corridor, TicTacToe, Distractor)
}
"""The built-in environments by name."""


def open_listed(name: str, settings: str = "{}") -> TextGame[Any]:
    """Return a listed environment with the settings in a JSON object.

    Raises EpisodeError: unknown_environment, naming the nearest; bad_settings.
    """
    if name not in LISTED:
        close = difflib.get_close_matches(name, LISTED, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise EpisodeError(
            f"no environment is called {name!r}; {hint}known: {', '.join(LISTED)}", reason="unknown_environment"
        )
    game = LISTED[name]
    options = settings_of(name, settings)
    try:
        return game(game.options_type.model_validate_json(json.dumps(options)))
    except ValidationError as exc:
        raise EpisodeError("; ".join(_faults(name, game, exc)), reason="bad_settings") from exc


def settings_of(name: str, settings: str) -> dict[str, Any]:
    """Return the settings of an environment, a JSON object. Raises EpisodeError(bad_settings)."""
    try:
        value = json_text.parse(settings)
    except ValueError as exc:
        raise EpisodeError(f"{name}: settings are no JSON: {exc}", reason="bad_settings") from exc
    if not isinstance(value, dict):
        raise EpisodeError(f"{name}: settings: expected a JSON object, got {settings[:80]}", reason="bad_settings")
    return value


def _faults(name: str, game: type[TextGame[Any]], exc: ValidationError) -> list[str]:
    names = ", ".join(game.options_type.model_fields)
    faults = []
    for error in exc.errors():
        key = ".".join(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            faults.append(f"{name} has no setting {key!r}; known: {names}")
        else:
            faults.append(f"{name}{'.' if key else ''}{key}: {error['msg'].removeprefix('Value error, ')}")
    return faults
