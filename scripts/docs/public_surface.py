"""`python -m scripts.docs.public_surface`: prints the public names promised by docs/stability.md,
one a line.

These are flags, messages and methods of the wire, routes with their fields, metrics, error codes,
the SDK and environment variables. `--write` records them in docs/public_surface.txt. A test
compares.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor as MessageDescriptor
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, FileDescriptor

from scripts.docs.error_table import rows
from tasuki import client
from tasuki.cli.completion import described
from tasuki.dashboard.metrics.metrics_reference import families
from tasuki.server.auth.surfaces import HTTP
from tasuki.server.openapi.document import document
from tasuki.utils.program import COMMANDS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "public_surface.txt"
_PROTOS = ("handover", "inference", "report", "timeline")
_VARIABLE = re.compile(r"\"(TASUKI_[A-Z_]+)\"")
_PRODUCTION = ("cli", "client", "engine", "model", "server", "transfer", "utils")


def main(argv: Sequence[str]) -> int:
    lines = "\n".join(names()) + "\n"
    if list(argv) == ["--write"]:
        RECORD.write_text(lines, encoding="utf-8")
    else:
        print(lines, end="")
    return 0


def names() -> list[str]:
    """Return all public names as sorted lines, each with its kind first."""
    found = [*_flags(), *_wire(), *_routes(), *_metrics(), *_errors(), *_sdk(), *_variables()]
    return sorted(set(found))


def _flags() -> Iterator[str]:
    for command in (described(name) for name in COMMANDS):
        for flag in command.flags:
            choices = f" {{{','.join(flag['choices'])}}}" if flag["choices"] else ""
            for name in flag["flags"]:
                yield f"flag tasuki {command.name} {name}{choices}"


def _wire() -> Iterator[str]:
    for name in _PROTOS:
        file: FileDescriptor = importlib.import_module(f"tasuki.proto.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                asked = "stream " * method.client_streaming + method.input_type.full_name
                answered = "stream " * method.server_streaming + method.output_type.full_name
                yield f"wire {method.full_name} ({asked}) returns ({answered})"
        for message in file.message_types_by_name.values():
            yield from _message(message)
        for enum in file.enum_types_by_name.values():
            yield from _enum(enum)


def _message(message: MessageDescriptor) -> Iterator[str]:
    for field in message.fields:
        yield f"wire {field.full_name} = {field.number} {_type(field)}"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield from _enum(enum)


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"wire {enum.full_name}.{value.name} = {value.number}"


def _type(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    name = kind.full_name if kind else f"type {field.type}"
    return f"repeated {name}" if field.is_repeated else name


def _routes() -> Iterator[str]:
    made = document(HTTP, "", keyed=True)
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            route = f"http {method.upper()} {path}"
            yield route
            for parameter in operation.get("parameters", ()):
                yield f"{route} {parameter['in']} {parameter['name']}"
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for field in _properties(content["schema"], made):
                    yield f"{route} body {field}"


def _properties(schema: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Return the field names of a JSON schema. A reference is followed inside the document
    `made`."""
    found: Any = schema
    while "$ref" in found:
        at: Any = made
        for part in found["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        found = at
    return list(found.get("properties", ()))


def _metrics() -> Iterator[str]:
    for family in families():
        labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
        yield f"metric {family.name} {family.type} {{{','.join(labels)}}}"


def _errors() -> Iterator[str]:
    for row in rows():
        yield f"error {row.kind} {row.status} {row.http} {row.code} {row.retry.value}"


def _sdk() -> Iterator[str]:
    for name in client.__all__:
        value = getattr(client, name)
        yield f"sdk {name}"
        for field in getattr(value, "__annotations__", ()):
            yield f"sdk {name}.{field}"
        for member, function in inspect.getmembers(value, inspect.isfunction):
            if not member.startswith("_") or member == "__init__":
                yield f"sdk {name}.{member}({_parameters(function)})"


def _parameters(function: Any) -> str:
    return ", ".join(inspect.signature(function).parameters)


def _variables() -> Iterator[str]:
    for folder in _PRODUCTION:
        for path in (ROOT / folder).rglob("*.py"):
            for name in _VARIABLE.findall(path.read_text(encoding="utf-8")):
                yield f"environment {name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
