"""A gRPC server over a scripted engine, and a tiny checkpoint's text files, for tests of the API
server and client only."""

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from tasuki.engine import messages as m
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient, Observed, RequestObserver
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.grpc.services import grpc_services
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.api_keys import metadata
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.waiting import HANG_SECONDS

Result = TypeVar("Result")

TOKENS_ONLY = TextCodec(320, 4096, None, None)
"""A text codec of a checkpoint without a tokenizer: it accepts token ids only."""
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING_TAGS = ("<think>", "</think>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of at most 320 entries with a ChatML template, in Hugging
    Face layout. The thinking tags are tokens but not special, as in real checkpoints."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320 - len(THINKING_TAGS),
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(["it was a fine morning and the im end of the start"] * 8, trainer)
    library.add_tokens([*THINKING_TAGS])
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def text_codec(folder: Path) -> TextCodec:
    write_tokenizer(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return TextCodec(320, 4096, tokenizer, ChatTemplate.load(folder, tokenizer))


def usage(prompt_tokens: int, completion_tokens: int) -> m.Usage:
    hit = m.HitBreakdown(prompt_tokens, 3, 2, {"new": prompt_tokens - 2}, "turn_end")
    transfer = m.TransferReport(4096, 4, 2, 0.03, 0.01)
    return m.Usage(prompt_tokens, completion_tokens, hit, transfer, "p0", False, 0.25, 1.25)


def scored(request_id: m.RequestId, prompt: m.Tokens, top: int) -> m.PromptScored:
    """Return a message with a prompt's scores: token i has logprob -i and rank i, and the ids after
    it are likelier. top: number of likeliest tokens."""
    behind = np.arange(1, len(prompt))
    others = prompt[1:, None] + np.arange(1, top + 1, dtype=np.int32)
    return m.PromptScored(
        request_id,
        1,
        -behind.astype(np.float64),
        behind.astype(np.int32),
        others.astype(np.int32),
        -0.25 * np.ones((len(behind), top)) * np.arange(1, top + 1),
    )


@dataclass
class ScriptedEngine:
    """A scripted engine. It answers each Submit with the tokens of `answer(submit)`. With `hold` it
    then waits for the request's abort."""

    answer: Callable[[m.Submit], Sequence[int]] = lambda submit: [7, 8, 9]
    hold: bool = False
    reject: m.RequestError | None = None
    received: list[m.Inbox] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    deliver: Callable[[m.Outbox], None] = lambda message: None

    def __post_init__(self) -> None:
        self._inbox: SimpleQueue[m.Inbox | None] = SimpleQueue()
        self._alive: dict[m.RequestId, m.Submit] = {}
        self._cursors = 0
        self._draining: m.Drain | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def post(self, message: m.Inbox) -> None:
        self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def of(self, kind: type) -> list:
        return [message for message in self.received if isinstance(message, kind)]

    def wait_for(self, kind: type, count: int = 1) -> list:
        """Wait for `count` received messages of type `kind`, and return all of this type."""
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: len(self.of(kind)) >= count, timeout=HANG_SECONDS
            ), f"only {len(self.of(kind))} of {count} {kind.__name__} came"
        return self.of(kind)

    def wait_aborted(self, requests: Collection[m.RequestId]) -> None:
        """Wait until each of these requests and no other was aborted, once or more."""
        wanted = {*requests}
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: {abort.request_id for abort in self.of(m.Abort)} == wanted,
                timeout=HANG_SECONDS,
            ), f"{self.of(m.Abort)} came, not aborts of {wanted}"

    def _run(self) -> None:
        while (message := self._inbox.get()) is not None:
            with self.arrived:
                self.received.append(message)
                self.arrived.notify_all()
            self._handle(message)

    def _handle(self, message: m.Inbox) -> None:
        match message:
            case m.Submit():
                self._submit(message)
            case m.Abort(request_id):
                submit = self._alive.pop(request_id, None)
                if submit is not None:
                    self._finish(submit, m.FinishReason.ABORT, 0)
            case m.OpenCursor(query) | m.ForkCursor(query):
                self._cursors += 1
                self.deliver(m.CursorOpened(query, self._cursors))
            case m.StatsQuery(query):
                self.deliver(m.StatsReply(query, {"total": 9}, {"free": 2}, {}, {}, {"new": 5}, {}))
            case m.FlushCache(query):
                self.deliver(m.FlushReply(query, 4))
            case m.LoadQuery(query):
                self.deliver(m.LoadReply(query, 0.0123, 3, 16, 0.5, self._draining is not None))
            case m.TreeQuery(query):
                self.deliver(m.TreeReply(query, None))
            case m.Drain():
                self._draining = message
            case m.Undrain():
                if self._draining is not None:
                    self.deliver(m.Drained(self._draining.query_id, at_rest=False))
                self._draining = None
        if self._draining is not None and not self._alive:
            self.deliver(m.Drained(self._draining.query_id))
            self._draining = None

    def _submit(self, submit: m.Submit) -> None:
        if self.reject is not None:
            self.deliver(m.Rejected(submit.request_id, self.reject))
            return
        if submit.prompt_logprobs is not None and len(submit.prompt) > 1:
            self.deliver(scored(submit.request_id, submit.prompt, submit.prompt_logprobs))
        for fork in submit.forks:
            self._submit(replace(submit.of_fork(fork), prompt_logprobs=None))
        tokens = list(self.answer(submit))
        for index, token in enumerate(tokens):
            top = tuple(
                (token + place, -0.5 - place) for place in range(submit.sampling.top_logprobs)
            )
            self.deliver(m.TokenOut(submit.request_id, token, -0.5, 1.5, index, top))
        if self.hold:
            self._alive[submit.request_id] = submit
        else:
            self._finish(submit, m.FinishReason.STOP, len(tokens))

    def _finish(self, submit: m.Submit, reason: m.FinishReason, tokens: int) -> None:
        self.deliver(m.Finished(submit.request_id, reason, usage(len(submit.prompt), tokens)))


class Served(Protocol):
    """The address of a running server, with helpers of its clients."""

    @property
    def address(self) -> str: ...


@dataclass
class Front:
    """An API server under test. http: its HTTP server if front workers answer HTTP as well as gRPC,
    else None."""

    engine: ScriptedEngine
    client: EngineClient
    server: Served
    loop: asyncio.AbstractEventLoop
    channel: grpc.Channel
    http: Served | None = None

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def calls(self) -> GrpcCalls:
        """The gRPC calls of a client without an API key."""
        return GrpcCalls(self.channel)

    def bearing(self, key: str, *more: tuple[str, str]) -> GrpcCalls:
        """Return the gRPC calls of a client with an API key, and more metadata."""
        return GrpcCalls(self.channel, metadata(key, *more))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the server's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_SECONDS)


@contextmanager
def loop_on_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop running on its own thread until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass(frozen=True)
class ScriptedObserver(RequestObserver):
    """An engine observer passing its calls to functions of a test."""

    beginning: Callable[[m.RequestId, RequestContext], object] = lambda request, context: None
    observing: Callable[[Observed], object] = lambda message: None
    counting: Callable[[int], object] = lambda count: None

    def begin(self, request: m.RequestId, request_context: RequestContext) -> None:
        self.beginning(request, request_context)

    def observe(self, message: Observed) -> None:
        self.observing(message)

    def count_tokens(self, count: int) -> None:
        self.counting(count)


@contextmanager
def running_front(
    codec: TextCodec = TOKENS_ONLY,
    config: ServerConfig | None = None,
    queue_limit: int = 4096,
    engine: ScriptedEngine | None = None,
    services: Callable[[EngineClient], Sequence[Service]] | None = None,
    workers: int = 1,
    observer: RequestObserver | None = None,
) -> Iterator[Front]:
    """Yield a real gRPC server on loopback, with an event loop on its own thread. services: replace
    the server's own. workers: number of front workers answering instead, if more than one; then
    each call of `channel` has its own connection. observer: the EngineClient's."""
    config = config or ServerConfig()
    engine = engine or ScriptedEngine()
    if workers > 1:
        from tests.harness.worker_fixtures import running_workers

        with running_workers(codec, config, engine, workers, observer) as front:
            yield front
        return
    with loop_on_a_thread() as loop:
        client = EngineClient(
            engine.post,
            loop,
            observer=observer,
            limits=config.caller_limits,
            queue_limit=queue_limit,
            drain_grace=config.drain_grace,
        )
        engine.deliver = lambda message: client.deliver([message])
        engine.start()

        async def start() -> Server:
            served = services(client) if services else grpc_services(client, codec, config)
            return await start_server(
                "127.0.0.1:0", served, config.access, rotation=client.rotation
            )

        server = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_SECONDS)
        try:
            # Nothing connects before it is used.
            with grpc.insecure_channel(server.address) as channel:
                yield Front(engine, client, server, loop, channel)
        finally:
            asyncio.run_coroutine_threadsafe(server.drain(0), loop).result(HANG_SECONDS)
            engine.stop()
