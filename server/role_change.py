"""The change of a node's role on request: the node drains, then starts again in the other role.

The process replaces itself (exec) under the same process id and at the same addresses. A role is
the name of a command here, and its settings are fields. Thread rule: the event loop, except for
become(): it ends all threads. Invariants: the new role's settings are read and checked before the
node drains. A call may tune a node, but never sets its callers, addresses or peers (TUNING).
Secrets pass through memory, never on a command line.

The new role's settings come from three sources: the settings common to both roles, the file for the
other role (`other_role_config`), and the call. A later source wins. The new process gets the old
role's settings as its `other_role_config`. So a node returning to a role has the same settings as
before.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from tasuki.utils.flags import FlagError, read_configs
from tasuki.utils.options import ConfigFileError, Setting, file_settings, flags_of
from tasuki.utils.program import COMMANDS, PACKAGE
from tasuki.utils.signatures import Notice

from .errors import InvalidRequest, RoleFixed

ROLES = ("prefill", "decode")

_OTHER_ROLE = "other_role_config"

TUNING = frozenset(
    {
        *(
            *("arena_mib", "picture_rows_mib"),
            *("host_cache_gib", "disk_cache_gib", "disk_write_budget"),
            *("remote_cache_gib", "remote_write_budget"),
            "gpu_memory_utilization",
            "max_batch",
            "prefill_chunk_tokens",
            "threads",
            "cache_policy",
            "speculate",
            "draft_tokens",
            "draft_count",
        ),
        *("queue_timeout", "ttft_target", "max_itl_ms"),
        *("route", "local_prefill_tokens", "pull_tokens", "layers_per_window"),
        *(
            "drain_grace",
            "drain_timeout",
            "max_sessions",
            "session_idle_seconds",
            "session_pictures_mib",
            "chat_cache_mib",
            "log_level",
        ),
    }
)
"""Names of settings a role-change call may set: a node's speed and its capacity."""


@dataclass(frozen=True)
class NextRole:
    """The next role of a node. settings: settings of the new role. left: settings of the old
    role."""

    role: str
    settings: Mapping[str, Setting]
    left: Mapping[str, Setting]


class RoleChange:
    """The change of this node's role, if one was asked for. wanted: the role to take once the
    daemon has drained; None: the daemon ends."""

    def __init__(self, role: str, configs: Sequence[object]) -> None:
        """Read the settings of both roles. role: the daemon's present role, one of ROLES. configs:
        its dataclasses. The other role is checked only if other_role_config is set. Raises
        ConfigFileError, and InvalidRequest if the other role cannot start with
        other_role_config."""
        self.role = role
        self.wanted: NextRole | None = None
        self._settings = {
            item.name: getattr(config, item.name)
            for config in configs
            for item in fields(config)  # type: ignore[arg-type]
        }
        self._defaults = {
            item.name: item.default
            for config in configs
            for item in fields(config)  # type: ignore[arg-type]
        }
        self._standing: tuple[dict[str, Setting], Notice] | None = None
        if self._settings.get(_OTHER_ROLE):
            (other,) = set(ROLES) - {role}
            _check(other, self._carried(other))

    def offer(self, address: str, http: str | None, stop: Notice) -> None:
        """Accept role changes from now on. address, http: HOST:PORT of the gRPC and the HTTP
        server, kept by the new role; None: no server. stop: makes the daemon drain and end."""
        self._standing = {"bind": address, "http_bind": http or ""}, stop

    def ask(self, role: str, given: Mapping[str, str]) -> None:
        """Begin the change to `role` and return before its end. Does nothing if the node has or
        takes this role already. given: settings of the new role by name. Raises InvalidRequest, and
        RoleFixed if it cannot change now."""
        if role not in ROLES:
            raise InvalidRequest(f"role must be one of {', '.join(ROLES)}")
        if self.wanted is not None and self.wanted.role != role:
            raise RoleFixed(f"this node is becoming a {self.wanted.role} node: ask it again then")
        if self.wanted is not None or role == self.role:
            return
        if self._standing is None:
            raise RoleFixed("this node is still starting: ask again once it is ready")
        addresses, stop = self._standing
        tuned = _tuned(role, given)
        try:
            settings = self._carried(role) | tuned | addresses
        except ConfigFileError as error:
            raise RoleFixed(str(error)) from error
        _check(role, settings)
        self.wanted = NextRole(role, settings, self._left())
        stop()

    def _carried(self, role: str) -> dict[str, Setting]:
        """Return settings for the new role: this daemon's changed ones, then other_role_config's.
        Raises ConfigFileError."""
        known = _fields_of(role)
        carried = {
            name: value
            for name, value in self._settings.items()
            # The new role has its own defaults.
            if name in known and value != self._defaults[name] and name != _OTHER_ROLE
        }
        path = self._settings.get(_OTHER_ROLE)
        return carried | (file_settings(str(path), [*known]) if path else {})

    def _left(self) -> dict[str, Setting]:
        """Return this role's settings, defaults included. When the node returns to this role, they
        override all settings carried over from the other role."""
        return {
            name: value
            for name, value in self._settings.items()
            if value is not None and name != _OTHER_ROLE
        }


def _tuned(role: str, given: Mapping[str, str]) -> dict[str, Setting]:
    """Return the settings given in a role-change call, checked. Raises InvalidRequest."""
    known = _fields_of(role)
    for name in given:
        if name not in known:
            raise InvalidRequest(f"settings.{name} is no setting of a {role} node")
        if name not in TUNING:
            raise InvalidRequest(
                f"settings.{name} is not changed by a call: start the node with it, and with "
                f"--other-role-config FILE where only its other role has it"
            )
    return dict(given)


def become(wanted: NextRole) -> NoReturn:
    """Replace this process by a daemon of the wanted role, under the same process id. REQUIRES: all
    servers have ended."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            _close_on_exec(int(name))
    other = _inherited("other-role", wanted.left)
    settings = _inherited("settings", {**wanted.settings, _OTHER_ROLE: other})
    sys.stdout.flush()
    command = [sys.executable, "-m", f"{PACKAGE}.cli.main", wanted.role]
    os.execv(sys.executable, [*command, "--config", settings])


def _inherited(name: str, settings: Mapping[str, Setting]) -> str:
    """Write the settings to a file in memory, and return its path. The new process inherits it, and
    no other process can open it."""
    descriptor = os.memfd_create(name, 0)
    os.write(descriptor, _toml(settings).encode())
    os.set_inheritable(descriptor, True)
    return f"/proc/self/fd/{descriptor}"


def _check(role: str, settings: Mapping[str, Setting]) -> None:
    """Raise InvalidRequest if `role` would not start with these settings."""
    try:
        read_configs(flags_of(settings), *_configs_of(role))
    except FlagError as error:
        raise InvalidRequest(f"settings: {error}") from error


def _fields_of(role: str) -> frozenset[str]:
    return frozenset(item.name for config in _configs_of(role) for item in fields(config))


def _configs_of(role: str) -> tuple[type[Any], ...]:
    module = importlib.import_module(f"{PACKAGE}.{COMMANDS[role][0]}")
    configs: tuple[type[Any], ...] = module.CONFIGS
    return configs


def _toml(settings: Mapping[str, Setting]) -> str:
    # JSON's values of these types are valid TOML.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def _close_on_exec(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        return  # the descriptor of the listing itself, closed by now
