"""A prefill node that is asked for a state and breaks the rules, at a real receiver: nothing of it
is committed, the fetch is over once, and what was granted to it is fenced."""

import asyncio

import pytest

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tests.handover.test_rogue_sender import HUGE, Says, done, over, ready, receiver, window
from tests.harness.handover_nodes import GENERATION, grant_of, wanted
from tests.harness.waiting import HANG_SECONDS

ROOM = 5
SHORT = 1.0
"""Seconds for which a fetch is worth it: it is granted by then also on a busy machine."""


def held(generation: int = GENERATION) -> Says:
    return Says(held=pb.Held(generation=generation))


BREACHES: dict[str, tuple[tuple[Says, ...], bool]] = {
    "hangs up after the grant": ((), True),
    "hangs up after held": ((held(),), True),
    "held twice": ((held(), held()), False),
    "held of another generation": ((held(GENERATION + 1),), False),
    "a token": ((ready(),), False),
    "a token, held": ((held(), ready()), False),
    "queued after accepted": ((Says(queued=pb.Queued(position=1)),), False),
    "accepted twice": ((Says(accepted=pb.Accepted()),), False),
    "a pull": ((Says(pull=pb.Pull(generation=1, tokens=1, pages=[0])),), False),
    "the stop of a pull": ((held(), Says(stop_pull=pb.StopPull())), False),
    "done before held": ((done(),), False),
    "done of nothing": ((held(), done()), False),
    "done of windows that never came": ((held(), done(window())), False),
    "done twice": ((held(), done(window()), done(window())), False),
    "done of another generation": ((held(), done(generation=GENERATION + 1)), False),
    "done of layers that are none": ((held(), done(window(end_layer=HUGE))), False),
    "done of pages that are none": ((held(), done(window(first_page=HUGE, pages=HUGE))), False),
    "done of the same window twice": ((held(), done(window(), window())), False),
    "a message of another version": ((Says(),), False),
    "refused after the grant": ((Says(refused=pb.Refused(kind=pb.ERROR_KIND_BUSY)),), False),
    "failed, not drained": ((Says(failed=pb.Failed(drain=pb.DRAIN_FORCED)),), False),
    "failed, an unknown drain": ((held(), Says(failed=pb.Failed(drain=77))), False),
    "aborted by itself": ((held(), Says(aborted=pb.Aborted(drain=pb.DRAIN_DRAINED))), False),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_ends_the_fetch_once_and_commits_nothing(breach: str) -> None:
    script, hangs_up = BREACHES[breach]
    assert ended_as(script, hangs_up, HANG_SECONDS) is m.FetchOutcome.LOST


@pytest.mark.parametrize("script", [(), (held(),)], ids=["never held", "never done"])
def test_who_never_gives_it_is_late(script: tuple[Says, ...]) -> None:
    assert ended_as(script, False, SHORT) is m.FetchOutcome.LATE


def ended_as(script: tuple[Says, ...], hangs_up: bool, seconds: float) -> m.FetchOutcome:
    """How a fetch ended to which the script was said behind its grant."""

    async def scenario() -> m.FetchOutcome:
        async with receiver(script, hangs_up) as (client, inbound, pair):
            await inbound.wait(m.PeersChanged)
            (link,) = client.links
            ticket = m.FetchTicket(m.RoomId(ROOM), GENERATION, b"salt")
            client.deliver(m.FetchWanted(ticket, wanted(ROOM).prompt, link.target, seconds))
            await inbound.wait(m.GrantWanted)
            client.deliver(m.HandoverGranted(grant_of(ROOM, pair.target.layout)))
            lost = await inbound.wait(m.FetchLost)
            await inbound.wait(m.WriterFenced)
            await over(lambda: not client._fetches)
            kinds = [type(message) for message in inbound.messages]
            assert kinds.count(m.FetchLost) == kinds.count(m.WriterFenced) == 1
            assert kinds.index(m.FetchLost) < kinds.index(m.WriterFenced)
            assert m.RemoteReady not in kinds and m.RemoteDone not in kinds
            assert m.PullAsked not in kinds and m.HandoverFailed not in kinds
            # After a lease's end the link is made anew; the next prompt may go there.
            await over(lambda: client.links[0].connection is not None)
            assert isinstance(lost, m.FetchLost)
            return lost.outcome

    return asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
