"""The unmodified smg gateway in front of real daemons: one node, and a pair."""

import asyncio
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tasuki.model.named_checkpoints import embedded_model
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import JSON, connect
from tests.harness.running_nodes import node_pair, running
from tests.harness.sdk_clients import openai, openai_client
from tests.harness.smg_process import Smg, in_front_of_pair, require_smg, smg, usable_pages
from tests.harness.waiting import HANG_SECONDS, until

require_smg()

from smg_grpc_proto.generated import common_pb2  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402

STORY = "Tell me a story about the runner and the sash. " * 20
GREEDY: dict[str, Any] = {
    "messages": [{"role": "user", "content": STORY}],
    "max_tokens": 8,
    "temperature": 0,
}


def ask(client: "openai.OpenAI", model: str) -> tuple[str | None, int, int]:
    """Return the text, prompt tokens and cached tokens of a greedy answer."""
    reply = client.chat.completions.create(model=model, **GREEDY)
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert reply.usage.completion_tokens == 8
    cached = reply.usage.prompt_tokens_details.cached_tokens
    return reply.choices[0].message.content, reply.usage.prompt_tokens, cached or 0


def stream(client: "openai.OpenAI", model: str) -> tuple[str, int]:
    """Return the text and cached tokens of a streamed greedy answer."""
    text, cached = "", None
    for chunk in client.chat.completions.create(
        model=model, stream=True, stream_options={"include_usage": True}, **GREEDY
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return text, cached


def repeated(client: "openai.OpenAI", model: str) -> tuple[int, int, int]:
    """Ask for the same answer three times, the last one streamed. All but the first find every
    whole page. Return the prompt's tokens and the tokens found by each repeat."""
    text, prompt, cold = ask(client, model)
    again, _, warm = ask(client, model)
    streamed, hot = stream(client, model)
    assert text == again == streamed and text
    assert (cold, warm) == (0, (prompt - 1) // 64 * 64) and hot == warm
    return prompt, warm, hot


def leave_in_the_middle(gateway: Smg, model: str) -> None:
    """Read the start of a long answer, then close the connection."""
    body = {**GREEDY, "model": model, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with closing(connect(gateway.address)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read(64)


def schema_format(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def assert_answers_follow(client: "openai.OpenAI", model: str) -> None:
    """Check the constraints passed on by the gateway: schemas, regular expressions, rules."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Bath", "York"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    asked: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"response_format": schema_format(schema)},
            r'\{\s*"city"\s*:\s*"(Bath|York)"\s*,\s*"days"\s*:\s*[12]\s*\}',
        ),
        ({"extra_body": {"regex": "[a-f]{3}-[0-9]{2}"}}, "[a-f]{3}-[0-9]{2}"),
        ({"extra_body": {"ebnf": 'root ::= "x" [0-9]'}}, "x[0-9]"),
    )
    for fields, shape in asked:
        options = {**GREEDY, "max_tokens": 200, **fields}
        (choice,) = client.chat.completions.create(model=model, **options).choices
        assert choice.finish_reason == "stop"
        assert re.fullmatch(shape, choice.message.content or ""), choice
    # The gateway turns a forced call into a schema, and the JSON that follows it into a call.
    function: Any = {"name": "weather", "parameters": schema}
    options = {**GREEDY, "max_tokens": 300, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = client.chat.completions.create(
        model=model, tools=[{"type": "function", "function": function}], **options
    ).choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls, choice
    for call in choice.message.tool_calls:
        assert call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Bath", "York")


def test_one_node_behind_the_gateway(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded_model(), folder)
    with running(Node("serve", *flags(folder), "--gateway")) as node:
        with grpc.insecure_channel(node.address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            packed = list(stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
            assert packed[-1].sha256
            assert stub.HealthCheck(pb.HealthCheckRequest()).healthy
        # From here on no process reads the tokenizer from the folder: the gateway downloads it.
        (folder / "tokenizer.json").unlink()
        with smg(
            tmp_path, 1, "--worker-urls", f"grpc://{node.address}", "--policy", "cache_aware"
        ) as gateway:
            client = openai_client(gateway.address)
            until(lambda: gateway.metric("smg_kv_event_subscriptions_total") >= 1, "no events")
            _, warm, hot = repeated(client, "model")
            assert warm + hot == node.stats().tree["usable_tokens"]
            # The gateway received exactly the blocks a repeat may use.
            announced = "smg_kv_event_blocks_total"
            pages = len(usable_pages(node))
            until(lambda: gateway.metric(announced) >= pages > 0, lambda: gateway.metric(announced))
            assert gateway.metric(announced) == pages
            for bad in ("smg_kv_event_gaps_total", "smg_kv_event_parentless_blocks_total"):
                assert gateway.metric(bad) == 0
            assert_answers_follow(client, "model")
            # A request that cannot be honoured is refused by name before a stream begins.
            for streams in (False, True):
                with pytest.raises(openai.BadRequestError, match="uniqueItems"):
                    client.chat.completions.create(
                        model="model",
                        response_format=schema_format({"type": "array", "uniqueItems": True}),
                        stream=streams,
                        **GREEDY,
                    )
            leave_in_the_middle(gateway, "model")
            until(lambda: not node.stats().requests, node.story)
        node.assert_at_rest()


def test_a_pair_behind_the_gateway(tmp_path: Path) -> None:
    """Use a decode node with a separate port; test_smg_faults.py uses one port for both."""
    with (
        node_pair("--gateway", prefill=("--handover-bind", "127.0.0.1:0")) as (prefill, decode),
        smg(tmp_path, 2, *in_front_of_pair(prefill, decode)) as gateway,
    ):
        client = openai_client(gateway.address)
        prompt, warm, hot = repeated(client, "embedded")
        # The prefill node computed every prompt and sent its state.
        assert prefill.stats().tree["usable_tokens"] == warm + hot
        assert prefill.stats().tree["prompt_tokens"] == 3 * prompt
        assert decode.arrived() > 0 and decode.stats().tree["leased_requests"] == 0
        arrived = decode.arrived()
        assert_answers_follow(client, "embedded")
        assert decode.arrived() > arrived
        leave_in_the_middle(gateway, "embedded")
        until(lambda: not decode.stats().requests, decode.story)
        until(lambda: prefill.at_rest() and decode.at_rest(), decode.story)


def test_every_stream_sends_its_headers_at_once() -> None:
    async def headers(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            nowhere = pb.KvBootstrapInfo(
                bootstrap_host="127.0.0.1", bootstrap_port=1, bootstrap_room=5
            )
            prompt = pb.TokenizedInput(input_ids=[5] * 9)
            for call in (
                stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()),
                stub.GetTokenizer(common_pb2.GetTokenizerRequest()),
                # No decode node joins this transfer, but the gateway gets headers at once.
                stub.Generate(
                    pb.GenerateRequest(
                        request_id="r", tokenized=prompt, kv_bootstrap_info=nowhere, stream=True
                    )
                ),
            ):
                await asyncio.wait_for(call.initial_metadata(), HANG_SECONDS)
                call.cancel()

    with running(Node("prefill", *flags(), "--gateway")) as node:
        asyncio.run(headers(node.address))
        with grpc.insecure_channel(node.address) as channel:
            stub = pb_grpc.TokenSpeedSchedulerStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Generate(pb.GenerateRequest(request_id="x")))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not node.stats().requests


def test_a_gateway_needs_the_key_like_everybody() -> None:
    with (
        running(Node("serve", *flags(), "--gateway", "--api-key", "secret")) as node,
        grpc.insecure_channel(node.address) as channel,
    ):
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.FlushCache(common_pb2.FlushCacheRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", "Bearer secret"),)
        assert stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=key).vocab_size > 0


def test_a_prefill_node_that_the_decode_node_does_not_know_costs_time_only() -> None:
    """Compute the prompt here, since the decode node does not know the prefill node chosen by the
    gateway."""
    told = pb.KvBootstrapInfo(bootstrap_host="127.0.0.1", bootstrap_port=1, bootstrap_room=9)
    request = pb.GenerateRequest(
        request_id="r",
        tokenized=pb.TokenizedInput(input_ids=range(305, 505)),
        sampling_params=pb.SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True),
        kv_bootstrap_info=told,
    )
    with (
        running(Node("decode", *flags(), "--gateway")) as node,
        grpc.insecure_channel(node.address) as channel,
    ):
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)
        (answer,) = stub.Generate(request, timeout=HANG_SECONDS)
        assert answer.complete.finish_reason == "length"
        assert len(answer.complete.output_ids) == 4
        node.assert_at_rest()
