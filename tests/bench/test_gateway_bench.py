"""smg before simulated nodes: what a node does, how a trace is shortened, and a whole small run."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import grpc
import pytest

from tests.harness.smg_process import require_protocol, smg_is_there
from tests.harness.waiting import HANG_SECONDS

require_protocol()

from smg_grpc_proto.generated import common_pb2  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402

from tasuki.bench.fleet.nodes.node_model import NodeModel  # noqa: E402
from tasuki.bench.gateway.figures import converged  # noqa: E402
from tasuki.bench.gateway.main import main  # noqa: E402
from tasuki.bench.gateway.shortened_model import shortened_model  # noqa: E402
from tasuki.bench.gateway.simulated_nodes import NodesWanted, run_nodes  # noqa: E402
from tasuki.bench.handover.process import Spawned, spawned  # noqa: E402
from tasuki.bench.load.free.model import free_shape  # noqa: E402
from tasuki.bench.load.free.tokens import VOCABULARY, answer_to  # noqa: E402
from tasuki.bench.load.model_folder import write_model_folder  # noqa: E402
from tasuki.bench.replay.replay import tree_config  # noqa: E402
from tasuki.routing.node_load import PrefillSeconds  # noqa: E402

PROMPT = [7 + number % 900 for number in range(1000)]
PAGES = (len(PROMPT) - 1) // 64


@contextmanager
def one_node(folder: Path, prefill_seconds: float) -> Iterator[tuple[Spawned, str]]:
    """Its process and its address."""
    write_model_folder(folder, free_shape(4))
    model = NodeModel.published("9b", 300.0, 0.01)
    config = tree_config(model.layout, model.flops, 8.0, "value")
    wanted = NodesWanted(
        numbers=(5,),
        folder=folder,
        slabs=config.slabs,
        blocks_per_slab=config.blocks_per_slab,
        pages_per_slab=config.pages_per_slab,
        attention_cost=config.attention_cost,
        seconds=PrefillSeconds(prefill_seconds, 0.0, 0.0),
        token_seconds=0.0,
    )
    with spawned("nodes", run_nodes, wanted) as process:
        (address,) = process.received(HANG_SECONDS)
        yield process, address
        process.channel.send(None)


def request(name: str, prompt: list[int], tokens: int = 8) -> pb.GenerateRequest:
    sampling = pb.SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    tokenized = pb.TokenizedInput(input_ids=prompt)
    return pb.GenerateRequest(request_id=name, tokenized=tokenized, sampling_params=sampling)


def test_a_simulated_node_answers_and_announces_as_a_node_does(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            events = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
            assert [each.WhichOneof("data") for each in (await events.read()).events] == ["cleared"]
            for name, cached in (("a", 0), ("b", 64 * PAGES)):
                (answer,) = [each async for each in stub.Generate(request(name, PROMPT))]
                wanted = list(islice(answer_to(PROMPT, VOCABULARY), 8))
                assert list(answer.complete.output_ids) == wanted
                assert answer.complete.cached_tokens == cached
            blocks = 0
            while blocks < PAGES:
                for event in (await asyncio.wait_for(events.read(), HANG_SECONDS)).events:
                    blocks += len(event.stored.blocks)
            assert blocks == PAGES
            await stub.FlushCache(common_pb2.FlushCacheRequest())
            gone = await asyncio.wait_for(events.read(), HANG_SECONDS)
            assert {each.WhichOneof("data") for each in gone.events} <= {"removed", "cleared"}
            load = (await stub.GetLoads(pb.GetLoadsRequest())).loads[0]
            assert load.num_total_reqs == 0 and load.active_token_usage == 0

    with one_node(tmp_path, 0.0) as (process, address):
        asyncio.run(play(address))
        process.channel.send("arrivals")
        arrivals = process.received(HANG_SECONDS)
    assert [(each.node, each.request_id, each.usable) for each in arrivals] == [
        (5, "a", 0),
        (5, "b", 64 * PAGES),
    ]
    assert all(each.begun >= each.came > 0 for each in arrivals)


def test_an_aborted_prompt_leaves_nothing_and_the_next_one_comes(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            first, second = (stub.Generate(request(name, PROMPT)) for name in "ab")
            while (await stub.GetLoads(pb.GetLoadsRequest())).loads[0].num_total_reqs < 2:
                await asyncio.sleep(0.01)
            load = (await stub.GetLoads(pb.GetLoadsRequest())).loads[0]
            assert (load.num_running_reqs, load.num_waiting_reqs) == (1, 1)
            for name, call in (("a", first), ("b", second)):
                await stub.Abort(pb.AbortRequest(request_id=name))
                (answer,) = [each async for each in call]
                assert answer.complete.finish_reason == "abort"
            load = (await stub.GetLoads(pb.GetLoadsRequest())).loads[0]
            assert load.num_total_reqs == 0 and load.active_token_usage == 0

    with one_node(tmp_path, 10 * HANG_SECONDS) as (_, address):
        asyncio.run(asyncio.wait_for(play(address), HANG_SECONDS))


def test_a_shortened_model_s_tokens_stand_for_several() -> None:
    whole = NodeModel.published("35b-a3b", 300.0, 0.01)
    short = shortened_model(whole, 16)
    assert short.layout.page_bytes == 16 * whole.layout.page_bytes
    assert short.layout.slot_bytes == whole.layout.slot_bytes
    for cached, tokens in ((0, 100_000), (64_000, 96_000)):
        seconds = short.seconds.between(cached // 16, tokens // 16)
        assert seconds == pytest.approx(whole.seconds.between(cached, tokens))
        assert short.flops.of(tokens // 16) == pytest.approx(whole.flops.of(tokens))


def test_hits_have_converged_where_they_stay() -> None:
    lost = [(at / 2, at > 8) for at in range(40)]
    assert converged(lost, 0.95) == 4.5
    assert converged(lost, 0.0) == 0.0
    assert converged([(at, False) for at in range(40)], 0.5) is None


@pytest.mark.skipif(not smg_is_there(), reason="smg is not installed")
@pytest.mark.slow
def test_a_small_trace_goes_through_smg_and_finds_what_it_left(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": 100 * turn + conversation,
            "input_length": 64 * (8 + 4 * turn),
            "output_length": 64,
            "hash_ids": [1000 * conversation + block for block in range(8 + 4 * turn)],
            "session_id": conversation,
        }
        for turn in range(4)
        for conversation in range(6)
    ]
    trace, out = tmp_path / "trace.jsonl", tmp_path / "gateway.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=order)))
    flags = "--nodes 3 --processes 2 --streams 1 --factor 2 --seconds 100 --warm-up 0"
    speed = "--tflops 1000000 --fixed-ms 1 --itl-ms 5"
    assert main([str(trace), *flags.split(), *speed.split(), "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["turns"], row["lost_turns"]) == (24, 0)
    assert row["gateway"]["requests"] == 24 and row["gateway"]["smg_kv_event_gaps_total"] == 0
    # An answer of these takes longer than events do, though not by the clock: none may be late.
    assert row["hit_rate"] > 0 and row["continued"] > 0
    assert row["simulated"]["one-cache"]["turns"] == 24
    assert "| 3 |" in out.with_suffix(".md").read_text()


def order(row: dict[str, object]) -> object:
    return row["timestamp"]
