"""Turn a version's recipe back into settings, and find what differs here.

    recipe of the version's event ──► as_recorded ──► Settings to train it with
    recorded, here ──► in_recipe, in_data, in_files ──► [RecipeDifference] ──► cause: one sentence for people

A recipe maps names to texts (trainer/step/model.py). It has everything that affects the bytes, and no paths.

Not covered: influences that no recipe names, such as the build of a BLAS or the firmware of a CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from schemas.conventions import OPTIMIZER
from schemas.events import AdapterFile
from streams.errors import SettingsError
from streams.references import is_reference
from streams.settings.load import flatten
from streams.settings.model import Model, Settings, Trainer

DATA = ("groups", "groups_refused", "responses", "tokens", "reward")
"""Metrics of a step that depend only on its groups: if one differs, other groups were read."""
_SECTIONS: dict[str, type[Model] | type[Trainer]] = {"model": Model, "trainer": Trainer}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDifference:
    """A difference from the record."""

    version: int
    """The first version where it was seen."""
    kind: Literal["file", "recipe", "data"]
    name: str
    """The file, the entry of the recipe, or the metric."""
    recorded: str | None
    reproduced: str | None


def as_recorded(settings: Settings, recipe: Mapping[str, str], changed: Collection[str] = ()) -> Settings:
    """Return `settings` with the model and trainer of `recipe`; keys in `changed` keep the value they have in settings.

    Raises SettingsError if the recipe has an entry that this version of Streamward does not know, contradicts itself,
    or has a user's own loss that these settings do not name: a record alone must not make a process run code.
    """
    loss = recipe.get("trainer.loss", "")
    if is_reference(loss) and loss != settings.trainer.loss and "trainer.loss" not in changed:
        raise SettingsError(
            f"it was trained with the loss {loss}, which is code; to run it here, too, set trainer.loss={loss}"
        )
    trees: dict[str, dict[str, object]] = {"model": {}, "trainer": {"checkpoints": settings.trainer.checkpoints}}
    for key, text in recipe.items():
        section, _, name = key.partition(".")
        if section in trees:
            trees[section][name] = getattr(getattr(settings, section), name) if key in changed else text
    for key in changed:
        section, _, name = key.partition(".")
        trees[section].setdefault(name, getattr(getattr(settings, section), name))
    try:
        sections = {section: _SECTIONS[section].model_validate(tree) for section, tree in trees.items()}
    except ValidationError as exc:
        first = exc.errors()[0]
        raise SettingsError(
            f"the recipe in the log has {'.'.join(map(str, first['loc'])) or 'settings'} that cannot be used here: "
            f"{first['msg']}; reproduce it with the version of Streamward that trained it"
        ) from exc
    return settings.model_copy(update=sections)


def threads_of(settings: Settings, recipe: Mapping[str, str], changed: Collection[str] = ()) -> int:
    """Return the number of threads to use; 0 means one per core.

    It is the recorded count, since `trainer.threads=0` means another number on another machine.
    """
    recorded = recipe.get("threads", "")
    if "trainer.threads" in changed or not recorded.isdecimal():
        return settings.trainer.threads
    return int(recorded)


# --- what differs -----------------------------------------------------------------------------------------------------


def in_files(version: int, recorded: Iterable[AdapterFile], current: Iterable[AdapterFile]) -> list[RecipeDifference]:
    """Return each file whose sha256 differs; None for a missing file."""
    before, after = ({file.path: file.sha256 for file in files} for files in (recorded, current))
    return _compare(version, "file", before, after)


def in_recipe(version: int, recorded: Mapping[str, str], current: Mapping[str, str]) -> list[RecipeDifference]:
    """Return each entry of the recipe that differs; None for a missing entry. A setting that the recipe lacks counts as
    its default. Whether a step began with a fresh optimizer is not compared: it follows from the version before it.
    """
    defaults = {key: str(value) for key, value in flatten(Settings()) if key in current}
    before = {name: value for name, value in recorded.items() if name != OPTIMIZER}
    return _compare(version, "recipe", {**defaults, **before}, current)


def in_data(version: int, recorded: Mapping[str, float], current: Mapping[str, float]) -> list[RecipeDifference]:
    """Return each metric in `DATA` that differs."""
    before, after = ({name: repr(metrics[name]) for name in DATA if name in metrics} for metrics in (recorded, current))
    return _compare(version, "data", before, after)


def _compare(
    version: int, kind: Literal["file", "recipe", "data"], before: Mapping[str, str], after: Mapping[str, str]
) -> list[RecipeDifference]:
    return [
        RecipeDifference(version=version, kind=kind, name=name, recorded=before.get(name), reproduced=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def cause(differences: Collection[RecipeDifference]) -> str:
    """Return the likely cause of different bytes, and the way out."""
    data = [_description(difference) for difference in differences if difference.kind == "data"]
    recipe = [_description(difference) for difference in differences if difference.kind == "recipe"]
    if data:
        return (
            f"other groups than it was trained on: {'; '.join(data)}. Is this the log it was trained from? "
            "`streamward audit` recounts it" + (f". And the recipe: {'; '.join(recipe)}" if recipe else "")
        )
    if recipe:
        return f"{'; '.join(recipe)}. Install or set what was recorded, and reproduce it again"
    return (
        "not in the recipe: settings, libraries, threads and device kind are as recorded, and as many groups, "
        "responses and tokens went in, with the same rewards. So a group has other tokens, logprobs or advantages "
        "than before, or this machine computes differently in a way that no recipe names; try the one that trained it"
    )


def _description(difference: RecipeDifference) -> str:
    recorded = "not recorded" if difference.recorded is None else f"recorded {difference.recorded}"
    return (
        f"{difference.name} is {'missing' if difference.reproduced is None else difference.reproduced} here, {recorded}"
    )
