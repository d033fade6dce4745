"""Attack on every HTTP route: requests of valid shape, with odd values in sensitive places."""

import json
import random
from functools import partial
from typing import Any

from hypothesis import strategies as st

from scripts.attack.attack import Attempt
from scripts.attack.drawing import examples, odd_json
from scripts.attack.http_call import HttpCall, ask
from scripts.attack.world import ANN, OWNER

_MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "hello", "max_tokens": 4},
        {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "seed": 3},
        {"prompt": "x", "max_tokens": 4, "stop": ["a"], "logprobs": 1, "stream": True},
    ],
    "/v1/chat/completions": [
        {"messages": _MESSAGES, "max_tokens": 4},
        {"messages": _MESSAGES, "max_tokens": 4, "tools": [_TOOL], "stream": True},
        {"messages": _MESSAGES, "max_completion_tokens": 4, "chat_template_kwargs": {"a": 1}},
    ],
    "/tokenize": [{"prompt": "hello"}, {"messages": _MESSAGES}],
}
_ELSEWHERE = (
    *("/v1/models", "/v1/models/x", "/v1/models/%00", "/version", "/ready", "/page/../server.py"),
    *("/debug/overview?seconds=1e9&points=-1", "/debug/requests/%ff", "/debug/tree?under=x"),
    *("/debug/events?after=-1", "/debug/overview?seconds=60&points=60", "/metrics", "/nothing"),
)
_TARGETS = ("x-slo-ttft-ms", "x-slo-tpot-ms", "x-slo-e2e-ms")
_TIMES = ("1e-300", "0", "-1", "1", "50", "nan", "inf", "1e9", "1e300", "9" * 400, "", "soon")
# Fields with a long answer as the effect of an odd value, instead of a rejection.
_LENGTHS = ("max_tokens", "max_completion_tokens")


def http_fuzz(attempt: Attempt) -> None:
    rng, world = attempt.rng, attempt.world
    for _ in attempt.rounds():
        calls = [
            partial(ask, rng.choice(world.nodes).http_address, _call(rng, odd), attempt.tally)
            for odd in examples(odd_json | st.just(...), rng, 24)
        ]
        attempt.at_once(4, calls)


def _call(rng: random.Random, odd: Any) -> HttpCall:
    key = rng.choice((ANN, ANN, ANN, OWNER, "", "forged"))
    if rng.random() < 0.15:
        return HttpCall(
            rng.choice(("GET", "POST", "DELETE", "PUT")), rng.choice(_ELSEWHERE), key=key
        )
    path = rng.choice(list(_VALID))
    body = json.loads(json.dumps(rng.choice(_VALID[path])))
    changed = odd if rng.random() < 0.05 else _changed(rng, body, odd)
    text = json.dumps(None if changed is ... else changed).encode()
    match rng.randrange(12):
        case 0:
            text = text[: rng.randrange(len(text) + 1)]
        case 1:
            text += bytes(rng.randrange(256) for _ in range(5))
    kind = rng.choice(("application/json",) * 6 + ("text/plain", "", "application/json; charset=x"))
    headers = {"Content-Type": kind}
    headers |= {name: rng.choice(_TIMES) for name in _TARGETS if rng.random() < 0.2}
    return HttpCall("POST", path, text, key, headers)


def _changed(rng: random.Random, body: Any, odd: Any) -> Any:
    """Replace the value at a random place of the JSON body by `odd`; `...` removes it instead.
    Sometimes sets a sensitive field instead. Returns the body."""
    place = body
    while True:
        names = list(place) if isinstance(place, dict) else list(range(len(place)))
        names = [name for name in names if name not in _LENGTHS]
        if isinstance(place, dict) and rng.random() < 0.1:
            place[rng.choice(("n", "logit_bias", "response_format", "cache_salt", "top_k"))] = (
                0 if odd is ... else odd
            )
            return body
        if not names:
            return body
        name = rng.choice(names)
        if isinstance(place[name], dict | list) and place[name] and rng.random() < 0.7:
            place = place[name]
        elif odd is ...:
            del place[name]
            return body
        else:
            place[name] = odd
            return body
