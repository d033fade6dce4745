"""Layer chunks to one peer in a pass are posted, digested and taken together, and fail
separately."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, FinishedLayers
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester, ChunkRows, Digester
from tasuki.transfer.errors import ChunksMissing, OutOfBounds, TransportError
from tasuki.transfer.reports import Drain, TransferBroke, TransferSent
from tasuki.transfer.sending.chunk_source import AskedDigest, DigestThread
from tasuki.transfer.sending.outgoing_transfer import OutgoingTransfer
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.base import Endpoint, PollBackoff, Transfer, Write
from tasuki.transfer.transports.loopback import Fault, Faults, LoopbackTransport, no_faults
from tests.harness.loopback_pair import GENERATION, Opened, Pair, loopback_pair
from tests.harness.waiting import HANG_SECONDS, until

LAYERS = 8
TRANSFER_IDS = (1, 2, 3)


@contextmanager
def ready_together(faults: Faults = no_faults) -> Iterator[tuple[Pair, list[Opened]]]:
    """Yield three transfers; the only layer chunk of each ends with the same layer. The sender's
    thread sleeps, because a tick between its checks of two transfers would separate them."""
    settings = SenderSettings(layers_per_window=LAYERS, lease_seconds=HANG_SECONDS)
    rests, rest = threading.Semaphore(0), Sender._rest

    def noted(self: Sender, transfers: Sequence[OutgoingTransfer], pace: PollBackoff) -> None:
        if len(transfers) == len(TRANSFER_IDS) and all(transfer.waiting for transfer in transfers):
            rests.release()
        rest(self, transfers, pace)

    with (
        pytest.MonkeyPatch.context() as patch,
        loopback_pair(slabs=48, settings=settings, faults=faults) as pair,
    ):
        patch.setattr(Sender, "_rest", noted)
        layout = pair.source.layout
        opened = []
        for transfer_id in TRANSFER_IDS:
            pages = tuple((4 * transfer_id + slab) * layout.blocks_per_slab for slab in range(2))
            granted = Destination(0, pages, 4 * transfer_id + 2)
            pair.receiver.expect(transfer_id, GENERATION, granted)
            pair.sender.open(transfer_id, GENERATION, "peer", granted, pair.ends)
            opened.append(Opened(transfer_id, granted, pages, 4 * transfer_id + 3))
        for each in opened:
            plan = FinishedLayers(pair.steps.value, 0, each.pages, each.slot)
            pair.sender.plan_forward(each.number, plan)
        # The first may have looked before the last plan came.
        assert all(rests.acquire(timeout=HANG_SECONDS) for _ in range(2))
        yield pair, opened


def test_windows_of_many_rooms_leave_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    post_all = LoopbackTransport.post_all

    def counted(
        self: LoopbackTransport, endpoint: Endpoint, writes: Sequence[Write]
    ) -> list[Transfer | Exception]:
        calls.append(len(writes))
        return post_all(self, endpoint, writes)

    monkeypatch.setattr(LoopbackTransport, "post_all", counted)
    with ready_together() as (pair, opened):
        pair.tick()
        for each in opened:
            pair.verified(each.number)
            pair.assert_arrived(each)
    assert calls == [len(TRANSFER_IDS)]


def test_a_window_that_cannot_be_posted_stops_its_own_room() -> None:
    with ready_together(lambda index: Fault.REFUSE if index == 1 else Fault.NONE) as (pair, opened):
        pair.tick()
        ends = [pair.ends.wait(each.number) for each in opened]
        assert [type(end) for end in ends] == [TransferSent, TransferBroke, TransferSent]
        broke = ends[1]
        assert isinstance(broke, TransferBroke)
        assert broke.endpoint_failed and broke.drain is Drain.DRAINED, "nothing of it was posted"
        for each in (opened[0], opened[2]):
            pair.verified(each.number)
            pair.assert_arrived(each)


@pytest.mark.parametrize("error", [TransportError("gone"), ZeroDivisionError("a defect")])
def test_a_post_that_raises_may_have_begun(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error raised for all posts does not tell if bytes may still arrive."""

    def raising(*_: object) -> list[Transfer | Exception]:
        raise error

    monkeypatch.setattr(LoopbackTransport, "post_all", raising)
    with ready_together() as (pair, opened):
        pair.tick()
        for each in opened:
            end = pair.ends.wait(each.number)
            assert isinstance(end, TransferBroke) and end.drain is Drain.FORCED
        assert pair.source.transport.unread() == 0


def test_a_room_that_is_aborted_before_its_window_is_posted_posts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    post = Sender._post_together

    def late(self: Any, link: Any, peer: str, group: Sequence[Any]) -> None:
        self.abort(TRANSFER_IDS[0], "peer")
        post(self, link, peer, group)

    monkeypatch.setattr(Sender, "_post_together", late)
    with ready_together() as (pair, opened):
        pair.tick()
        for each in opened[1:]:
            pair.verified(each.number)
        assert pair.sender.abort(TRANSFER_IDS[0], "peer").result(HANG_SECONDS) is Drain.DRAINED
        assert pair.receiver.chunks_arrived(TRANSFER_IDS[0]) == 0


def test_a_room_that_is_stopped_while_it_is_looked_at_has_nothing_to_post() -> None:
    """Another thread takes the waiting chunk between the check for one and its read."""

    class Taken(deque[Any]):
        def __len__(self) -> int:
            return 1

    with ready_together() as (pair, opened):
        transfer = pair.sender._transfers[opened[0].number]
        assert transfer.next_tick == LAYERS and not transfer.has_ready(LAYERS - 1)
        transfer.waiting = Taken()
        assert transfer.next_tick is None and not transfer.has_ready(LAYERS)


class Held(Digester):
    """A digester that waits until it may run. It records the number of layer chunks in each
    call."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.may = threading.Event()

    def digest_all(self, chunks: Sequence[ArenaChunk]) -> list[int]:
        self.calls.append(len(chunks))
        assert self.may.wait(HANG_SECONDS)
        if any(chunk.transfer_id == 0 for chunk in chunks):
            raise OutOfBounds("room 0")
        return [chunk.transfer_id for chunk in chunks]

    def digest_rows(self, rows: ChunkRows) -> int:
        raise NotImplementedError


class Loaded:
    def segments(self, destination: Destination) -> Any:
        raise NotImplementedError

    def digestible(self, transfer_id: int, generation: int) -> ArenaChunk:
        if transfer_id == 13:
            raise ValueError("room 13")
        return ArenaChunk(transfer_id, generation, ChunkHeader(0, 0, 1, 0, 0, False), (), None)

    def release(self) -> None:
        raise NotImplementedError


def test_digests_that_wait_are_made_in_one_call_and_fail_apart() -> None:
    held, changes = Held(), threading.Semaphore(0)
    digests = DigestThread(changes.release)
    digests.start()
    asked = [AskedDigest(held, Loaded(), transfer_id, 1) for transfer_id in (5, 1, 2, 0, 13, 3)]
    try:
        digests.ask(asked[:1])
        until(lambda: held.calls == [1], "the first was not asked for")
        digests.ask(asked[1:3])
        digests.ask(asked[3:])
        held.may.set()
    finally:
        held.may.set()
        digests.stop()
    assert all(each.done for each in asked), "stop() came before an answer"
    assert [asked[at].result() for at in (0, 1, 2, 5)] == [5, 1, 2, 3]
    with pytest.raises(OutOfBounds, match="room 0"):
        asked[3].result()
    with pytest.raises(ValueError, match="room 13"):
        asked[4].result()
    # The five fail together because one is invalid; then each is digested alone.
    assert held.calls == [1, 1, 1, 1, 1]
    assert changes.acquire(timeout=0) and changes.acquire(timeout=0)
    assert not changes.acquire(timeout=0), "one ring a call, not one a window"


def test_windows_that_landed_together_are_digested_in_one_call_and_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ready_together() as (pair, opened):
        calls: list[list[int]] = []
        digest_all = ChunkDigester.digest_all

        def counted(self: ChunkDigester, chunks: Sequence[ArenaChunk]) -> list[int]:
            if self is pair.target.digester:
                calls.append([chunk.transfer_id for chunk in chunks])
                if len(chunks) > 1 and breaks:
                    raise RuntimeError("one of them")
                if [chunk.transfer_id for chunk in chunks] == breaks:
                    raise RuntimeError("this one")
            return digest_all(self, chunks)

        monkeypatch.setattr(ChunkDigester, "digest_all", counted)
        (arena,) = pair.receiver._arenas
        note = ChunkHeader(0, 0, LAYERS, 0, 2, True).pack
        breaks: list[int] = []
        twice = [note(1, GENERATION), note(2, GENERATION), note(1, GENERATION), b"none"]
        pair.receiver._take(arena, twice)
        assert calls == [[1, 2]]
        assert pair.receiver.counters.landed == 2
        assert pair.receiver.counters.duplicate == 1 and pair.receiver.counters.malformed == 1
        # Only the layer chunk without a digest is missing.
        pair.receiver.forget(1)
        pair.receiver.expect(1, GENERATION, opened[0].granted)
        breaks.append(3)
        pair.receiver._take(arena, [note(3, GENERATION), note(1, GENERATION)])
        assert calls[1:] == [[3, 1], [3], [1]]
        assert [pair.receiver.chunks_arrived(transfer_id) for transfer_id in TRANSFER_IDS] == [
            1,
            1,
            0,
        ]


def test_what_has_landed_is_verified_without_a_wait_and_nothing_else_is() -> None:
    with ready_together() as (pair, opened):
        first = opened[0]
        receiver = pair.receiver
        header = ChunkHeader(0, 0, LAYERS, 0, 2, True)
        sent = [SimpleNamespace(header=header, digest=0)]
        assert not receiver.verify_arrived(first.number, GENERATION, sent)  # type: ignore[arg-type]
        with pytest.raises(ChunksMissing, match="not expected"):
            receiver.verify_arrived(first.number, GENERATION + 1, [])
        with pytest.raises(ChunksMissing, match="layer 0 was not sent"):
            receiver.verify_arrived(first.number, GENERATION, [])
        pair.tick()
        digests = pair.sent(first.number).report.digests
        until(lambda: receiver.chunks_arrived(first.number) == 1, "nothing landed")
        assert receiver.verify_arrived(first.number, GENERATION, digests)
        pair.assert_arrived(first)
