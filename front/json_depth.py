"""How deep JSON from outside may nest, so that no walk over it can exhaust the stack."""

from typing import Any

MAX_DEPTH = 64


def nested_too_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
