"""A gateway's cache events after an update of the weights: its stream ends, and a new one tells of
states of the weights in use alone."""

from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.harness.daemons import Node, embedded_model, flags
from tests.harness.http_calls import ask
from tests.harness.running_nodes import HTTP, running
from tests.harness.smg_process import require_smg
from tests.harness.versions import version
from tests.harness.waiting import HANG_SECONDS, until

require_smg()

from smg_grpc_proto.generated import common_pb2  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402

PROMPT = list(range(1, 101)) * 2


def complete(node: Node) -> int:
    """Answer PROMPT, and return its cached tokens."""
    body = {"prompt": PROMPT, "max_tokens": 2}
    answer = ask(node.http_address, "POST", "/v1/completions", body).json
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_stream_ends_at_an_update_and_the_next_names_the_new_states(tmp_path: Path) -> None:
    second = version(tmp_path / "2", 2, embedded_model())
    with (
        running(Node("serve", *flags(), "--gateway", *HTTP)) as node,
        grpc.insecure_channel(node.address) as channel,
    ):
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)

        def stream() -> Iterator[common_pb2.KvEventBatch]:
            return iter(
                stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=HANG_SECONDS)
            )

        def told() -> list[str]:
            """Return the namespace of each block in the first batch."""
            stored = [event.stored for event in next(stream()).events]
            return [each.cache_salt for each in stored for _ in each.blocks]

        complete(node)
        until(told, "no block is told")
        before, open_stream = told(), stream()
        next(open_stream)
        assert set(before) == {""}
        reply = ask(
            node.http_address, "POST", "/update_weights_from_disk", {"model_path": str(second)}
        )
        assert reply.status == 200
        assert complete(node) == 0
        assert all(not batch.events for batch in open_stream), "told of states of other weights"
        until(told, "no block is told")
        assert told() == before
