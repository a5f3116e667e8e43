"""Load the settings, one frozen tree, and save them as the TOML file that loads them again.

    defaults  <  streamward.toml  <  STREAMWARD_SECTION__KEY in the environment  <  --set section.key=value
                 │    └── save: the values that differ from the defaults, without secrets
                 └── without --config, next to a streamward.toml of the user's: what `up` chose for this folder

A relative path in a file is relative to the folder of that file; anywhere else, to the current folder.
If none of them names `kafka.bootstrap`, it is the address of the embedded node in `broker.data_dir`, if it has one.
STREAMWARD_SECTION__KEY_FILE names a file that holds the value, such as a mounted secret. The variable itself wins.
streams/settings/model.py describes each setting; a plugin may have a section of its own name, if it is loaded. Unknown
variables and keys are refused, so that a misspelt setting does not silently keep its default. Secrets are `SecretStr`;
they and values from a _FILE are printed as stars.
Settings are read once, when a process starts.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import SecretStr, TypeAdapter, ValidationError

from schemas import json_text
from schemas.file_text import FileTextError, whole_text
from streams.errors import SettingsError, UnknownSettingError
from streams.plugins import choice
from streams.plugins.choice import CONFIG_FILE as CONFIG_FILE, ENV_CONFIG as ENV_CONFIG, ENV_PREFIX as ENV_PREFIX
from streams.plugins.installed import check_loaded, installations, load_plugins
from streams.settings.model import Kafka, Section, Settings, is_secret_name, without_user

NOT_SETTINGS = (ENV_CONFIG, "STREAMWARD_OUTPUT", "STREAMWARD_KEY")
"""Variables with our prefix that are not settings; the second is for streams/output.py."""
UP_FOLDER = Path(".streamward/up")
"""Of the output of `streamward up`, and of its settings."""
WRITTEN_BY = "# Written by `streamward "
"""How a settings file begins that a run wrote."""
NODE_FILE = "node.json"
"""In `broker.data_dir`: the recorded state of the embedded node, such as its port."""
BOOTSTRAP = "kafka.bootstrap"
NODE_FOLDER = "broker.data_dir"
STORES = ("adapters.store", "archive.store")
"""Settings that are a path or a URL."""
BASE_MODEL = "model.base"
"""Settings that are a path if the folder exists, else a name."""
STARS = "**********"
"""A secret as SecretStr prints it."""


def load(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> Settings:
    """Return the settings from file, environment and `section.key=value` overrides.

    Raises SettingsError, naming the source of each bad value and the nearest known key.
    """
    return load_with_origins(file=file, env=env, overrides=overrides)[0]


def override(settings: Settings, changes: Mapping[str, Any], origin: str) -> Settings:
    """Return the settings with other values by dotted key, checked as when they are loaded.

    Raises SettingsError, naming `origin`, for an unknown key or a bad value.
    """
    tree = {name: dict(section) for name, section in settings}
    for key, value in changes.items():
        section, name = _split_key(key, origin)
        tree[section][name] = value
    return build(tree, dict.fromkeys(changes, origin))


def build(tree: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Return the settings with these values by section and name, and the defaults of all others.

    Raises SettingsError, naming the origin, for a bad value.
    """
    try:
        settings = Settings.model_validate({name: tree[name] for name in tree if name in Settings.model_fields})
    except ValidationError as exc:
        raise SettingsError(_explain(exc, origins)) from exc
    sections = {}
    for name, kind in section_types().items():
        if name not in Settings.model_fields:
            try:
                sections[name] = kind.model_validate(tree.get(name, {}))
            except ValidationError as exc:
                raise SettingsError(_explain(exc, origins, name)) from exc
    return settings.model_copy(update=sections)


@cache
def section_types() -> dict[str, type[Section]]:
    """Return every section by its name: those of the core, then those that loaded plugins declare.

    Raises SettingsError for one that is no section, or has the name of another.
    """
    types: dict[str, type[Section]] = {name: type(section) for name, section in Settings()}
    for plugin, _, _ in load_plugins():
        if plugin.settings is None:
            continue
        kind = plugin.load(plugin.settings)
        if plugin.name in types or not (isinstance(kind, type) and issubclass(kind, Section)):
            raise SettingsError(
                f"plugin {plugin.name}: {plugin.settings} cannot be its section [{plugin.name}]; expected a subclass "
                "of Section, and a name that no section has"
            )
        types[plugin.name] = kind
    return types


def load_with_origins(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> tuple[Settings, dict[str, str]]:
    """Return the settings, and the origin of each dotted key that is not a default."""
    env, overrides = os.environ if env is None else env, [*overrides]
    if (chosen := choice.read_choice(file, overrides, env)).origin != choice.DEFAULT:
        check_loaded(chosen)
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, origin in [
        *_from_up(file, env),
        *_from_file(file, env),
        *_from_env(env),
        *_from_overrides(overrides),
    ]:
        section, name = _split_key(key, origin)
        tree.setdefault(section, {})[name] = value
        origins[key] = origin
    settings = build(tree, origins)
    if choice.SETTING in origins:  # also by a variable that names a file
        check_loaded(choice.PluginChoice(settings.plugins.load, origins[choice.SETTING]))
    node = None if BOOTSTRAP in origins else _node_address(settings.broker.data_dir)
    if node is None:
        return settings, origins
    origins[BOOTSTRAP] = f"the node in {settings.broker.data_dir}"
    return override(settings, {BOOTSTRAP: node}, origins[BOOTSTRAP]), origins


def _node_address(data_dir: Path) -> str | None:
    """Return the address of the embedded node of this folder, running or not; None if it never had one."""
    host, _, _ = Kafka().bootstrap.partition(":")
    try:
        return f"{host}:{int(json_text.parse((Path(os.path.expanduser(data_dir)) / NODE_FILE).read_bytes())['port'])}"
    except (OSError, ValueError, TypeError, KeyError, OverflowError):  # int(inf) overflows
        return None


def default_address(settings: Settings, origins: Mapping[str, str]) -> str | None:
    """Return a warning if nothing names a Kafka: another folder's node may answer at the default address."""
    if BOOTSTRAP in origins:
        return None
    return (
        f"{settings.kafka.bootstrap} is the default, and this folder has no node; set kafka.bootstrap, or start a node "
        "here with `streamward admin broker start`"
    )


def to_env(settings: Settings) -> dict[str, str]:
    """Return the environment variables with which a child process loads these same settings.

    They hold the values that differ from the defaults, and the address of the log; the child does not read a
    `streamward.toml` in its folder. Secrets are included, since the child needs them.
    """
    variables = {ENV_CONFIG: os.devnull}
    for section_name, section in settings:
        plain = type(section)()
        for name, value in section:
            if value == getattr(plain, name) and f"{section_name}.{name}" != BOOTSTRAP:
                continue
            if isinstance(value, dict):
                text = json.dumps({key: secret.get_secret_value() for key, secret in value.items()})
            else:
                text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            variables[f"{ENV_PREFIX}{section_name}__{name}".upper()] = text
    return variables


def secret_variable(override: str) -> str | None:
    """Return the variable for an override `section.key=value` that sets a secret; None if it sets none."""
    key, _, text = override.partition("=")
    if not _is_known(key):
        return None
    section, name = key.split(".")
    annotation = str(section_types()[section].model_fields[name].annotation)
    names = re.findall(r'"([^"]+)"\s*:', text) if "dict" in annotation else ["secret"]
    is_secret = "SecretStr" in annotation and any(map(is_secret_name, names))
    return f"{ENV_PREFIX}{section}__{name}".upper() if is_secret else None


def flatten(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield every (section.key, value), in the order of the tree."""
    for section_name, section in settings:
        for name, value in section:
            yield f"{section_name}.{name}", value


def describe(settings: Settings, origins: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield key, value, source and description of every setting, for tables and JSON. Secrets are stars."""
    for key, value in flatten(settings):
        section, _, name = key.partition(".")
        field = type(getattr(settings, section)).model_fields[name]
        origin = origins.get(key, "default")
        from_file = _is_file_variable(origin)
        if isinstance(value, dict):
            value = {
                inner: str(text) if is_secret_name(inner) else text.get_secret_value() for inner, text in value.items()
            }
        yield {
            "key": key,
            "value": STARS if from_file else str(value) if isinstance(value, SecretStr | Path) else value,
            "from": origin,
            "about": field.description or "",
        }


def save(settings: Settings, folder: Path, *, by: str) -> Path:
    """Write the address of the log and the changed settings to `folder`, which exists; return the file.

    `by` is the command. Paths below the working folder are relative to `folder`, so that the whole of it can be moved.
    For an embedded node the file has its folder, not its address: a node whose port is taken moves to another port.

    Secrets are left out, and the file names them: set them in the environment.
    """
    import tomli_w

    default, root = dict(flatten(build({}))), folder.absolute()
    root = Path.cwd() if root.is_relative_to(Path.cwd()) else root
    is_node = _node_address(settings.broker.data_dir) == settings.kafka.bootstrap
    log = NODE_FOLDER if is_node else BOOTSTRAP
    sections: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for key, value in flatten(settings):
        if key != log and (key == BOOTSTRAP or value == default[key]):
            continue
        section, _, name = key.partition(".")
        if _is_path(key, str(value), Path()):
            value = os.path.abspath(value)
            value = os.path.relpath(value, folder) if Path(value).is_relative_to(root) else value
        if isinstance(value, dict):
            left_out += [f"{key}: {inner}" for inner in value if is_secret_name(inner)]
            value = {inner: text.get_secret_value() for inner, text in value.items() if not is_secret_name(inner)}
        if isinstance(value, SecretStr):
            left_out.append(f"{ENV_PREFIX}{section}__{name}".upper())
        else:
            sections.setdefault(section, {})[name] = str(value) if isinstance(value, Path) else value
    head = [f"# Written by `{by}`; use it with `streamward --config THIS_FILE …`."]
    head += [f"# A secret that is left out here; set it in the environment: {name}" for name in left_out]
    path = folder / CONFIG_FILE
    path.write_text("\n".join(head) + "\n\n" + tomli_w.dumps(sections))
    return path


def move_settings(text: str, before: Path, after: Path) -> str:
    """Return the text of a settings file that was saved in folder `before`, for one in folder `after`."""
    import tomli_w

    data = tomllib.loads(text)
    for section, values in data.items():
        for name, value in values.items():
            if isinstance(value, str) and _is_path(f"{section}.{name}", value, before) and not os.path.isabs(value):
                values[name] = os.path.relpath(before / value, after)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join(comments) + "\n\n" + tomli_w.dumps(data)


# --- sources ---------------------------------------------------------------------------------------------------------


def _from_file(file: Path | None, env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    path = file or (Path(env[ENV_CONFIG]) if ENV_CONFIG in env else Path(CONFIG_FILE))
    by_variable = file is None and ENV_CONFIG in env
    place = f"{ENV_CONFIG}={env[ENV_CONFIG]}" if by_variable else str(path)
    way_out = f"unset {ENV_CONFIG}" if by_variable else "leave --config out"
    if not path.exists():
        if file is None and not by_variable:
            return
        raise SettingsError(f"{place}: no such settings file; give an existing TOML file, or {way_out}")
    try:
        data = tomllib.loads(whole_text(path.read_bytes()))
    except OSError as exc:
        raise SettingsError(f"{place}: cannot be read: {exc.strerror}; give a TOML file, or {way_out}") from exc
    except FileTextError as exc:
        raise SettingsError(exc.at(path)) from exc
    except (ValueError, RecursionError) as exc:  # also endless nesting
        raise SettingsError(f"{path}: not TOML: {exc}") from exc
    for section, values in data.items():
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: {section} is outside a section; settings belong to sections, e.g. [kafka]")
        for name, value in values.items():
            key = f"{section}.{name}"
            if isinstance(value, str) and _is_path(key, value, path.parent):
                value = os.path.normpath(path.parent / value)
            yield key, value, str(path)


def _from_up(file: Path | None, env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """Yield the settings of the latest `up` in this folder, if its streamward.toml is the user's.

    `up` leaves that file as it is; what it chose for one machine, or has from its command line, holds for its log.
    """
    run = UP_FOLDER / CONFIG_FILE
    if file is None and ENV_CONFIG not in env and is_of_user(Path(CONFIG_FILE)) and run.is_file():
        yield from _from_file(run, env)


def is_of_user(path: Path) -> bool:
    """Return whether a settings file is there that no run wrote."""
    return os.path.lexists(path) and not is_of_run(path)


def is_of_run(path: Path) -> bool:
    """Return whether a run wrote this settings file."""
    try:
        return path.read_text().startswith(WRITTEN_BY)
    except (OSError, UnicodeDecodeError):
        return False


def _is_path(key: str, text: str, folder: Path) -> bool:
    """Return whether the value of a setting is a path, relative to `folder` or absolute; not one below ~, or a URL."""
    if key == BASE_MODEL:
        return (folder / text).is_dir()
    section, _, name = key.partition(".")
    is_path = key in STORES or (_is_known(key) and Path in _types(section, name))
    return is_path and bool(text) and not text.lower().startswith(("~", "file:")) and "://" not in text


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable, text in sorted(env.items()):
        if not variable.startswith(ENV_PREFIX) or variable in NOT_SETTINGS:
            continue
        key = variable[len(ENV_PREFIX) :].lower().replace("__", ".", 1)
        if not _is_known(key) and _is_known(key.removesuffix("_file")):
            if variable.removesuffix("_FILE") in env:
                continue
            key, text = key.removesuffix("_file"), _read(Path(text), variable)
        yield key, _parse(key, text, variable), variable


def _is_file_variable(origin: str) -> bool:
    """Return whether a value came from the file that a variable names: such values are never printed."""
    key = origin.removeprefix(ENV_PREFIX).lower().replace("__", ".", 1)
    return origin.startswith(ENV_PREFIX) and not _is_known(key) and _is_known(key.removesuffix("_file"))


def _read(path: Path, variable: str) -> str:
    """Return the text of a file, without the line end that editors add."""
    try:
        return whole_text(path.read_bytes()).removesuffix("\n").removesuffix("\r")
    except (OSError, FileTextError) as exc:
        raise SettingsError(
            f"{variable}: {path} cannot be read: {exc}; name a file of text that holds the value"
        ) from exc


def _from_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise SettingsError(f"--set {override}: expected section.key=value, e.g. --set batches.groups=8")
        yield key, _parse(key, text, f"--set {key}"), f"--set {key}"  # not the value: it may be a secret


def _parse(key: str, text: str, origin: str) -> Any:
    """Return JSON as a mapping where the field is one, else the text itself, which pydantic converts."""
    section, name = _split_key(key, origin)
    if dict[str, SecretStr] in _types(section, name):
        try:
            return TypeAdapter(dict[str, str]).validate_json(text)
        except ValidationError:
            raise SettingsError(f'{origin}: expected a JSON object of texts, e.g. {{"debug": "broker"}}') from None
    return text


def _types(section: str, name: str) -> tuple[Any, ...]:
    """Return the type of a setting, and the members of a union."""
    annotation = section_types()[section].model_fields[name].annotation
    return (annotation, *get_args(annotation))


def _is_known(key: str) -> bool:
    section, _, name = key.partition(".")
    kind = section_types().get(section)
    return kind is not None and name in kind.model_fields


def _split_key(key: str, origin: str) -> tuple[str, str]:
    """Return section and name. Raises SettingsError, with the nearest key, for an unknown key."""
    section, _, name = key.partition(".")
    if _is_known(key):
        return section, name
    if section not in section_types() and section in {installation.name for installation in installations()}:
        hint = f"plugin {section} is not loaded, or has no settings; add it to plugins.load, or leave the key out"
        raise UnknownSettingError(key, f"{origin}: no setting is called {key!r}", hint)
    close = difflib.get_close_matches(key, [name for name, _ in flatten(build({}))], n=1)
    hint = f"did you mean {close[0]}?" if close else "see `streamward config show` for every key"
    raise UnknownSettingError(key, f"{origin}: no setting is called {key!r}", hint)


def _explain(exc: ValidationError, origins: Mapping[str, str], *section: str) -> str:
    """Return what is wrong, a line each; `section`: the one that was checked, if not the whole tree."""
    lines = []
    for error in exc.errors():
        place = (*section, *error["loc"])
        key = ".".join(map(str, place))
        related = [k for k in origins if k == key or k.startswith(key + ".") or key.startswith(k + ".")]
        sources = ", ".join(dict.fromkeys(origins[k] for k in related)) or "the defaults"
        hidden = _is_secret(place) or any(_is_file_variable(origins[k]) for k in related)
        value = "" if hidden else f" (got {without_user(str(error['input']))!r})"
        lines.append(f"{key}, from {sources}: {error['msg'].removeprefix('Value error, ')}{value}")
    return "\n".join(lines)


def _is_secret(loc: tuple[int | str, ...]) -> bool:
    """Return whether the input of an error at `loc` may hold a secret: a secret's field, or a whole section."""
    if len(loc) < 2:
        return True
    return "SecretStr" in str(section_types()[str(loc[0])].model_fields[str(loc[1])].annotation)
