"""The requests of a client's driver to a model trained by tools/tool_caller, and the report of
results, a column for each feature. Works in any Python with the client installed: nothing of tasuki
is imported.

A driver is run as `python DRIVER URL MODEL`, in a folder it may write in; URL is without /v1.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

COLUMNS = ("text", "stream", "tools", "forced tool", "structured", "default API")

URL, MODEL = (*sys.argv[1:3], "", "")[:2]
API = f"{URL}/v1"
KEY = "none"
SAID = "Good morning"
SAY = f'Say "{SAID}".'
ARGUMENTS = {"city": "Bath", "days": 3}
CALL = 'Call get_weather with city="Bath", days=3.'
FOUND = "Rain in Bath"
PERSON = {"name": "Jason", "age": 25}
WRITE = f"Write {json.dumps(PERSON)}."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather to come.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def person(doc: str | None = None) -> Any:
    """Return a pydantic model with the fields of PERSON. doc: its docstring."""
    from pydantic import create_model

    return create_model("Person", __doc__=doc, name=(str, ...), age=(int, ...))


calls: list[dict[str, Any]] = []
"""Recorded arguments of each call of get_weather."""


def get_weather(city: str, days: int) -> str:
    """The weather to come."""
    calls.append({"city": city, "days": days})
    return FOUND


def call_of(name: str) -> str:
    """Return a request text asking for a call of the tool `name` with the fields of PERSON."""
    fields = ", ".join(f"{key}={json.dumps(value)}" for key, value in PERSON.items())
    return f"Call {name} with {fields}."


def same(found: object, expected: object) -> None:
    """Raise AssertionError naming both values if they differ."""
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def gives(expected: object, *runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each function of `runs` must return the expected value."""

    def check() -> None:
        for run in runs:
            same(run(), expected)

    return check


def says(*runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each function of `runs` must return the text SAID."""
    return gives(SAID, *runs)


def calls_and_says(*runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each function of `runs` must call get_weather once with ARGUMENTS and return
    FOUND."""

    def called(run: Callable[[], object]) -> object:
        calls.clear()
        return run(), calls

    return gives((FOUND, [ARGUMENTS]), *(partial(called, run) for run in runs))


def all_of(*checks: Callable[[], None]) -> Callable[[], None]:
    """Return a check running all the given checks."""

    def check() -> None:
        for each in checks:
            each()

    return check


def report(**checks: Callable[[], None]) -> None:
    """Run the checks and print a line of JSON: each column with "" if its check passes, otherwise
    the error.

    checks: functions by column name, with `_` for a space and `default` for the last column. A
    check raises if its column does not hold. A feature the client lacks has no check.
    """
    found = {}
    for column in COLUMNS:
        run = checks.get("default" if column == COLUMNS[-1] else column.replace(" ", "_"))
        if run is None:
            continue
        try:
            run()
            found[column] = ""
        except Exception as error:
            found[column] = f"{type(error).__name__}: {error}"[:600]
    print("\n" + json.dumps({"columns": found}), flush=True)
