"""How much room the file systems of a node's folders have.

Owns the look that is under way. One event loop's thread; the look itself, which a file system of
another host may hold up for ever, has a thread of its own. Invariants: one look at a time; nobody
waits for one longer than they say, and then gets what the last one saw.
"""

import asyncio
import os
import threading
from collections.abc import Mapping

from tasuki.dashboard.metrics.health.front_report import DiskRoom


class DiskRooms:
    def __init__(self, folders: Mapping[str, str]) -> None:
        """folders: by the setting that names them."""
        self._folders = dict(folders)
        self._seen: dict[str, DiskRoom] = {}
        self._looking: asyncio.Future[dict[str, DiskRoom]] | None = None

    async def within(self, seconds: float) -> dict[str, DiskRoom]:
        """By setting; without those that could not be looked at."""
        if not self._folders:
            return {}
        looking = self._looking = self._looking or self._look()
        await asyncio.wait([looking], timeout=seconds)
        if looking.done():
            self._looking = None
            if not looking.cancelled():
                self._seen = looking.result()
        return self._seen

    def _look(self) -> "asyncio.Future[dict[str, DiskRoom]]":
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[dict[str, DiskRoom]] = loop.create_future()

        def settle(found: dict[str, DiskRoom]) -> None:
            if not seen.done():
                seen.set_result(found)

        def look() -> None:
            found = _rooms(self._folders)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found)

        # No pool's: its threads are waited for at the process's end.
        threading.Thread(target=look, name="tasuki-disk-look", daemon=True).start()
        return seen


def _rooms(folders: Mapping[str, str]) -> dict[str, DiskRoom]:
    found = {}
    for setting, folder in folders.items():
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
        free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
        found[setting] = DiskRoom(free, total)
    return found
