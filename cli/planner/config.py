"""The settings of a planner: the targets of `tasuki ray --plan`.

Also holds a planner's access to the nodes it placed.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tasuki.cli.fleet.config import Credentials, PollLimits
from tasuki.routing.planner.policy import NodeBounds, Pace, PlanPolicy, ServiceTargets
from tasuki.server.bind import join_address
from tasuki.utils.options import Headings, option


@dataclass(frozen=True)
class NodeAccess:
    """The planner's access to its nodes. key: API key sent to nodes; empty for none. ca: PEM file
    for checking nodes; empty: plain text. drain_seconds: seconds for requests in flight to
    finish."""

    key: str = field(default="", repr=False)
    ca: str = ""
    drain_seconds: float = 600.0

    def flags(self, host: str, given: Sequence[str]) -> list[str]:
        """Return the flags needed by a planned daemon and missing in `given`. They are time to
        drain, and an HTTP server on `host` for its metrics."""
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


class PlannerConfigError(ValueError):
    """A file named by a setting cannot be used. The message names the file and the fix."""


@dataclass(frozen=True)
class PlannerConfig:
    HEADINGS: ClassVar[Headings] = {
        "Targets": ("ttft_target_ms", "itl_target_ms", "target_share"),
        "Bounds": ("least_prefill", "least_decode", "least_nodes", "most_nodes"),
        "Pace": (
            *("plan_seconds", "plan_window", "plan_ahead", "settle_seconds", "cool_down_seconds"),
            *("clear_seconds", "warm_seconds"),
        ),
        "Nodes": ("drain_seconds", "plan_key_file", "plan_ca"),
    }

    ttft_target_ms: float = option(2000.0, "promised milliseconds to the first token")
    itl_target_ms: float = option(50.0, "promised milliseconds for each later token")
    target_share: float = option(0.95, "share of requests to meet each target")
    least_prefill: int = option(1, "least number of prefill nodes")
    least_decode: int = option(1, "least number of decode nodes")
    least_nodes: int = option(
        2, "least number of nodes of both roles; equal to --most-nodes: only roles change"
    )
    most_nodes: int = option(64, "most nodes of both roles")
    plan_seconds: float = option(5.0, "between two plans")
    plan_window: float = option(
        600.0, "trends are read from so many seconds; nothing is taken away before they are full"
    )
    plan_ahead: float = option(180.0, "seconds of forecast demand: a node's start and some more")
    settle_seconds: float = option(
        600.0, "seconds from a role's new node until a node may leave the role"
    )
    cool_down_seconds: float = option(30.0, "seconds between two removals of nodes")
    clear_seconds: float = option(90.0, "a queue is to be worked off within")
    warm_seconds: float = option(30.0, "a node is ready for, before its speed counts")
    drain_seconds: float = option(
        600.0, "most seconds of a node's drain before its requests are cut"
    )
    plan_key_file: str = option("", "file with the key for nodes: scopes metrics and operator")
    plan_ca: str = option("", "PEM file of a CA: ask nodes by TLS and check them against it")

    def __post_init__(self) -> None:
        for name in ("plan_seconds", "warm_seconds", "drain_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be over 0, not {getattr(self, name)}")
        if self.plan_seconds * 4 > self.plan_window:
            raise ValueError("plan_window must be at least four times plan_seconds")
        _ = self.policy

    @property
    def policy(self) -> PlanPolicy:
        """Return the planner's policy from the settings. Raises ValueError."""
        window, every = self.plan_window, self.plan_seconds
        return PlanPolicy(
            ServiceTargets(
                self.ttft_target_ms / 1000, self.itl_target_ms / 1000, self.target_share
            ),
            NodeBounds(self.least_prefill, self.least_decode, self.least_nodes, self.most_nodes),
            Pace(
                window=window,
                level=max(2 * every, window / 10),
                quick=max(every, window / 40),
                ahead=self.plan_ahead,
                settle=self.settle_seconds,
                cool_down=self.cool_down_seconds,
                clear=self.clear_seconds,
            ),
        )

    @property
    def limits(self) -> PollLimits:
        return PollLimits(every_seconds=self.plan_seconds / 2)

    @property
    def access(self) -> NodeAccess:
        """Return the planner's access to its nodes. Raises PlannerConfigError."""
        return NodeAccess(self._key, self.plan_ca, self.drain_seconds)

    def credentials(self, insecure: bool) -> Credentials:
        """Return the credentials for polling nodes. insecure: the key may leave this host in plain
        text. Raises PlannerConfigError for a bad key or CA file."""
        try:
            tls = ssl.create_default_context(cafile=self.plan_ca) if self.plan_ca else None
        except OSError as error:
            raise PlannerConfigError(
                f"plan_ca {self.plan_ca} cannot be used: give a PEM file of the nodes' CA"
            ) from error
        return Credentials(self._key, tls, insecure)

    @property
    def _key(self) -> str:
        if not self.plan_key_file:
            return ""
        try:
            key = Path(self.plan_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PlannerConfigError(
                f"plan_key_file {self.plan_key_file} cannot be read: name a file with one key"
            ) from error
        if not key or any(character.isspace() for character in key):
            raise PlannerConfigError(
                f"plan_key_file {self.plan_key_file} must hold one key and nothing else"
            )
        return key
