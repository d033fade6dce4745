"""A node that is asked to take the other role: drain, then begin again as what was asked for.

The process replaces itself (exec), so that the new role has a process of its own making, under the
same id and at the same addresses. Knows roles as names of commands and their settings as fields;
does not know what either does. Thread rule: the event loop, but for become(), which ends all
threads.
Invariants: what is asked for was read and found good before anything is drained; secrets travel in
memory, never on a command line.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from .cli import COMMANDS, PACKAGE
from .errors import InvalidRequest, RoleFixed
from .flags import FlagError, read_configs

Setting = str | int | float | bool

ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class NextRole:
    role: str
    settings: Mapping[str, Setting]


class RoleChange:
    """wanted: what the daemon is to become once it has drained; None: nothing, it just ends."""

    def __init__(self, role: str, configs: Sequence[object]) -> None:
        """role: one of ROLES, the daemon's now; configs: its dataclasses."""
        self.role = role
        self.wanted: NextRole | None = None
        self._configs = configs
        self._standing: tuple[dict[str, Setting], Callable[[], None]] | None = None

    def offer(self, address: str, http: str | None, stop: Callable[[], None]) -> None:
        """From now on it may be asked for. address, http: HOST:PORT that are served and are to be
        kept; stop: makes the daemon drain and end."""
        self._standing = {"bind": address, "http_bind": http or ""}, stop

    def ask(self, role: str, settings: Mapping[str, str]) -> None:
        """Returns at once. Nothing happens where the node has that role. settings: of the new role,
        beside what both roles have. Raises InvalidRequest, RoleFixed."""
        if role not in ROLES:
            raise InvalidRequest(f"role must be one of {', '.join(ROLES)}")
        if self.wanted is not None and self.wanted.role != role:
            raise RoleFixed(f"this node is becoming a {self.wanted.role} node: ask it again then")
        if self.wanted is not None or role == self.role:
            return
        if self._standing is None:
            raise RoleFixed("this node is still starting: ask again once it is ready")
        addresses, stop = self._standing
        wanted = NextRole(role, self._carried(role, settings) | addresses)
        _check(wanted)
        self.wanted = wanted
        stop()

    def _carried(self, role: str, settings: Mapping[str, str]) -> dict[str, Setting]:
        known = {item.name: item for config in _configs_of(role) for item in fields(config)}
        carried: dict[str, Setting] = {}
        for config in self._configs:
            for item in fields(config):  # type: ignore[arg-type]
                value = getattr(config, item.name)
                # A default is the new role's own.
                if item.name in known and value != item.default:
                    carried[item.name] = value
        for name, text in settings.items():
            if name not in known:
                raise InvalidRequest(f"settings.{name} is no setting of a {role} node")
            switch = isinstance(known[name].default, bool)
            carried[name] = {"true": True, "false": False}.get(text, text) if switch else text
        return carried


def become(wanted: NextRole) -> NoReturn:
    """This process goes on as that daemon. REQUIRES: everything it served has ended."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            _close_on_exec(int(name))
    settings = os.memfd_create("settings", 0)
    os.write(settings, _toml(wanted.settings).encode())
    os.set_inheritable(settings, True)
    sys.stdout.flush()
    command = [sys.executable, "-m", f"{PACKAGE}.front.cli", wanted.role]
    os.execv(sys.executable, [*command, "--config", f"/proc/self/fd/{settings}"])


def _check(wanted: NextRole) -> None:
    """Raises InvalidRequest where the new role would not start with these settings."""
    configs = _configs_of(wanted.role)
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in wanted.settings.items()
        if not isinstance(value, bool)
    ]
    try:
        read_configs(flags, *configs)
    except FlagError as error:
        raise InvalidRequest(f"settings: {error}") from error


def _configs_of(role: str) -> tuple[type[Any], ...]:
    module = importlib.import_module(f"{PACKAGE}.{COMMANDS[role][0]}")
    configs: tuple[type[Any], ...] = module.CONFIGS
    return configs


def _toml(settings: Mapping[str, Setting]) -> str:
    # Of these types JSON's values are TOML's.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def _close_on_exec(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        return  # it was the listing's own
