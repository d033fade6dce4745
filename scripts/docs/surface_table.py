"""`python -m scripts.docs.surface_table`: writes the table of docs/security.md from
server/auth/surfaces.py.

Pure functions.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tasuki.server.auth.surfaces import ANY_METHOD, GRPC, HTTP, Needs, Unscoped

_HEAD = """\
| asked for | gRPC | HTTP |
| --- | --- | --- |
"""
_ASKED = {
    Unscoped.OPEN: "nothing",
    Unscoped.ANY_KEY: "any key",
    Unscoped.PEER: "no key, but a node's certificate",
}

Name = TypeVar("Name")


def surface_table() -> str:
    """Return a Markdown table: a row for each requirement on a caller, with its methods and
    routes."""
    asked = dict.fromkeys((*GRPC.values(), *HTTP.values()))
    return _HEAD + "".join(map(_row, sorted(asked, key=_asked_for)))


def _row(needs: Needs) -> str:
    methods, routes = _methods(_with(GRPC, needs)), _routes(_with(HTTP, needs))
    return f"| {_asked_for(needs)} | {methods} | {routes} |\n"


def _asked_for(needs: Needs) -> str:
    if isinstance(needs, Unscoped):
        return _ASKED[needs]
    return " or ".join(f"`{scope}`" for scope in sorted(scope.value for scope in needs))


def _with(table: Mapping[Name, Needs], wanted: Needs) -> list[Name]:
    return [name for name, needs in table.items() if needs == wanted]


def _methods(names: Iterable[str]) -> str:
    services: dict[str, list[str]] = {}
    for full in names:
        service, _, name = full.removeprefix("/").rpartition("/")
        services.setdefault(service.rpartition(".")[2], []).append(name)
    return "; ".join(f"`{service}`: {', '.join(found)}" for service, found in services.items())


def _routes(surfaces: Iterable[tuple[str, str]]) -> str:
    return ", ".join(
        f"`{'any method' if method == ANY_METHOD else method} {pattern}`"
        for method, pattern in surfaces
    )


if __name__ == "__main__":
    print(surface_table(), end="")
