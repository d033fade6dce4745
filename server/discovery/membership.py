"""The addresses of the prefill nodes: given once, or read from a file whenever it changes.

Thread rule: the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)


class MembershipError(ValueError):
    """The list of prefill nodes cannot be used. The message names the entry and the fix."""


class Membership(Protocol):
    def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield the addresses of the prefill nodes, HOST:PORT, now and after each change."""


class FixedMembership:
    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = tuple(targets)

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        yield self._targets


class FileMembership:
    """Prefill nodes listed in a file: one HOST:PORT a line, `#` begins a comment. An unreadable or
    wrong file changes nothing, because a typing error must not drop working nodes."""

    def __init__(self, path: Path, poll_seconds: float = 0.5) -> None:
        self._path = path
        self._poll_seconds = poll_seconds

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield the addresses of the prefill nodes, now and after each change. Raises
        MembershipError if the first reading fails; later failures are logged."""
        known = self._read()
        yield known
        complaint = ""
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                seen = self._read()
            except MembershipError as error:
                if str(error) != complaint:
                    log.warning("members stay as they are: %s", error)
                complaint = str(error)
                continue
            complaint = ""
            if seen != known:
                known = seen
                yield known

    def _read(self) -> tuple[str, ...]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MembershipError(f"{self._path} cannot be read: {error}") from error
        entries = (line.partition("#")[0].strip() for line in lines)
        return tuple(check_target(entry, str(self._path)) for entry in entries if entry)


def check_target(target: str, source: str) -> str:
    """Return `target` unchanged if it is a valid HOST:PORT, with a port from 1 to 65535. source:
    origin of the target, for errors. Raises MembershipError."""
    host, separator, port = target.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise MembershipError(
            f"{source}: {target!r} is not HOST:PORT: write for example 127.0.0.1:50052"
        )
    return target
