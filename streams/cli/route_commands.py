"""Commands that are made from routes: an operation is declared once, on the method that answers it.

    RouteCommand ──► the method and its route ──► arguments and options: what its path, query and body take
    words ──► the method, over the log itself ──► its model ──► a table, or lines of JSON

The method is that of `streamward serve`, so a command refuses in the same words, and no server has to run. It is
imported when its command is called or describes itself: a list of commands needs their names and helps alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streams.cli.runtime import AppContext, VersionNumber, actor_option, output_option, source_option, user_name
from streams.plugins.plugin import load_reference

if TYPE_CHECKING:
    from gateway.http.body import Answer
    from streams.output import Column, Output
    from streams.tools.archive.history import Source

VERSIONS = ("version", "expected", "against")
"""Fields that have the number of a version."""
MOST = 2**31
"""A number that may be as large has no limits that are worth a line of help."""
TITLES = dict(answer_id="run", created_at="created", began_at="began", actor="by", cost_usd="USD", tool_calls="tools")
"""Of columns whose field is called otherwise."""
SHORTER = re.compile(
    r"([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|([0-9a-f]{12})[0-9a-f]{52}|(\d{4}-\d\d-\d\dT\d\d:\d\d)\S+(Z)"
)
"""An id, a digest and a moment, with the parts that a table has; lines of JSON have all."""


@dataclass(frozen=True)
class RouteCommand:
    """A command that a method of a room answers."""

    method: str
    help: str
    arguments: str = ""
    """Fields that follow the command without the name of an option, after the parameters of the path."""
    columns: str = ""
    """Fields of a row that the table has; default: all that are one value."""
    has_source: bool = False
    """Whether --source says where its rows come from."""


def add_routes(group: click.Group, room: str, commands: Mapping[str, RouteCommand]) -> None:
    """Add commands to a group; `room`: where the class of their methods is, `module:name`."""
    for name, declared in commands.items():
        group.add_command(RoutedCommand(name, room, declared))


class RoutedCommand(click.Command):
    """A command that is made from a route."""

    def __init__(self, name: str, room: str, declared: RouteCommand) -> None:
        self._room_name, self.declared = room, declared
        super().__init__(name, help=declared.help, callback=self._answer)

    @property
    def params(self) -> list[click.Parameter]:
        """Its arguments and options."""
        return self._parameters

    @params.setter
    def params(self, _: list[click.Parameter]) -> None:
        """Ignore those of click's constructor, which has none."""

    @cached_property
    def room(self) -> type:
        """The class of its method. Raises SettingsError if that cannot be imported, as of a plugin."""
        room: type = load_reference(self._room_name, f"command {self.name}: {self._room_name} cannot be loaded")
        return room

    @cached_property
    def _parameters(self) -> list[click.Parameter]:
        from gateway.log.own_call import route_of

        route = route_of(self.room, self.declared.method)
        arguments = [*route.path_names, *self.declared.arguments.split()]
        policy: click.Parameter = click.Option(["--policy"], metavar="NAME", help="Policy.  [default: policy.name]")
        fields = {name: policy if name == "policy" else click.Argument([name]) for name in route.path_names}
        for schema in (model.model_json_schema() for model in route.models):
            for name, part in schema["properties"].items():
                kind = _one_kind(part, schema.get("$defs", {}))
                required = name in schema.get("required", ())
                fields[name] = _argument(name, kind, required) if name in arguments else _option(name, kind, required)
        common = click.Command("")
        if self.declared.has_source:
            source_option(common)
        if route.method != "GET":
            actor_option(common)
        output_option(common)
        in_order = sorted(fields, key=lambda name: arguments.index(name) if name in arguments else len(arguments))
        return [*(fields[name] for name in in_order), *common.params]

    def _answer(self, output: Output, source: Source = "auto", actor: str | None = None, **fields: Any) -> None:
        """Call the method, and print its answer."""
        from gateway.log.own_call import call_room, route_of

        room, method = self.room, self.declared.method
        route, call = route_of(room, method), click.get_current_context().ensure_object(AppContext)
        given = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if value is not None and value != ()
        }
        settings = call.settings if route.method == "GET" else call.settings_to_write
        if "policy" in route.path_names:
            given.setdefault("policy", settings.policy.name)
        show_answer(
            call_room(room, method, given, settings, actor=actor or user_name(), source=source),
            output,
            self.declared.columns.split(),
        )


def show_answer(answer: Answer, output: Output, columns: Sequence[str] = ()) -> None:
    """Print the rows of a list; of anything else its fields, and a table for each list of objects in it."""
    from streams import output as show

    fields = answer.model_dump(mode="json", exclude_unset=True)
    if isinstance(rows := fields.get("data"), list):
        show.rows(rows, _columns(rows, columns), output)
        if fields.get("more") or fields.get("has_more"):
            click.echo("There are more (--limit).", err=True)
    elif output == "jsonl":
        print(show.json_line(fields))
    else:
        tables = {name: value for name, value in fields.items() if value and _is_rows(value)}
        show.record({name: fields[name] for name in fields if name not in tables and name != "object"}, output)
        for rows in tables.values():
            print()
            show.rows(rows, _columns(rows, columns), output)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Column]:
    """Return the columns of a table; without names those that are one value in each row, and are known in one."""
    from streams import output as show

    values = {name: [row.get(name) for row in rows] for name in names or (rows[0] if rows else ())}
    return [
        show.Column(
            TITLES.get(name, name.removesuffix("_id").removesuffix("_tools").replace("_", " ")),
            partial(_cell, name),
            right=any(isinstance(value, int | float) for value in of),
        )
        for name, of in values.items()
        if names or not (all(value is None for value in of) or any(isinstance(value, list | dict) for value in of))
    ]


def _cell(name: str, row: Mapping[str, Any]) -> Any:
    """Return a value as a table has it: the first line of a text, and of SHORTER what it names."""
    value = row.get(name)
    if isinstance(value, float) and value and not 0.001 <= abs(value) < 1000:
        return f"{value:.4f}" if abs(value) < 1 else f"{value:.1f}"
    if not isinstance(value, str):
        return value
    parts = SHORTER.fullmatch(value)
    return value.partition("\n")[0] if parts is None else "".join(filter(None, parts.groups()))


# --- parameters -------------------------------------------------------------------------------------------------------


class JsonValue(click.ParamType):
    """A value in JSON, or @FILE that has it; @- is stdin."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value. Raises BadParameter."""
        from schemas import json_text

        try:
            if value == "@-":
                value = click.get_text_stream("stdin").read()
            elif value.startswith("@"):
                value = Path(value[1:]).read_text(encoding="utf-8")
            return json_text.parse(value)
        except (OSError, ValueError) as exc:  # a text that is not UTF-8, too
            self.fail(f"{value[:80]!r} is not JSON, nor @FILE that has it: {exc}", param, ctx)


def _one_kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that is set, with its description and default."""
    parts = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if len(parts) == 1:
        schema = {**parts[0], **schema}
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **schema}
    return dict(schema)


def _argument(name: str, schema: Mapping[str, Any], required: bool) -> click.Argument:
    return click.Argument([name], type=_type(name, schema), required=required)


def _option(name: str, schema: Mapping[str, Any], required: bool) -> click.Option:
    option, about, default = f"--{name.replace('_', '-')}", schema.get("description", ""), schema.get("default")
    about, _, of_default = about.partition("default: ")
    if of_default or (isinstance(default, str | int | float) and default not in ("", False)):
        about = f"{about.rstrip('; ')}.  [default: {of_default or default}]".removeprefix(".  ")
    text = f"{about[:1].upper()}{about[1:]}"
    text += "." if text and text[-1] not in ".]" else ""
    if schema.get("type") == "boolean":
        option += f"/--no-{option[2:]}" if required or default else ""
        return click.Option([option, name], is_flag=True, default=None, required=required, help=text)
    many = schema.get("type") == "array" and schema["items"].get("type") == "string"
    kind = click.STRING if many else _type(name, schema)
    return click.Option([option, name], type=kind, multiple=many, required=required, help=text.strip())


def _type(name: str, schema: Mapping[str, Any]) -> click.ParamType:
    if "enum" in schema:
        return click.Choice(schema["enum"])
    match schema.get("type"):
        case "integer" if name in VERSIONS:
            return VersionNumber(min=0)
        case "integer" if schema.get("maximum", 0) in range(1, MOST):
            return click.IntRange(schema.get("minimum"), schema["maximum"])
        case "integer":
            return click.INT
        case "number":
            return click.FLOAT
        case "string":
            return click.STRING
    return JsonValue()
