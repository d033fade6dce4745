"""The service tasuki.v1.Session: conversations continued by new input alone.

load_to_proto(): a node's load as shown to callers: enough to choose between nodes, with little
about other callers. Pure.

read_session_input(): the tokens added to a session's log by one Append, read from its message. Pure
functions of the message, the log's tail and the checkpoint's codec; any thread.
"""

import math
from contextlib import aclosing
from functools import partial

from tasuki.engine.messages import Finished, FinishReason, LoadReply, Purpose, Submit
from tasuki.engine.messages.proto import PULLED
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.callers import NO_KEYS, ApiKeys, Caller
from tasuki.server.auth.limits import HeldBytes, submit_bytes
from tasuki.server.auth.tenants import salt_of
from tasuki.server.engine_client import Answering, EngineClient
from tasuki.server.errors import CallContext, InvalidRequest
from tasuki.server.pictures.node_pictures import Pictures
from tasuki.server.pictures.part_reader import pictures_read
from tasuki.server.request_checks import read_request_id
from tasuki.server.sessions import HeldSessions, SessionInput, Sessions, SessionStore, Tail
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec

from .generate_messages import (
    REQUEST_ID_KEY,
    read_messages,
    read_plain_input,
    read_sampling,
    read_targets,
    read_token_ids,
    with_text_rules,
    write_tokens,
)
from .interceptors import grpc_request_context, metadata_targets, patience_of

_STEPS = 16


def load_to_proto(load: LoadReply) -> pb.SessionLoadResponse:
    response = pb.SessionLoadResponse(
        busy=math.ceil(_STEPS * load.in_flight / load.places) / _STEPS,
        free_kv=math.floor(_STEPS * load.free_kv) / _STEPS,
        draining=load.draining,
    )
    if load.step_seconds is not None:
        response.step_seconds = float(f"{load.step_seconds:.2g}")
    return response


def read_session_input(
    request: pb.SessionAppendRequest,
    tail: Tail,
    salt: bytes,
    codec: TextCodec,
    pictures: Pictures | None = None,
) -> SessionInput:
    """Return the tokens added by one Append request. tail: kind of the session log's end before it.
    salt: salt of the session. pictures: reads those of messages; None: they are refused. Raises
    InvalidRequest, also for empty input, and PromptTooLong."""
    match request.WhichOneof("input"):
        case "messages":
            return _messages(request.messages, tail, salt, codec, pictures)
        case "answer":
            # The log then equals the log after a turn generated here.
            tokens = read_token_ids("answer", request.answer.ids, codec)
            if not len(tokens):
                raise InvalidRequest("answer is empty: leave out a turn that answered nothing")
            return SessionInput(Tail.ANSWER, tokens)
        case _:
            tokens = read_plain_input(request, codec)
            if not len(tokens):
                raise InvalidRequest("input is empty: send text, token_ids or messages")
            return SessionInput(Tail.TOKENS, tokens)


def _messages(
    messages: pb.Messages,
    tail: Tail,
    salt: bytes,
    codec: TextCodec,
    pictures: Pictures | None,
) -> SessionInput:
    renderer = ChatRenderer(codec)
    reader = None if pictures is None else pictures.reader()
    read = read_messages(messages, reader)
    if tail is Tail.EMPTY:
        rendered = renderer.conversation(read, open_answer=False, salt=salt)
    else:
        rendered = renderer.continuation(read, salt=salt)
    if pictures is not None:
        rendered = pictures.placed(rendered, pictures_read(reader), salt, codec.max_tokens)
    closing = tuple(renderer.answer_closing().tolist()) if tail is Tail.ANSWER else ()
    added = rendered.tokens, rendered.marks, closing, rendered.pictures
    return SessionInput(Tail.MESSAGES, *added)


class TurnService(pb_grpc.SessionServicer):
    """The methods Append and Generate of the Session service. They render sessions' logs with texts
    and chat templates. On the event loop's thread."""

    def __init__(
        self,
        engine: Answering,
        codec: TextCodec,
        sessions: Sessions,
        keys: ApiKeys = NO_KEYS,
        held: HeldBytes | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        """Set up the methods. keys: API keys of the callers. The caller owns the session, and a
        call counts against the caller's limits. held: counts the bytes of memory held by calls;
        None: a new count. pictures: reads those of messages; None: they are refused."""
        self._keys = keys
        self._pictures = pictures
        self._held = HeldBytes() if held is None else held
        self._engine = engine
        self._codec = codec
        self._sessions = sessions

    async def Append(
        self, request: pb.SessionAppendRequest, context: CallContext
    ) -> pb.SessionAppendResponse:
        request_context = grpc_request_context(self._keys, context)
        caller = request_context.caller
        await self._engine.admit(caller)
        end = await self._sessions.end(caller, request.session_id)
        with self._held.hold(caller, request.ByteSize()) as hold:
            added = await self._codec.work.run(
                request_context.line,
                partial(
                    read_session_input, request, end.tail, end.salt, self._codec, self._pictures
                ),
                hold.size,
            )
        log = await self._sessions.append(caller, request.session_id, end.tail, added)
        return pb.SessionAppendResponse(appended_tokens=log.tokens, total_tokens=log.total)

    async def Generate(self, request: pb.SessionGenerateRequest, context: CallContext) -> None:
        with self._engine.calls.one():
            await self._generate(request, context)

    async def _generate(self, request: pb.SessionGenerateRequest, context: CallContext) -> None:
        request_context = grpc_request_context(self._keys, context)
        caller, tenant = request_context.caller, request_context.tenant
        await self._engine.admit(caller)
        request_id = read_request_id(request.request_id)
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        sampling = read_sampling(request.sampling, self._codec)
        async with self._sessions.turn(caller, tenant, request.session_id) as turn:
            prompt = turn.prompt
            sampling = await with_text_rules(
                sampling, request.sampling, prompt.tokens, self._codec, request_context.line
            )
            submit = Submit(
                request_id=request_id,
                prompt=prompt.tokens,
                sampling=sampling,
                salt=prompt.salt,
                cursor=prompt.cursor,
                marks=prompt.marks,
                session=prompt.label,
                priority=request.priority,
                patience=patience_of(context),
                targets=read_targets(request.targets).or_else(metadata_targets(context)),
                pictures=prompt.pictures,
            )
            with self._held.hold(caller, request.ByteSize() + submit_bytes(submit)):
                parts = self._engine.generate(submit, request_context)
                answer = await write_tokens(parts, context.write, self._codec.detokenizer())
            if answer.reason is not FinishReason.ABORT:
                turn.keep(answer.token_ids)
        # The turn ends before this message, because a client may append as soon as it reads it.
        await context.write(answer.finished)

    def _caller(self, context: CallContext) -> Caller:
        return grpc_request_context(self._keys, context).caller


class SessionService(TurnService):
    """The whole Session service, over a session store in this process."""

    def __init__(
        self,
        engine: EngineClient,
        codec: TextCodec,
        store: SessionStore,
        keys: ApiKeys = NO_KEYS,
        held: HeldBytes | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        super().__init__(engine, codec, HeldSessions(store, codec), keys, held, pictures)
        self._store = store
        self._engine_client = engine

    async def Open(
        self, request: pb.SessionOpenRequest, context: CallContext
    ) -> pb.SessionOpenResponse:
        request_context = grpc_request_context(self._keys, context)
        salt = salt_of(request_context.tenant, request.cache_salt)
        session = await self._store.open(request_context.caller, salt, request_context.tenant)
        return pb.SessionOpenResponse(session_id=session.id)

    async def Fork(
        self, request: pb.SessionForkRequest, context: CallContext
    ) -> pb.SessionForkResponse:
        session = await self._store.fork(self._caller(context), request.session_id)
        return pb.SessionForkResponse(session_id=session.id)

    async def Close(
        self, request: pb.SessionCloseRequest, context: CallContext
    ) -> pb.SessionCloseResponse:
        self._store.close(self._caller(context), request.session_id)
        return pb.SessionCloseResponse()

    async def Load(
        self, request: pb.SessionLoadRequest, context: CallContext
    ) -> pb.SessionLoadResponse:
        return load_to_proto(await self._engine_client.load())

    async def HandBack(
        self, request: pb.SessionHandBackRequest, context: CallContext
    ) -> pb.SessionHandBackResponse:
        """Hand the session's state back to a prefill node, and return the transfer's figures, if
        any. The call counts as a request of its caller. No turn of the session can run
        meanwhile."""
        request_context = grpc_request_context(self._keys, context)
        caller, tenant = request_context.caller, request_context.tenant
        await self._engine.admit(caller)
        async with self._sessions.turn(caller, tenant, request.session_id) as turn:
            prompt = turn.prompt
            submit = Submit(
                request_id=read_request_id(""),
                prompt=prompt.tokens,
                sampling=SamplingParams(max_new_tokens=1),
                salt=prompt.salt,
                cursor=prompt.cursor,
                session=prompt.label,
                patience=patience_of(context),
                purpose=Purpose.HAND_BACK,
                pictures=prompt.pictures,
            )
            response = pb.SessionHandBackResponse()
            with self._engine.calls.one():
                async with aclosing(self._engine.generate(submit, request_context)) as parts:
                    async for part in parts:
                        if isinstance(part, Finished) and part.usage.pulled is not None:
                            response.pulled.CopyFrom(PULLED.to_wire(part.usage.pulled))
        return response
