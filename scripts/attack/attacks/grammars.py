"""Constraints that are slow to try, large to keep, or that no text follows."""

import json
from functools import partial
from typing import Any

from scripts.attack.attack import Attempt
from scripts.attack.crowd import at_once
from scripts.attack.http_call import HttpCall, ask
from scripts.attack.world import ANN

_PATTERNS = (
    *("(" * 500 + "a" + ")" * 500, "((a{1,1000}){1,1000}){1,1000}", "(a|b)*a(a|b){22}"),
    *("(.*a){60}", "(?=a)b", r"[\p{L}\p{N}]{1,5000}x", r"[^\s\S]"),
    "|".join(f"w{number}" for number in range(20_000)),
)


def grammar_bombs(attempt: Attempt) -> None:
    hello = {"prompt": "hello", "max_tokens": 4}
    bodies = [{**hello, "json_schema": json.dumps(schema)} for schema in _schemas()]
    bodies += [{**hello, "regex": pattern} for pattern in _PATTERNS]
    headers = {"Content-Type": "application/json"}
    address = attempt.world.decode.http_address
    for _ in attempt.rounds():
        calls = [
            HttpCall("POST", "/v1/completions", json.dumps(body).encode(), ANN, headers)
            for body in bodies
        ]
        attempt.rng.shuffle(calls)
        at_once(4, [partial(ask, address, call, attempt.tally) for call in calls], attempt.until)


def _schemas() -> list[Any]:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(50):
        deep = {"type": "array", "items": deep}
    slow = [
        {"type": "string", "pattern": f"^a{number}[bc]*(x|y){{1,30}}$"} for number in range(2000)
    ]
    circle = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
    return [
        *(deep, [1], False, {"not": {}}, {"$ref": "#"}, {"$defs": circle, "$ref": "#/$defs/a"}),
        {"type": "object", "properties": {str(number): one for number, one in enumerate(slow)}},
        {"allOf": [{"anyOf": slow[:8]}] * 8},
        {"enum": [f"value {number}" for number in range(15_000)]},
        {"type": "string", "minLength": 10**9},
        {"type": "integer", "minimum": -(10**400)},
    ]
