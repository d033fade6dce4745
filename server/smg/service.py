"""tokenspeed.grpc.scheduler.TokenSpeedScheduler: the gRPC service spoken by the smg gateway.

The messages come from the package smg-grpc-proto (extra `tasuki[smg]`); this repository has no
copy. The node's role decides the receiver of the gateway's requests (`Answers`). On the event
loop's thread. Invariant: a stream's headers never wait for its first message, because the gateway
would give up the stream.

model_info() and similar functions answer a gateway's questions at registration: model, arguments,
load, tokenizer files.

tokenizer_archive(): a checkpoint's tokenizer and template files as one archive, for a tokenizing
gateway. Pure except for reading the folder. Equal files give equal bytes, so a gateway caching
archives by digest keeps only one.
"""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from google.protobuf.struct_pb2 import Struct  # type: ignore[import-untyped]
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import common_pb2 as common_pb
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc

from tasuki.engine.messages import RequestPhase, StatsReply
from tasuki.pycache._cpp_cache import PAGE_TOKENS
from tasuki.server.auth.callers import NO_KEYS, ApiKeys
from tasuki.server.auth.tenants import RequestContext, salt_of
from tasuki.server.engine_client import Answers, EngineClient
from tasuki.server.errors import CallContext, InvalidRequest
from tasuki.server.grpc.generate_messages import REQUEST_ID_KEY
from tasuki.server.grpc.interceptors import grpc_request_context, grpc_watch_scope
from tasuki.server.request_checks import read_request_id
from tasuki.server.text.grammars.asked_grammar import check_followable
from tasuki.server.text.text_answer import first_look
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.utils.program import package_version

from .gateway_model import GatewayModel
from .generate_messages import GatewayAnswer, GatewayRequest, has_grammar, read_gateway_request
from .kv_events import GatewayEvents, UsableBlocks, namespace_of


def loads_message(stats: StatsReply, max_running: int) -> pb.GetLoadsResponse:
    """Return the gateway's message about the node's load. max_running: largest number of requests
    in one forward."""
    load = scheduler_load(stats, max_running)
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=package_version(),
        dp_rank_count=1,
        loads=[load],
        aggregate=pb.AggregateMetrics(
            total_running_reqs=load.num_running_reqs,
            total_waiting_reqs=load.num_waiting_reqs,
            total_reqs=load.num_total_reqs,
            avg_token_usage=load.token_usage,
            avg_utilization=load.utilization,
        ),
    )


def scheduler_load(stats: StatsReply, max_running: int) -> pb.SchedulerLoad:
    """Return the load of one scheduler for the gateway. Usage counts KV pages: all pages in use,
    and as `active` the pages safe from eviction."""
    total = sum(stats.requests.values())
    waiting = sum(count for phase, count in stats.requests.items() if phase.is_queued)
    running = sum(count for phase, count in stats.requests.items() if phase.is_running)
    pages = stats.pages
    capacity = max(1, pages["total"])
    held = pages["total"] - pages["free"]
    active = held - pages["tree"] + pages["pinned"]
    asked, usable = stats.looked_up_tokens, stats.usable_tokens
    return pb.SchedulerLoad(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=total,
        num_used_tokens=held * PAGE_TOKENS,
        max_total_num_tokens=capacity * PAGE_TOKENS,
        max_running_requests=max_running,
        token_usage=held / capacity,
        active_token_usage=active / capacity,
        cache_hit_rate=usable / asked if asked else 0.0,
        utilization=min(1.0, running / max_running),
        queues=pb.QueueMetrics(
            waiting=waiting, retracted=stats.requests.get(RequestPhase.RETRACTED, 0)
        ),
    )


def model_info(model: GatewayModel) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(
        model_path=str(model.folder),
        tokenizer_path=str(model.folder),
        served_model_name=model.name,
        model_type=model.model_type,
        architectures=model.architectures,
        max_context_length=model.max_tokens,
        max_req_input_len=model.max_tokens - 1,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_ids,
        model_dtype=model.dtype,
    )


def server_info(model: GatewayModel, stats: StatsReply) -> pb.GetServerInfoResponse:
    arguments = Struct()
    arguments.update(
        {
            "model_path": str(model.folder),
            "tokenizer_path": str(model.folder),
            "served_model_name": model.name,
            "context_length": model.max_tokens,
            "block_size": PAGE_TOKENS,
        }
    )
    return pb.GetServerInfoResponse(
        server_args=arguments,
        active_requests=sum(stats.requests.values()),
        max_total_num_tokens=stats.pages["total"] * PAGE_TOKENS,
        tokenspeed_version=f"tasuki {package_version()}",
    )


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
_CHUNK_BYTES = 1 << 20
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def tokenizer_archive(folder: Path) -> bytes:
    """Return a zip archive of the checkpoint's tokenizer and template files, as far as present.
    Raises InvalidRequest if it has no tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        raise InvalidRequest("this checkpoint has no tokenizer.json: give the gateway one")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writing:
        for name in _FILES:
            path = folder / name
            if path.is_file():
                entry = zipfile.ZipInfo(name, date_time=_NO_DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                writing.writestr(entry, path.read_bytes())
    return archive.getvalue()


def archive_chunks(archive: bytes) -> Iterator[common_pb.GetTokenizerChunk]:
    """Yield an archive in chunks. The last chunk has the digest of the whole archive."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), _CHUNK_BYTES):
        last = start + _CHUNK_BYTES >= len(archive)
        yield common_pb.GetTokenizerChunk(
            data=archive[start : start + _CHUNK_BYTES], sha256=digest if last else ""
        )


SERVICE = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"

_POLL_SECONDS = 0.05
# Seconds before the stream begins. A rejection within this time makes the gateway of a pair stop
# the other node's call at once, and its client gets the status. No hand-over gets further in this
# time.
_FIRST_LOOK_SECONDS = 0.005


class GatewayService(pb_grpc.TokenSpeedSchedulerServicer):  # type: ignore[misc]
    def __init__(
        self,
        engine: EngineClient,
        answers: Answers,
        model: GatewayModel,
        codec: TextCodec | None,
        max_batch: int,
        keys: ApiKeys = NO_KEYS,
    ) -> None:
        """answers: receiver of the gateway's requests. codec: codec for stop strings and grammars;
        None if another node samples the answers. max_batch: largest number of requests in one
        forward. keys: keys of the callers; a call counts against its caller's limits."""
        self._keys = keys
        self._engine = engine
        self._answers = answers
        self._model = model
        self._codec = codec
        self._max_batch = max_batch
        self._archive: asyncio.Task[bytes] | None = None

    async def Generate(
        self, request: pb.GenerateRequest, context: CallContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        request_context = grpc_request_context(self._keys, context)
        await self._engine.admit(request_context.caller)
        asked = await self._read(request, request_context)
        request_id = asked.submit.request_id
        answer = GatewayAnswer(
            asked,
            self._model.eos_ids,
            IncrementalDetokenizer(None if self._codec is None else self._codec.tokenizer),
            partial(self._answers.abort, request_id, request_context.caller),
        )
        parts = self._answers.generate(asked.submit, request_context)
        with self._engine.calls.one():
            async with first_look(answer.messages(parts), _FIRST_LOOK_SECONDS) as messages:
                await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
                async for message in messages:
                    yield message

    async def _read(self, request: pb.GenerateRequest, context: RequestContext) -> GatewayRequest:
        read = partial(read_gateway_request, request, self._model, context.tenant, self._codec)
        if self._codec is None or not has_grammar(request):
            return read()
        asked = await self._codec.work.run(context.line, read, request.ByteSize())
        await check_followable(asked.asked, self._codec, context.line)
        return asked

    async def Abort(self, request: pb.AbortRequest, context: CallContext) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequest("request_id is empty: name the request to abort")
        caller = grpc_request_context(self._keys, context).caller
        self._answers.abort(read_request_id(request.request_id), caller)
        return pb.AbortResponse(success=True)

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: CallContext
    ) -> pb.HealthCheckResponse:
        lost = self._engine.lost
        return pb.HealthCheckResponse(healthy=lost is None, message=lost or "")

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: CallContext
    ) -> pb.GetModelInfoResponse:
        return model_info(self._model)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: CallContext
    ) -> pb.GetServerInfoResponse:
        stats = await self._engine.stats()
        return server_info(self._model, stats)

    async def GetLoads(
        self, request: pb.GetLoadsRequest, context: CallContext
    ) -> pb.GetLoadsResponse:
        stats = await self._engine.stats()
        return loads_message(stats, self._max_batch)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: CallContext
    ) -> common_pb2.FlushCacheResponse:
        """Drop all cached pages and checkpoints, except those held by running requests. The reply's
        message has their number."""
        dropped = await self._engine.flush()
        return common_pb2.FlushCacheResponse(
            success=True, message=f"{dropped} pages and checkpoints dropped"
        )

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: CallContext
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        await context.send_initial_metadata(())
        if self._archive is None:
            packing = asyncio.to_thread(tokenizer_archive, self._model.folder)
            self._archive = asyncio.create_task(packing)
        for chunk in archive_chunks(await self._archive):
            yield chunk

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: CallContext
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        """Yield a snapshot of the usable blocks, then their changes. The blocks are those of the
        namespace of the subscriber's requests. If the subscriber's key covers every tenant, they
        are those of all namespaces. The stream ends with the first change after an update of the
        weights."""
        scope = grpc_watch_scope(self._keys, context)
        weights = self._engine.weights
        own = namespace_of(weights.salted(salt_of(scope.tenant, b"")))
        await context.send_initial_metadata(())
        blocks = UsableBlocks(None if scope.others else own)
        events = GatewayEvents(request.start_sequence_number, own)
        watch = self._engine.watch("spelled", _POLL_SECONDS, scope.caller)
        async with aclosing(watch) as batches:
            async for batch in batches:
                if self._engine.weights != weights:
                    # Other names are the subscriber's own now: it subscribes again.
                    return
                changes = blocks.apply(batch)
                if changes:
                    for message in events.batches(changes):
                        yield message
