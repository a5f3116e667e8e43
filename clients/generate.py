"""The clients, made from gateway/openapi.json: `make clients` writes them; with --check it says what would change.

    openapi.json ──► reduced ──► datamodel-code-generator ──► python/streamward_client/models.py      types
                        │   └──► here                     ──► python/streamward_client/operations.py  a method each
                        └──────► @hey-api/openapi-ts      ──► typescript/src                          types, functions

What the server refuses or ignores is left out of the clients' types, and all errors of an operation are one: they have
the same fields. Objects may have more fields than are known, so that a client outlives what is added to answers.

openapi-python-client was tried for Python: 33,000 lines, and none for objects whose enum has objects.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "gateway" / "openapi.json"
NODE = HERE.parent / ".venv-strangers" / "node" / "node_modules" / ".bin"
PYTHON, TYPESCRIPT = "python/streamward_client", "typescript/src"
MODELS = [
    "--input-file-type=openapi",
    "--output-model-type=typing.TypedDict",
    "--target-python-version=3.11",
    "--openapi-scopes=schemas",
    "--enum-field-as-literal=all",
    "--collapse-root-models",
    "--use-schema-description",
    "--use-double-quotes",
    "--disable-timestamp",
    "--formatters=builtin",
]
FOR_BROWSERS = "/auth/oidc/"
JSON, FORM = "application/json", "multipart/form-data"
TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def reduced() -> dict[str, Any]:
    """Return the document as the generators get it."""
    found: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    failures = found["components"].pop("responses")
    _reduce(found["components"]["schemas"])
    found["paths"] = {path: each for path, each in found["paths"].items() if not path.startswith(FOR_BROWSERS)}
    for each in found["paths"].values():
        for operation in each.values():
            answers = operation["responses"]
            for code in [code for code in answers if code >= "400"]:
                answers["default"] = failures[answers.pop(code)["$ref"].rpartition("/")[2]]
            for answer in answers.values():
                answer.pop("headers", None)
                answer.get("content", {}).pop("text/event-stream", None)  # other clients stream
    return found


def _reduce(value: Any) -> None:
    if isinstance(value, dict):
        if isinstance(fields := value.get("properties"), dict):
            needed = value.get("required", [])
            for name in [name for name, field in fields.items() if "x-streamward" in field and name not in needed]:
                del fields[name]
            value.pop("additionalProperties", None)
        for inner in value.values():
            _reduce(inner)
    elif isinstance(value, list):
        for inner in value:
            _reduce(inner)


# --- Python: a method for each operation ------------------------------------------------------------------------------

HEAD = '''"""Every operation of the server as a method. Made by `make clients`; do not edit."""

from __future__ import annotations

from typing import Literal

from . import models
from .sending import AsyncSender, Sender, part


class Operations(Sender):
    """What can be asked of a server. Each method raises ApiError for an answer that is an error."""
'''
ASYNC_HEAD = '''

class AsyncOperations(AsyncSender):
    """What can be asked of a server, without waiting. Each method raises ApiError for an answer that is an error."""
'''


def operations(found: dict[str, Any]) -> str:
    """Return the module."""
    methods = [(name, path, operation) for path, each in found["paths"].items() for name, operation in each.items()]
    return (
        HEAD
        + "".join(_method(*one, "", "") for one in methods)
        + ASYNC_HEAD
        + "".join(_method(*one, "async ", "await ") for one in methods)
    )


def _method(verb: str, path: str, operation: dict[str, Any], begins: str, waits: str) -> str:
    parameters = operation.get("parameters", [])
    in_path = {one["name"]: f"{{part({one['name']})}}" for one in parameters if one["in"] == "path"}
    signature, sends = [f"{name}: str" for name in in_path], []
    content = operation.get("requestBody", {}).get("content", {})
    if JSON in content:
        signature.append(f"body: {_type(content[JSON]['schema'])}")
        sends.append("json=body")
    if FORM in content:
        for name, field in content[FORM]["schema"]["properties"].items():
            is_file = field.get("format") == "binary"
            signature.append(f"{name}: {'tuple[str, bytes]' if is_file else _type(field)}")
            sends.append(f'{"files" if is_file else "data"}={{"{name}": {name}}}')
    optional = [one for one in parameters if one["in"] in ("query", "header")]
    signature += ["*"] if optional else []
    for one in optional:
        kind = _type(one["schema"])
        signature.append(f"{_named(one['name'])}: {kind if kind.endswith('None') else kind + ' | None'} = None")
    for where in ("query", "header"):
        pairs = [f'"{one["name"]}": {_named(one["name"])}' for one in optional if one["in"] == where]
        sends += [f"{'params' if where == 'query' else 'headers'}={{{', '.join(pairs)}}}"] if pairs else []
    gives = _answer(operation)
    url = re.sub(r"\{(\w+)\}", lambda found: in_path[found[1]], path)
    asked = ", ".join([f'"{verb.upper()}"', f'{"f" if in_path else ""}"{url}"', *sends])
    lines = [f"{begins}def {operation['operationId']}(self, {', '.join(signature)}) -> {gives}:".replace(", )", ")")]
    lines += [f'    """{operation["description"]}"""']
    lines += (
        [f"    {waits}self.send({asked})"]
        if gives == "None"
        else [f"    answer: {gives} = {waits}self.send({asked})", "    return answer"]
    )
    return "\n" + "".join(f"    {line}\n" for line in lines)


def _named(name: str) -> str:
    return name.lower().replace("-", "_")


def _answer(operation: dict[str, Any]) -> str:
    kinds = set()
    for code, answer in operation["responses"].items():
        if code < "300":
            content = answer.get("content", {})
            kinds.add(_type(content[JSON]["schema"]) if JSON in content else "bytes" if content else "None")
    return " | ".join(sorted(kinds, key=lambda kind: kind == "None"))


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a value in Python."""
    if "$ref" in schema:
        return "models." + str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(one) for one in schema['enum'])}]"
    if schema["type"] == "array":
        return f"list[{_type(schema['items'])}]"
    return "None" if schema["type"] == "null" else TYPES[schema["type"]]


# --- all of it --------------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """Write what is generated into a folder like this one."""
    found = reduced()
    package, source = folder / PYTHON, folder / TYPESCRIPT
    package.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        given = Path(temporary, "openapi.json")
        given.write_text(json.dumps(found), encoding="utf-8")
        program = Path(sys.executable).with_name("datamodel-codegen")
        models = [str(program), *MODELS, "--input", given.name, "--output", str((package / "models.py").absolute())]
        subprocess.run(models, cwd=temporary, check=True)
        shutil.rmtree(source, ignore_errors=True)
        typed = [str(NODE / "openapi-ts"), "--input", given.name, "--output", str(source.absolute())]
        options = ["--client", "@hey-api/client-fetch", "--silent", "--no-log-file"]
        subprocess.run([*typed, *options], cwd=temporary, check=True)
    (package / "operations.py").write_text(operations(found), encoding="utf-8")


def changed(folder: Path) -> Iterator[str]:
    """Yield what differs from the files here."""
    made = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    kept = {path.relative_to(HERE) for path in (HERE / TYPESCRIPT).rglob("*") if path.is_file()}
    for path in sorted(made | kept):
        both = (folder / path).is_file() and (HERE / path).is_file()
        if not both or not filecmp.cmp(folder / path, HERE / path, shallow=False):
            yield str(path)


def main() -> int:
    """Return the exit code."""
    if "--check" not in sys.argv[1:]:
        write(HERE)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        found = list(changed(Path(temporary)))
    for path in found:
        print(f"clients/{path} would change; run `make clients`", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
