"""Addresses of pictures in one request: noted while it is read, fetched, then read again.

Reading runs on a thread and waits for nothing. So a first reading notes the addresses, and raises
PicturesWanted. The request's handler fetches them and reads the request once more. One request, one
thread at a time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType

from tasuki.server.auth.limits import Hold
from tasuki.server.errors import Busy, PictureNotFetched, PictureTooLarge

from .addresses import FetchHosts, RefusedAddress, read_address
from .fetcher import FetchesBusy, FetchRefused, FetchTooLarge, PictureFetcher

Fetched = Mapping[str, bytes]
"""Contents by address."""
NOTHING_FETCHED: Fetched = MappingProxyType({})

MOST_FETCHED_BYTES = 64 << 20
"""Bytes of all addresses of one request."""
MOST_SECONDS = 30.0
"""Seconds for all addresses of one request."""


class PicturesWanted(PictureNotFetched):
    """A request has addresses that are not fetched yet. places: of each address, its first place.
    At a door without fetching it is a refusal."""

    def __init__(self, places: Mapping[str, str]) -> None:
        super().__init__(
            next(iter(places.values())),
            "is an address, and none is fetched here: send data:image/png;base64,...",
        )
        self.places = dict(places)


class RequestAddresses:
    """wanted: place of each address without a content."""

    def __init__(self, hosts: FetchHosts, fetched: Fetched = NOTHING_FETCHED) -> None:
        """hosts: listed ones. fetched: contents of an earlier reading."""
        self._hosts = hosts
        self._fetched = fetched
        self.wanted: dict[str, str] = {}

    def content(self, url: str, place: str) -> bytes:
        """Return the content of an address; empty, with the address noted, before it is fetched.
        Raises PictureNotFetched."""
        found = self._fetched.get(url)
        if found is not None:
            return found
        try:
            read_address(url, self._hosts)
        except RefusedAddress as error:
            raise PictureNotFetched(place, str(error)) from error
        self.wanted.setdefault(url, place)
        return b""

    def check(self) -> None:
        """Raise PicturesWanted if an address has no content."""
        if self.wanted:
            raise PicturesWanted(self.wanted)


async def fetch_all(
    fetcher: PictureFetcher,
    wanted: PicturesWanted,
    line: str,
    most_bytes: int,
    hold: Hold,
    on_fetched: Callable[[float], None] = lambda seconds: None,
) -> Fetched:
    """Return the contents of a request's addresses. line: its caller's queue. most_bytes: of each.
    hold: counts their bytes too. on_fetched: gets the seconds of each, with its wait. Raises
    PictureNotFetched, PictureTooLarge, Busy."""
    found: dict[str, bytes] = {}
    total = 0

    async def fetch(url: str, place: str) -> None:
        nonlocal total
        began = time.perf_counter()
        try:
            content = await asyncio.wrap_future(fetcher.fetch(line, url, most_bytes))
        except FetchTooLarge as error:
            raise PictureTooLarge(place, str(error)) from error
        except FetchRefused as error:
            raise PictureNotFetched(place, str(error)) from error
        except FetchesBusy as error:
            raise Busy(f"{place} was not fetched: {error}") from error
        on_fetched(time.perf_counter() - began)
        total += len(content)
        if total > MOST_FETCHED_BYTES:
            raise PictureTooLarge(
                place, f"brings the request above {MOST_FETCHED_BYTES} fetched bytes: send fewer"
            )
        hold.grow(len(content))
        found[url] = content

    try:
        async with asyncio.timeout(MOST_SECONDS):
            await _together(
                [fetch(url, place) for url, place in wanted.places.items()],
            )
    except TimeoutError as error:
        late = next(place for url, place in wanted.places.items() if url not in found)
        raise PictureNotFetched(
            late, f"and others took more than {MOST_SECONDS:g} s: send fewer addresses"
        ) from error
    return found


async def _together(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Await all calls. The first error cancels the others, and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first single error of a group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
