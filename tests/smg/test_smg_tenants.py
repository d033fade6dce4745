"""Tests of tenants behind the unmodified smg gateway. The gateway receives events for blocks usable
by its own calls, and sends a prompt to the node with its blocks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tasuki.server.auth.tenants import TENANT_KEY, salt_of
from tests.harness.api_keys import keys_file, metadata
from tests.harness.daemons import Node, flags
from tests.harness.grpc_fixtures import loop_on_a_thread
from tests.harness.refusals import INVALID, refusal
from tests.harness.running_nodes import HTTP, fused_node, running
from tests.harness.sdk_clients import openai, openai_client
from tests.harness.smg_process import Smg, require_smg, smg, usable_pages
from tests.harness.waiting import HANG_SECONDS, until

# A proxy adds metadata to every gRPC call, as a mesh does for a gateway unable to do so.
Metadata = tuple[tuple[str, str], ...]


class _Passing(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel, added: Metadata) -> None:
        self._channel = channel
        self._added = added

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def passing(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            given = [pair for pair in details.invocation_metadata or () if _passes(pair[0])]
            call = self._channel.stream_stream(details.method)(
                requests, metadata=(*given, *self._added)
            )
            try:
                await context.send_initial_metadata(await call.initial_metadata())
                async for reply in call:
                    yield reply
                context.set_trailing_metadata(await call.trailing_metadata())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), error.trailing_metadata())
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(passing)


def _passes(name: str) -> bool:
    return not name.startswith(("grpc-", ":")) and name not in ("user-agent", "te", "content-type")


@contextmanager
def bearing_proxy(target: str, *added: tuple[str, str]) -> Iterator[str]:
    """Yield the HOST:PORT of a proxy to `target`. The proxy adds the metadata `added` to every
    call."""

    async def start() -> tuple[grpc.aio.Server, grpc.aio.Channel, int]:
        channel = grpc.aio.insecure_channel(target)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Passing(channel, added),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, channel, port

    async def stop(server: grpc.aio.Server, channel: grpc.aio.Channel) -> None:
        await server.stop(0)
        await channel.close()

    with loop_on_a_thread() as loop:
        server, channel, port = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_SECONDS)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(stop(server, channel), loop).result(HANG_SECONDS)


require_smg()

from smg_grpc_proto.generated import common_pb2  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402

from tasuki.server.smg.kv_events import namespace_of  # noqa: E402

KEYS = "ann ann-key\nben ben-key\ngate gate-key gateway,caller\n"
OPENINGS = ("The runner hands on the sash. ", "A boat lies at the old pier. ")
HITS = "smg_kv_event_blocks_total"


@dataclass(frozen=True)
class Fleet:
    """Two nodes and a gateway in front of them. Its calls bear its key and a tenant's name."""

    nodes: tuple[Node, ...]
    gateway: Smg
    client: "openai.OpenAI"


def asked(client: "openai.OpenAI", opening: str) -> int:
    """Return the cached tokens of a prompt with this opening."""
    reply = client.chat.completions.create(
        model="embedded",
        messages=[{"role": "user", "content": opening * 20}],
        max_tokens=1,
        temperature=0,
    )
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0


def directly(node: Node, key: str) -> "openai.OpenAI":
    return openai_client(node.http_address, key)


def prompts(node: Node) -> int:
    """Return the number of requests answered by the node."""
    return node.stats().tree["leased_requests"]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    return ("--api-keys", keys_file(tmp_path, KEYS), "--api-key", "owner-key")


@pytest.fixture
def fleet(tmp_path: Path, keys: tuple[str, ...]) -> Iterator[Fleet]:
    shared = ("--gateway", *HTTP, *keys)
    with ExitStack() as stack:
        started = [Node("serve", *flags(), *shared) for _ in range(2)]
        nodes = tuple(stack.enter_context(running(node)) for node in started)
        # A proxy between smg and the nodes must add the metadata smg cannot send.
        added = metadata("gate-key", (TENANT_KEY, "ann"))
        proxies = [stack.enter_context(bearing_proxy(node.address, *added)) for node in nodes]
        gateway = stack.enter_context(
            smg(
                tmp_path,
                2,
                *("--worker-urls", *(f"grpc://{proxy}" for proxy in proxies)),
                *("--policy", "cache_aware"),
            )
        )
        until(lambda: gateway.metric("smg_kv_event_subscriptions_total") >= 2, "no events")
        yield Fleet(nodes, gateway, openai_client(gateway.address))


def test_a_tenant_s_prompt_goes_to_the_node_that_has_it(fleet: Fleet) -> None:
    """Give each node a prompt of ann's unknown to the gateway; only events can name its node."""
    assert fleet.gateway.metric(HITS) == 0
    blocks = 0
    for node, opening in zip(fleet.nodes, OPENINGS, strict=True):
        assert asked(directly(node, "ann-key"), opening) == 0
        # Wait for all of it: later blocks would be taken for the other node's.
        blocks += len(usable_pages(node))
        until(lambda all_of=blocks: fleet.gateway.metric(HITS) == all_of, "not announced")
    counts = [prompts(node) for node in fleet.nodes]
    for which, opening in enumerate(OPENINGS):
        assert asked(fleet.client, opening) >= 64
        counts[which] += 1
        assert [prompts(node) for node in fleet.nodes] == counts
    for bad in ("smg_kv_event_gaps_total", "smg_kv_event_parentless_blocks_total"):
        assert fleet.gateway.metric(bad) == 0


def test_another_tenant_s_prompts_are_neither_announced_nor_used(fleet: Fleet) -> None:
    for key in ("ben-key", "owner-key"):
        assert asked(directly(fleet.nodes[0], key), OPENINGS[0]) == 0
    # Cause one more announcement; after it, all earlier ones have arrived, too.
    assert asked(directly(fleet.nodes[0], "ann-key"), OPENINGS[1]) == 0
    one = asked(directly(fleet.nodes[0], "ann-key"), OPENINGS[1]) // 64
    until(lambda: fleet.gateway.metric(HITS) >= one > 0, "not announced")
    assert fleet.gateway.metric(HITS) == one
    assert asked(fleet.client, OPENINGS[0]) == 0


def test_a_subscriber_is_told_of_its_own_namespace_or_of_all_by_their_ids(
    keys: tuple[str, ...],
) -> None:
    with fused_node("--gateway", *HTTP, *keys) as node:
        for key in ("ann-key", "ben-key", "owner-key"):
            asked(directly(node, key), OPENINGS[0])
        with grpc.insecure_channel(node.address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)

            def told(*tenant: str) -> dict[str, int]:
                """Return the number of blocks in the first batch by their namespace."""
                named = ((TENANT_KEY, name) for name in tenant)
                call = stub.SubscribeKvEvents(
                    common_pb2.SubscribeKvEventsRequest(),
                    metadata=metadata("gate-key", *named),
                    timeout=HANG_SECONDS,
                )
                found: dict[str, int] = {}
                for event in next(iter(call)).events:
                    if event.HasField("stored"):
                        name = event.stored.cache_salt
                        assert bool(name) == event.stored.HasField("cache_salt")
                        found[name] = found.get(name, 0) + len(event.stored.blocks)
                call.cancel()
                return found

            one = told("ann")[""]
            assert one > 0 and told("ann") == told("ben") == {"": one}
            assert told() == told("nobody") == {}
            everybody = {namespace_of(salt_of(who, b"")).hex() for who in ("ann", "ben", None)}
            assert told("*") == dict.fromkeys(everybody, one)
            assert refusal(told, "ann", "ben").status is INVALID
            assert refusal(told, "not a name").status is INVALID
