"""Plain text to prefill nodes stays on this host. A remote address in the settings is rejected at
the start. One learnt later is rejected by name and never dialled."""

import asyncio
import logging
from pathlib import Path

import pytest

from tasuki.decode_node.config import DecodeConfig
from tasuki.decode_node.engine_side import dialling
from tasuki.decode_node.prefill_links import Dialling
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.discovery.membership import MembershipError
from tests.harness.certificates import Authority
from tests.harness.daemons import Node, flags
from tests.harness.handover_nodes import nodes
from tests.harness.running_nodes import refused_start
from tests.harness.waiting import HANG_SECONDS, until

ELSEWHERE = (
    "192.0.2.1:7001",
    "prefill.example:7001",
    "localhost.example:7001",
    "[2001:db8::1]:7001",
    "0.0.0.0:7001",
    "[::ffff:127.0.0.1]:7001",
    "127.1:7001",
    "dns:///localhost:7001",
)
HERE = ("127.0.0.1:7001", "127.8.8.8:7001", "localhost:7001", "[::1]:7001")


@pytest.mark.parametrize("target", ELSEWHERE)
def test_what_is_not_loopback_by_its_text_is_not_dialled_in_plain_text(target: str) -> None:
    refusal = Dialling().refusal(target)
    assert refusal is not None and refusal.field == "prefill_ca" and target in refusal.theirs
    assert Dialling(private_network=True).refusal(target) is None


@pytest.mark.parametrize("target", HERE)
def test_loopback_is_dialled_in_plain_text(target: str) -> None:
    assert Dialling().refusal(target) is None


def test_a_target_in_the_settings_is_refused_at_the_start(tmp_path: Path) -> None:
    named = DecodeConfig(prefill="127.0.0.1:7001,192.0.2.1:7001")
    with pytest.raises(MembershipError, match=r"192\.0\.2\.1:7001.*--prefill-ca.*--insecure"):
        dialling(ServerConfig(), named)
    assert dialling(ServerConfig(insecure=True), named).credentials is None
    guarded = DecodeConfig(prefill=named.prefill, prefill_ca=Authority(tmp_path, "ours").path)
    assert dialling(ServerConfig(), guarded).credentials is not None


def test_a_daemon_with_such_a_target_does_not_start() -> None:
    lines = refused_start("decode", *flags(arena_mib=16), "--prefill", "192.0.2.1:7001")
    assert any("plain text" in line for line in lines)


def test_a_target_that_is_learnt_of_is_refused_by_name_and_told_of_once(tmp_path: Path) -> None:
    members = tmp_path / "members"
    members.write_text("192.0.2.1:7001\n")
    decode = Node("decode", *flags(arena_mib=16), "--prefill-file", str(members)).wait_ready()
    (link,) = decode.stats().prefill_nodes
    assert link.state == pb.PREFILL_NODE_STATE_REFUSED
    assert [difference.field for difference in link.differences] == ["prefill_ca"]
    members.write_text("192.0.2.1:7001\n192.0.2.2:7001\n")
    until(lambda: len(decode.stats().prefill_nodes) == 2, "not learnt of")
    lines = [line for line in decode.last_words if "192.0.2.1" in line and "plain text" in line]
    assert len(lines) == 1
    assert decode.stop() == 0


def test_a_link_that_is_refused_opens_no_channel(caplog: pytest.LogCaptureFixture) -> None:
    opened: list[str] = []

    class Watched(Dialling):
        def channel(self, target: str) -> object:  # type: ignore[override]
            opened.append(target)
            return super().channel(target)

    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            link = both.client.links[0]
            link._dialling = Watched()
            link.target = "192.0.2.1:7001"
            await asyncio.wait_for(link.run(), HANG_SECONDS)
            assert link.refused and link.tried.is_set()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert opened == []
