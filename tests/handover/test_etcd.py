"""Membership by a real etcd: registration, leaving, heartbeat timeout, and real nodes with it."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tasuki.server.discovery.etcd import Etcd, EtcdError
from tasuki.server.discovery.registration import EtcdMembership, Registration
from tests.harness.daemons import Node, asked, flags, fleet, random_prompt
from tests.harness.etcd_process import EtcdProcess, running_etcd
from tests.harness.waiting import HANG_SECONDS, until

PREFIX = "/tasuki/prefill/"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


async def test_keys_live_as_long_as_their_lease(etcd: EtcdProcess) -> None:
    client = Etcd(etcd.url)
    lease = await client.grant(60)
    before = (await client.range("/k/")).revision
    await client.put("/k/ä", "wert", lease)
    await client.put("/l/other", "x", lease)
    (entry,) = (await client.range("/k/")).entries
    assert (entry.key, entry.value, entry.created) == ("/k/ä", "wert", before + 1)
    await client.renew(lease)
    async with aclosing(client.changed("/k/", before + 2)) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await client.revoke(lease)
        await asyncio.wait_for(waiting, HANG_SECONDS)
    assert (await client.range("/k/")).entries == ()
    with pytest.raises(EtcdError, match="has ended"):
        await client.renew(lease)
    await client.close()


async def test_nobody_there_is_a_typed_error() -> None:
    client = Etcd("http://127.0.0.1:1")
    with pytest.raises(EtcdError, match=r"127.0.0.1:1 does not answer"):
        await client.range("/k/")
    with pytest.raises(EtcdError, match="does not answer"):
        async for _ in client.changed("/k/", 1):
            pass
    await client.close()


def test_members_register_leave_and_survive_a_silent_etcd(tmp_path: Path) -> None:
    async def scenario(etcd: EtcdProcess) -> None:
        membership = EtcdMembership(lambda: Etcd(etcd.url), PREFIX, retry_seconds=0.05)
        async with aclosing(membership.changes()) as changes:  # type: ignore[type-var]
            assert await anext(changes) == ()
            one = Registration(Etcd(etcd.url), PREFIX + "one", "127.0.0.1:1001")
            one.start()
            assert await asyncio.wait_for(anext(changes), HANG_SECONDS) == ("127.0.0.1:1001",)
            two = Registration(Etcd(etcd.url), PREFIX + "two", "127.0.0.1:1002")
            two.start()
            both = ("127.0.0.1:1001", "127.0.0.1:1002")
            assert await asyncio.wait_for(anext(changes), HANG_SECONDS) == both
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.to_thread(etcd.stop)
            await asyncio.sleep(0.5)
            assert not waiting.done(), "silence changed the members"
            await asyncio.to_thread(etcd.start)
            await one.stop()
            assert await asyncio.wait_for(waiting, HANG_SECONDS) == ("127.0.0.1:1002",)
            await two.stop()

    with running_etcd(tmp_path) as etcd:
        asyncio.run(scenario(etcd))


def test_two_by_two_nodes_find_each_other_and_one_leaves_under_load(etcd: EtcdProcess) -> None:
    with fleet() as start:

        def started(command: str, name: str) -> Node:
            return start(command, *flags(), "--name", name, "--etcd", etcd.url)

        first = started("prefill", "p1")
        decodes = [started("decode", name) for name in ("d1", "d2")]
        second = started("prefill", "p2")

        def members(node: Node) -> set[str]:
            return {peer.name for peer in node.stats().prefill_nodes}

        for node in decodes:
            until(lambda node=node: members(node) == {"p1", "p2"}, lambda node=node: members(node))
        prompts = [random_prompt(400 + number, number) for number in range(6)]
        streams = [
            asked(decodes[number % 2], prompt, b"", new_tokens=4)
            for number, prompt in enumerate(prompts)
        ]
        first.ask_to_stop()
        usages = [stream.result().usage for stream in streams]
        assert not any(usage.local_fallback for usage in usages)
        assert {usage.prefilled_on for usage in usages} <= {"p1", "p2"}
        for node in decodes:
            until(lambda node=node: members(node) == {"p2"}, lambda node=node: members(node))
            late = asked(node, random_prompt(333, 9), b"", new_tokens=4).result().usage
            assert late.prefilled_on == "p2"
        assert first.stop() == 0
        second.assert_at_rest()
