"""The prefill nodes of a decode node: who is a member, a link to each, and leaving in good order.

Owns the links and their tasks. Knows no rooms but their number. Thread rule: the hand-over's event
loop; members may be read from any thread.
Invariants: a target has one link at most; a link that leaves is given no new room and ends once its
last room has, and it has stood long enough for its node to say what it leaves, so that nothing in
flight fails because the membership changed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable

from .prefill_link import PrefillConnection, PrefillLink

log = logging.getLogger(__name__)

LINGER_SECONDS = 5.0
"""A link without rooms stands so long after its node left the members: what ends is first taken out
of lists and stores, and then begins to leave its states."""


class PrefillLinks:
    def __init__(self, make: Callable[[str], PrefillLink]) -> None:
        """make: a link to a target, HOST:PORT, that has not begun to connect."""
        self._make = make
        self._links: dict[str, PrefillLink] = {}
        self.members: tuple[PrefillLink, ...] = ()
        """Those that may be given rooms, in the order in which they joined."""
        self._leaving: dict[PrefillLink, float] = {}
        """Until when they stand without rooms, in monotonic seconds."""
        self._tasks: dict[PrefillLink, asyncio.Task[None]] = {}

    @property
    def available(self) -> bool:
        return any(link.takes_rooms for link in self._links.values())

    def follow(self, targets: Iterable[str]) -> None:
        """Make these the members. REQUIRES: called on the event loop."""
        wanted = dict.fromkeys(targets)
        for target in [target for target in self._links if target not in wanted]:
            log.info("prefill node %s is no member any more", target)
            self._leaving[self._links.pop(target)] = time.monotonic() + LINGER_SECONDS
        for target in wanted:
            if target not in self._links and (back := self._back(target)) is not None:
                self._links[target] = back
            elif target not in self._links:
                link = self._links[target] = self._make(target)
                task = asyncio.get_running_loop().create_task(link.run(), name=f"link-{target}")
                self._tasks[link] = task
        self.members = tuple(self._links.values())

    def _back(self, target: str) -> PrefillLink | None:
        """The link to a node that left and is a member again, which would lose its connection to
        another one."""
        links = (link for link in self._leaving if link.target == target)
        link = next((link for link in links if link.takes_rooms), None)
        if link is not None:
            del self._leaving[link]
        return link

    def any_connected(self, beside: Collection[str]) -> bool:
        """Whether a member is, of another target than these."""
        return any(link.takes_rooms for target, link in self._links.items() if target not in beside)

    def living(self, target: str) -> PrefillLink | None:
        """The link to the target whose connection lives, also one that leaves."""
        links = (link for link in self._tasks if link.target == target)
        return next((link for link in links if link.connection and link.connection.alive), None)

    def closed_to_rooms(self, beside: Iterable[str]) -> list[PrefillLink]:
        """Those that leave, as members or not, and members of these targets."""
        tried = set(beside)
        members = self._links.items()
        closed = (link for target, link in members if target in tried or link.leaves)
        return [*self._leaving, *closed]

    def end_idle(self, busy: Iterable[PrefillConnection]) -> None:
        """Let go of links that leave and have no room. busy: the connections of live rooms."""
        used, now = set(busy), time.monotonic()
        for link, until in list(self._leaving.items()):
            if link.connection in used or (link.takes_rooms and now < until):
                continue
            del self._leaving[link]
            if link.connection is not None:
                # Its task ends later, and until then it would be chosen among those that stand.
                link.connection.end()
            self._tasks.pop(link).cancel()

    def lose_all(self) -> None:
        """Every connection that lives is lost; members connect anew."""
        for link in self._tasks:
            if link.connection is not None:
                link.connection.lost.set()

    async def first_contact(self, timeout: float) -> None:
        """Wait until every member was reached or not: a prompt that comes at once is then not
        prefilled here by accident."""
        attempts = [asyncio.create_task(link.tried.wait()) for link in self._links.values()]
        if attempts:
            _, late = await asyncio.wait(attempts, timeout=timeout)
            for attempt in late:
                attempt.cancel()

    async def stop(self, patience: float) -> None:
        """Cancel the links and wait for their ends, at most `patience` seconds."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
