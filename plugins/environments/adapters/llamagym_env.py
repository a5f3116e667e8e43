"""A Gymnasium environment through LlamaGym's three methods, on a class of the user's.

    llamagym:module:Class:ID
    get_system_prompt() ──► the first message      format_observation(observation) ──► text
    extract_action(text) ──► an element of the action space

https://github.com/KhoomeiK/LlamaGym. The class is created without arguments: LlamaGym's `Agent` takes a model in its
`__init__`, which environments do not have, so a subclass of it needs its own `__init__`.
"""

from __future__ import annotations

import importlib
from typing import Any

from plugins.environments.adapters.gymnasium_env import GymnasiumEnvironment
from plugins.environments.episodes.environment import EpisodeError
from streams.references import describe_module

METHODS = ("get_system_prompt", "format_observation", "extract_action")


class LlamaGymEnvironment(GymnasiumEnvironment):
    """Wraps `gymnasium.make(ID)` with the methods of a class."""

    def __init__(self, reference: str, **settings: Any) -> None:
        """`reference`: module:Class:ID; `settings` are those of `gymnasium.make`.

        Raises EpisodeError: unknown_environment, missing_package, bad_settings, bad_result.
        """
        module_name, _, rest = reference.partition(":")
        class_name, _, environment_id = rest.partition(":")
        if not environment_id:
            message = (
                f"llamagym:{reference}: expected llamagym:module:Class:ID, e.g. llamagym:players:Lake:FrozenLake-v1"
            )
            raise EpisodeError(message, reason="unknown_environment")
        super().__init__(environment_id, **settings)
        self._reference = f"llamagym:{reference}"
        self._methods = self._load(module_name, class_name)

    def _load(self, module_name: str, class_name: str) -> Any:
        try:
            module = importlib.import_module(module_name)
        except ImportError as exc:
            message = f"{self._reference} cannot be loaded: {exc}; put the module on PYTHONPATH"
            raise EpisodeError(message, reason="missing_package") from exc
        factory = getattr(module, class_name, None)
        if not callable(factory):
            message = f"{describe_module(module)} has no class {class_name!r}"
            raise EpisodeError(message, reason="unknown_environment")
        methods = factory()
        if missing := [name for name in METHODS if not callable(getattr(methods, name, None))]:
            raise EpisodeError(f"{self._reference}: {class_name} has no method {missing[0]}", reason="bad_result")
        return methods

    def _system_prompt(self) -> str:
        return self._checked_text("get_system_prompt", self._methods.get_system_prompt())

    def _text(self, observation: Any) -> str:
        return self._checked_text("format_observation", self._methods.format_observation(observation))

    def _checked_text(self, method: str, text: Any) -> str:
        if not isinstance(text, str):
            raise EpisodeError(f"{self._reference}: {method}: expected a text, got {text!r:.80}", reason="bad_result")
        return text

    def _element(self, text: str) -> Any:
        try:
            element = self._methods.extract_action(text)
        except Exception as exc:  # what a policy wrote may be anything, and the user's method raise anything
            raise ValueError(f"no action: {exc}") from exc
        if not self._environment.action_space.contains(element):
            raise ValueError(f"{element!r:.80} is no action of {self._environment.action_space}")
        return element
