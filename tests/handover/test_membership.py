"""Prefill nodes come and go by a watched file, and no request notices."""

import asyncio
import logging
from asyncio import Event
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from tasuki.client.answer import Answer, AnswerStream
from tasuki.decode_node import prefill_links
from tasuki.decode_node.config import DecodeConfig
from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.decode_node.prefill_links import PrefillLink, PrefillLinks
from tasuki.proto import inference_pb2 as pb
from tasuki.server.discovery.membership import FileMembership, FixedMembership, MembershipError
from tests.harness.daemons import (
    CHUNK_IN_TRANSFER,
    COUNTED_CHUNKS,
    Node,
    asked,
    flags,
    fleet,
    meet,
    random_prompt,
    resting_at,
)
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.waiting import HANG_SECONDS, until


def test_a_fixed_list_is_said_once() -> None:
    async def said() -> list[tuple[str, ...]]:
        return [members async for members in FixedMembership(["a:1", "b:2"]).changes()]

    assert asyncio.run(said()) == [("a:1", "b:2")]


def test_a_file_is_followed_and_slips_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peers"
    path.write_text("# ours\na:1\n\nb:2  # second\n")

    async def seen() -> list[tuple[str, ...]]:
        changes = FileMembership(path, poll_seconds=0.001).changes()
        first = await anext(changes)
        path.write_text("a:1\nb\n")
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.05)
        path.unlink()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        path.write_text("b:2\n")
        return [first, await asyncio.wait_for(waiting, HANG_SECONDS)]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(seen()) == [("a:1", "b:2"), ("b:2",)]
    complaints = [record.getMessage() for record in caplog.records]
    assert len(complaints) == 2, "once for each slip, not at every look"
    assert "'b' is not HOST:PORT" in complaints[0] and "cannot be read" in complaints[1]


@pytest.mark.parametrize("text", ["a", ":1", "a:0", "a:70000", "a:b"])
def test_the_first_reading_must_be_right(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peers"
    path.write_text(text)
    with pytest.raises(MembershipError, match="HOST:PORT"):
        asyncio.run(anext(FileMembership(path).changes()))


def test_a_list_and_a_file_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        DecodeConfig(prefill="a:1", prefill_file="peers")


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    with fleet() as starting:
        yield starting


def test_a_link_that_leaves_idle_is_ended_in_the_same_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until its task ends the link could still be chosen, but no transfer begins there."""

    monkeypatch.setattr(prefill_links, "LINGER_SECONDS", 0.0)

    async def ended() -> list[str]:
        def link(target: str) -> PrefillLink:
            connection = Mock(spec=PrefillConnection)
            return Mock(spec=PrefillLink, target=target, connection=connection, run=Event().wait)

        links = PrefillLinks(link)
        links.follow(["stays:1", "used:1", "idle:1"])
        made = links.members
        links.follow(["stays:1"])
        links.end_idle([made[1].connection])
        now = [link.target for link in made if link.connection.end.called]
        await links.stop(HANG_SECONDS)
        return now

    assert asyncio.run(ended()) == ["idle:1"]


def test_nodes_come_and_go_and_no_request_notices(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    slow = ("--prefill-chunk-tokens", "64", "--max-batch", "1", *COUNTED_CHUNKS)
    launch = partial(ForkedDaemon, environment=resting_at(CHUNK_IN_TRANSFER))
    first, second = (
        start("prefill", *flags(), "--name", name, *slow, launch=launch) for name in ("p1", "p2")
    )
    peers = tmp_path / "peers"
    peers.write_text(first.address)
    decode = start("decode", *flags(), "--prefill-file", str(peers))

    def ask(length: int) -> AnswerStream:
        return asked(decode, random_prompt(length, 1), str(length).encode(), new_tokens=4)

    def members() -> dict[str, int]:
        return {node.address: node.state for node in decode.stats().prefill_nodes}

    meet(decode)
    assert ask(300).result().usage.prefilled_on == "p1"
    staying = ask(1500)
    # This has many more layer chunks than the one at which a hand-over pauses.
    until(lambda: first.requests("Prefilling") + first.requests("HandingOver") == 1, first.story)
    peers.write_text(second.address)
    until(lambda: members() == {second.address: pb.PREFILL_NODE_STATE_CONNECTED}, members)
    assert ask(301).result().usage.prefilled_on == "p2"
    answer: Answer = staying.result()
    assert answer.usage.prefilled_on == "p1" and not answer.usage.local_fallback
    assert first.stop() == 0
    assert ask(302).result().usage.prefilled_on == "p2"
    peers.write_text("")
    until(lambda: not members(), members)
    alone = ask(303).result().usage
    assert alone.prefilled_on == "local" and not alone.local_fallback
    decode.assert_at_rest()
