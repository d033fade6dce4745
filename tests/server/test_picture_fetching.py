"""Tests of fetching by a real process, from a local server over https."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tasuki.server.auth.callers import ANYBODY
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.errors import PictureNotFetched
from tasuki.server.pictures.fetching.addresses import FetchHosts
from tasuki.server.pictures.fetching.fetcher import (
    FetchBounds,
    FetchesBusy,
    FetchRefused,
    FetchTooLarge,
    PictureFetcher,
)
from tasuki.server.pictures.fetching.request_addresses import PicturesWanted, fetch_all
from tasuki.server.pictures.picture_counts import PictureCounter
from tests.harness.fetch_stand_ins import ANSWERS, LOCAL
from tests.harness.picture_files import picture_file
from tests.harness.picture_server import PictureServer, serving_pictures
from tests.harness.waiting import HANG_SECONDS, until

HOSTS = FetchHosts.of(["test"])
MOST = 1 << 19


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fetching")
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(folder)
    yield folder
    del os.environ["HOME"]
    if before is not None:
        os.environ["HOME"] = before


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[PictureServer]:
    with serving_pictures(home) as found:
        yield found


@pytest.fixture(scope="module")
def fetcher(home: Path) -> Iterator[PictureFetcher]:
    found = PictureFetcher(HOSTS, FetchBounds(seconds=2.0), LOCAL)
    yield found
    found.close()


def content(fetcher: PictureFetcher, url: str, most: int = MOST) -> bytes:
    return fetcher.fetch("ann", url, most).result(HANG_SECONDS)


def test_a_picture_is_fetched_whatever_type_its_server_declares(
    fetcher: PictureFetcher, server: PictureServer
) -> None:
    assert content(fetcher, server.url("a.png")) == picture_file(64, 96)
    assert server.asked[-1] == "/a.png"


def test_a_call_carries_nothing_of_the_caller_s(
    fetcher: PictureFetcher, server: PictureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    own = PictureFetcher(HOSTS, FetchBounds(seconds=HANG_SECONDS), LOCAL)
    try:
        for path in ("cookie", "a.png"):
            content(own, server.url(path))
    finally:
        own.close()
    own_headers = {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert set(server.headers) == own_headers
    assert server.headers["user-agent"] == "tasuki"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("redirect", "is redirected, and no redirect is followed"),
        ("missing", "status 404"),
        ("silent", "did not come within 2 s"),
        ("drip", "did not come within 2 s"),
    ],
)
def test_other_replies_are_refused(
    fetcher: PictureFetcher, server: PictureServer, path: str, reason: str
) -> None:
    before = len(server.asked)
    with pytest.raises(FetchRefused, match=reason):
        content(fetcher, server.url(path))
    assert server.asked[before:] == [f"/{path}"]


@pytest.mark.parametrize("path", ["long", "endless"])
def test_a_long_content_is_cut_off(
    fetcher: PictureFetcher, server: PictureServer, path: str
) -> None:
    with pytest.raises(FetchTooLarge, match=f"more than {MOST} bytes"):
        content(fetcher, server.url(path))


@pytest.mark.parametrize("kind", ANSWERS)
def test_local_addresses_are_never_dialled(
    fetcher: PictureFetcher, server: PictureServer, kind: str
) -> None:
    before = len(server.asked)
    with pytest.raises(FetchRefused, match="no address of the public internet"):
        content(fetcher, server.url("a.png", kind))
    assert len(server.asked) == before


def test_a_certificate_of_another_host_is_refused(
    fetcher: PictureFetcher, server: PictureServer
) -> None:
    with pytest.raises(FetchRefused, match="ClientConnectorCertificateError"):
        content(fetcher, server.url("a.png").replace("local.test", "local.other.test"))


def test_a_resolver_that_hangs_is_bounded(fetcher: PictureFetcher, server: PictureServer) -> None:
    began = time.monotonic()
    with pytest.raises(FetchRefused, match="did not come within"):
        content(fetcher, server.url("a.png", "slow"))
    assert time.monotonic() - began < 20
    assert content(fetcher, server.url("a.png"))


def test_the_worker_checks_addresses_itself(fetcher: PictureFetcher) -> None:
    for url in ("https://127.0.0.1/", "http://a.local.test/", "file:///etc/hostname"):
        with pytest.raises(FetchRefused):
            content(fetcher, url)


def test_a_killed_process_fails_its_picture_and_another_starts(
    home: Path, server: PictureServer
) -> None:
    own = PictureFetcher(HOSTS, FetchBounds(seconds=HANG_SECONDS), LOCAL)
    try:
        with pytest.raises(FetchRefused, match="was lost with its process: ask again"):
            content(own, server.url("a.png", "killed"))
        assert content(own, server.url("a.png"))
        begun = own.fetch("ann", server.url("silent"), MOST)
        until(lambda: server.asked[-1] == "/silent", lambda: "no call came")
        process = own._process
        assert process is not None
        process._process.kill()
        with pytest.raises(FetchRefused, match="lost with its process"):
            begun.result(HANG_SECONDS)
        assert content(own, server.url("a.png")) and own.lost == 2
    finally:
        own.close()
    with pytest.raises(FetchRefused, match="this node stops"):
        content(own, server.url("a.png"))


def test_a_caller_s_slow_addresses_hold_back_no_other(home: Path, server: PictureServer) -> None:
    own = PictureFetcher(HOSTS, FetchBounds(HANG_SECONDS, most_waiting=12), LOCAL)
    try:
        content(own, server.url("a.png"))
        slow: list[Future[bytes]] = [
            own.fetch("ann", server.url("silent"), MOST) for _ in range(12)
        ]
        with pytest.raises(FetchesBusy):
            own.fetch("ann", server.url("a.png"), MOST)
        assert own.fetch("ben", server.url("a.png"), MOST).result(HANG_SECONDS)
        assert not any(each.done() for each in slow)
        slow.pop().cancel()
        slow.append(own.fetch("ann", server.url("a.png"), MOST))
    finally:
        own.close()
    for each in slow:
        with pytest.raises(FetchRefused):
            each.result(HANG_SECONDS)
    assert not own._waiting


async def test_each_fetched_address_is_counted_with_its_seconds(
    fetcher: PictureFetcher, server: PictureServer
) -> None:
    counter, held = PictureCounter(), HeldBytes()
    urls = {server.url("a.png"): "a", server.url("missing"): "b"}
    with held.hold(ANYBODY) as hold:
        with pytest.raises(PictureNotFetched):
            wanted = PicturesWanted(dict([*urls.items()][1:]))
            await fetch_all(fetcher, wanted, "ann", MOST, hold, counter.fetched)
        assert sum(counter.counts().fetches.counts) == 0
        wanted = PicturesWanted(dict([*urls.items()][:1]))
        await fetch_all(fetcher, wanted, "ann", MOST, hold, counter.fetched)
    fetches = counter.counts().fetches
    assert sum(fetches.counts) == 1 and fetches.seconds > 0
    both = counter.counts() + counter.counts()
    assert sum(both.fetches.counts) == 2 and both.fetches.seconds == 2 * fetches.seconds


def test_no_descriptor_and_no_thread_is_left(
    fetcher: PictureFetcher, server: PictureServer
) -> None:
    content(fetcher, server.url("a.png"))
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.png", "missing", "long"):
        try:
            content(fetcher, server.url(path))
        except FetchRefused:
            continue
    # The local server's connections end a moment later.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, lambda: "a descriptor is left")
    assert sum(each.name.startswith("tasuki-fetch") for each in threading.enumerate()) <= 24
