"""A node with hand-overs shares the interpreter's lock in short turns."""

import sys
from collections.abc import Iterator

import pytest

from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.data_plane import TransferEngine
from tasuki.transfer.sending.sender import Sender
from tests.harness.loopback_pair import loopback_pair


@pytest.fixture
def restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("before", "after"), [(0.005, 0.0001), (0.00005, 0.00005)])
def test_the_ends_make_turns_short(restored: None, before: float, after: float) -> None:
    with loopback_pair() as pair:
        sender: Sender = pair.source.sender(StepCounter(), None)
        ends = TransferEngine(sender, pair.source.receiver())
        sys.setswitchinterval(before)
        ends.start()
        try:
            assert sys.getswitchinterval() == pytest.approx(after, rel=0.05)
        finally:
            ends.stop()
