"""A transfer belongs to the connection it was reserved on, by scripts. Also the prefill node's
memory of ended transfers."""

from tasuki.transfer.lifecycle.ended_transfers import EndedTransfers
from tasuki.transfer.reports import Drain
from tests.harness.handover_script import handover
from tests.harness.interaction import Script, play, scripts


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, handover)


async def test_the_names_of_connections_share_nothing_that_can_be_counted_up() -> None:
    async with handover() as world:
        await world.do("connect", [], {})
        names = [world.peer.connection_of(peer) for peer in ("decode", "stranger")]
        secrets = [name.rsplit("-", 1)[1] for name in names]
        assert all(len(secret) == 32 for secret in secrets) and len(set(secrets)) == 2


def test_a_forced_drain_is_never_forgotten_while_its_connection_is_known() -> None:
    """Forgotten it would be answered as drained, and granted ids be used while a write is under
    way."""
    living = {"a"}
    ended = EndedTransfers(living.__contains__, transfers=3, connections=2)
    ended.began("a")
    ended.remember("a", 1, 1, Drain.FORCED)
    for transfer_id in range(2, 20):
        ended.remember("a", transfer_id, 1, Drain.DRAINED)
    assert ended.drain("a", 1, 1) is Drain.FORCED
    assert ended.drain("a", 2, 1) is None and ended.drain("a", 19, 1) is Drain.DRAINED
    assert ended.drain("a", 1, 2) is None
    for name in ("b", "c", "d"):
        assert ended.drain(name, 1, 1) is None
        ended.began(name)
    assert ended.knows("a") and not ended.knows("b"), "however many come after one that lives"
    living.clear()
    ended.began("b")
    assert not ended.knows("a") and not ended.knows("c") and ended.knows("b") and ended.knows("d")
    ended.remember("a", 1, 1, Drain.DRAINED)
    assert ended.drain("a", 1, 1) is None and not ended.knows("a")
