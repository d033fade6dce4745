"""The requests of a driver to a model trained by tools/tool_caller, and the report of its results.
Works in any Python with the client installed: nothing of tasuki is imported.

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
    """Return a pydantic model of PERSON."""
    from pydantic import create_model

    return create_model("Person", __doc__=doc, name=(str, ...), age=(int, ...))


calls: list[dict[str, Any]] = []
"""Arguments of each call of get_weather."""


def get_weather(city: str, days: int) -> str:
    """The weather to come."""
    calls.append({"city": city, "days": days})
    return FOUND


def call_of(name: str) -> str:
    """Return a request for a call of tool `name` with a person's fields."""
    fields = ", ".join(f"{key}={json.dumps(value)}" for key, value in PERSON.items())
    return f"Call {name} with {fields}."


def same(found: object, expected: object) -> None:
    """Raise AssertionError with both values if they differ."""
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def gives(expected: object, *runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each run must return the expected value."""

    def check() -> None:
        for run in runs:
            same(run(), expected)

    return check


def says(*runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each run must return SAID."""
    return gives(SAID, *runs)


def calls_and_says(*runs: Callable[[], object]) -> Callable[[], None]:
    """Return a check: each run must call get_weather once with ARGUMENTS and return FOUND."""

    def called(run: Callable[[], object]) -> object:
        calls.clear()
        return run(), calls

    return gives((FOUND, [ARGUMENTS]), *(partial(called, run) for run in runs))


def all_of(*checks: Callable[[], None]) -> Callable[[], None]:
    """Return a check requiring all of these."""

    def check() -> None:
        for each in checks:
            each()

    return check


def report(**checks: Callable[[], None]) -> None:
    """Print a line of JSON: column -> "" if it holds, otherwise the error.

    checks: by column, with `_` for a space and `default` for the last; each raises if its column
    does not hold. A column the client lacks has no check.
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
