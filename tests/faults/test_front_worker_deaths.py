"""Front workers in separate processes: one node to its callers, and the effect of each process's
death on the others."""

import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import Node, flags, random_prompt
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.http_calls import ask
from tests.harness.metrics_text import scraped
from tests.harness.processes import ended, engine_of, workers_of
from tests.harness.running_nodes import CHUNKS, HTTP, refused_start
from tests.harness.waiting import until
from tests.harness.worker_fixtures import FreshConnections

COUNT = 2
WORKERS = ("--front-workers", str(COUNT), "--engine-process", "process")
ENDLESS = pb.Sampling(max_new_tokens=2000, ignore_eos=True)
UNENDING = {"sampling": pb.Sampling(max_new_tokens=10_000, ignore_eos=True)}
MADE = "tasuki_requests_finished_total{reason=%s}"


@contextmanager
def workers_node(*more: str) -> Iterator[tuple[Node, GrpcCalls]]:
    """Yield a node and calls, each on its own connection."""
    with ExitStack() as stack:
        node = Node("serve", *flags(), *CHUNKS, *HTTP, *WORKERS, *more)
        stack.callback(node.put_down)
        node.wait_ready()
        channel: Any = stack.enter_context(FreshConnections(node.address))
        yield node, GrpcCalls(channel)


class ReadStream:
    """A running answer, read on a thread. end: None while it runs."""

    def __init__(self, calls: GrpcCalls, request_id: str, **fields: Any) -> None:
        fields = {"sampling": ENDLESS} | fields
        self.call = calls.generate(*random_prompt(20, 1), request_id=request_id, **fields)
        self.tokens = 0
        self.end: grpc.RpcError | str | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: self.tokens > 0 or self.end is not None, "no first token")
        assert self.tokens, self.end

    def _read(self) -> None:
        try:
            for message in self.call:
                self.tokens += len(message.chunk.token_ids)
            self.end = "finished"
        except grpc.RpcError as error:
            self.end = error

    def goes_on(self) -> bool:
        before = self.tokens
        until(lambda: self.tokens > before or self.end is not None, "the answer stands")
        return self.end is None

    def leave(self) -> None:
        self.call.cancel()
        self._thread.join()


def requests_of(node: Node, reason: str) -> float | None:
    """Return the count; None while no worker listens. The second may be killed before the first
    one's successor is ready."""
    try:
        return scraped(node.http_address).get(MADE % reason, 0.0)
    except ConnectionRefusedError:
        return None


def test_a_front_worker_that_dies_takes_its_own_streams_alone() -> None:
    with workers_node() as (node, calls):
        before = workers_of(node.pid)
        assert len(before) == COUNT
        words = refused_start("serve", *flags(), *WORKERS, bind=node.address)
        assert any(f"bind {node.address} failed" in word for word in words)
        session = calls.open()
        calls.append(session, *random_prompt(70, 2))
        list(calls.turn(session, sampling=pb.Sampling(max_new_tokens=3, ignore_eos=True)))
        streams = [ReadStream(calls, str(number)) for number in range(6)]
        # The kernel chooses the worker of each stream.
        for worker in before:
            os.kill(worker, signal.SIGKILL)
            until(lambda worker=worker: ended(worker), "killed, and not ended")
            until(
                lambda worker=worker: len({*workers_of(node.pid)} - {worker}) == COUNT,
                "no worker took its place",
            )
            alive = [stream for stream in streams if stream.goes_on()]
            if len(alive) < len(streams):
                break
        cut = [stream for stream in streams if stream.end is not None]
        assert cut and all(isinstance(stream.end, grpc.RpcError) for stream in cut)
        until(lambda: requests_of(node, "abort") == len(cut), "not accounted")
        for number, stream in enumerate(streams):
            if stream in cut:
                assert calls.explain(str(number)).finished.reason == pb.FINISH_REASON_ABORT
        # Abort by id, at any front: the engine's end reaches the answering worker.
        for number, stream in enumerate(streams):
            if stream in alive:
                calls.abort(str(number))
                until(lambda stream=stream: stream.end == "finished", "not aborted")
        list(calls.turn(session, sampling=pb.Sampling(max_new_tokens=3, ignore_eos=True)))
        calls.close(session)
        for _ in range(4):
            assert ask(node.http_address, "GET", "/health").status == 200
            assert requests_of(node, "abort") == len(streams)
            assert requests_of(node, "length") == 2
        node.assert_at_rest()
        # At SIGTERM every worker lets its answers end.
        last = [
            ReadStream(calls, f"last {number}", sampling=pb.Sampling(max_new_tokens=30))
            for number in range(3)
        ]
        workers, engine = workers_of(node.pid), engine_of(node.pid)
        node.ask_to_stop()
        until(lambda: all(stream.end is not None for stream in last), "cut by the drain")
        assert [stream.end for stream in last] == ["finished"] * 3
        assert node.stop() == 0
        assert all(map(ended, [*workers, engine]))


def tokens_of(answer: Iterable[pb.GenerateResponse]) -> dict[int, list[int]]:
    """Return the tokens of each choice."""
    tokens: dict[int, list[int]] = {}
    for message in answer:
        tokens.setdefault(message.choice, []).extend(message.chunk.token_ids)
    return tokens


def test_choices_and_prompts_of_one_call_are_answered_by_any_worker() -> None:
    drawn = {"max_new_tokens": 4, "temperature": 0.9, "ignore_eos": True}
    prompts = [random_prompt(20, 1), random_prompt(12, 2)]
    with workers_node() as (node, calls):

        def asked(seed: int, **fields: Any) -> list[pb.GenerateResponse]:
            return list(
                calls.generate(*prompts[0], sampling=pb.Sampling(seed=seed, **drawn), **fields)
            )

        alone = [tokens_of(asked(seed))[0] for seed in (40, 41)]
        messages = asked(40, n=2, prompt_logprobs=1)
        assert tokens_of(messages) == dict(enumerate(alone))
        scored = [len(message.prompt_logprobs.logprobs) for message in messages]
        assert sum(scored) == len(prompts[0]) - 1
        assert requests_of(node, "length") == 4
        asked_all = {
            "prompt": [[*map(int, prompt)] for prompt in prompts],
            "n": 2,
            "seed": 40,
            "max_tokens": 4,
            "ignore_eos": True,
        }
        reply = ask(node.http_address, "POST", "/v1/completions", asked_all)
        assert reply.status == 200, reply.body
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2, 3]
        assert reply.json["usage"]["prompt_tokens"] == 32
        assert reply.json["usage"]["completion_tokens"] == 16
        assert requests_of(node, "length") == 8
        node.assert_at_rest()
        assert node.stop() == 0


@pytest.mark.slow
def test_a_front_worker_that_stands_still_is_replaced_and_its_streams_end() -> None:
    with workers_node() as (node, calls):
        frozen, other = workers_of(node.pid)
        streams = [ReadStream(calls, str(number), **UNENDING) for number in range(6)]
        os.kill(frozen, signal.SIGSTOP)
        until(lambda: frozen not in workers_of(node.pid), "frozen, and still there")
        until(lambda: len(workers_of(node.pid)) == COUNT, "no worker took its place")
        assert other in workers_of(node.pid)
        # The kernel chooses the worker of each stream.
        cut = [stream for stream in streams if not stream.goes_on()]
        assert all(isinstance(stream.end, grpc.RpcError) for stream in cut)
        for stream in streams:
            stream.leave()
        node.assert_at_rest()


def test_an_engine_that_dies_ends_its_workers_and_every_request_typed() -> None:
    with workers_node() as (node, calls):
        streams = [ReadStream(calls, str(number)) for number in range(4)]
        workers = workers_of(node.pid)
        os.kill(engine_of(node.pid), signal.SIGKILL)
        until(lambda: all(stream.end is not None for stream in streams), "a stream goes on")
        for stream in streams:
            assert isinstance(stream.end, grpc.RpcError)
            assert "SIGKILL; restart this node" in str(stream.end.details())
            assert stream.end.code() is grpc.StatusCode.INTERNAL
        until(lambda: node.exit_status is not None, "the daemon goes on without its engine")
        assert node.stop() == 1
        assert all(map(ended, workers))


def test_a_registry_that_dies_ends_its_node_and_frees_its_addresses() -> None:
    with workers_node() as (node, calls):
        stream = ReadStream(calls, "r")
        left = [*workers_of(node.pid), engine_of(node.pid)]
        address, http = node.address, node.http_address
        node.kill()
        until(lambda: all(map(ended, left)), "a process outlives its registry")
        until(lambda: stream.end is not None, "a stream goes on")
        assert isinstance(stream.end, grpc.RpcError)
        for where in (address, http):
            host, port = where.split(":")
            with socket.create_server((host, int(port))):
                pass
