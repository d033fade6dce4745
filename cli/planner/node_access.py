"""How a planner reaches the nodes that it placed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasuki.server.bind import join_address


@dataclass(frozen=True)
class NodeAccess:
    """key: borne to nodes; empty for none. ca: PEM file that they are checked against; empty: plain
    text. drain_seconds: for which what is in flight may go on."""

    key: str = field(default="", repr=False)
    ca: str = ""
    drain_seconds: float = 600.0

    def flags(self, host: str, given: Sequence[str]) -> list[str]:
        """What a planned daemon must have, where `given` has not: an HTTP server for its metrics,
        and time to drain."""
        wanted = {
            "--http-bind": join_address(host, 0),
            "--drain-timeout": f"{self.drain_seconds:g}",
        }
        return [
            part
            for name, value in wanted.items()
            if not any(flag == name or flag.startswith(f"{name}=") for flag in given)
            for part in (name, value)
        ]
