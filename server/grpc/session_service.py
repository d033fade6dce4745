"""tasuki.v1.Session: conversations that send only what is new."""

from functools import partial

from tasuki.engine.messages import FinishReason, Submit
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.api_keys import NO_KEYS, ApiKeys
from tasuki.server.auth.caller import Caller
from tasuki.server.auth.tenant import TENANT_KEY, salt_of
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import CallContext, InvalidField, InvalidRequest, SessionBusy
from tasuki.server.request_checks import check_length, read_request_id
from tasuki.server.sessions.session_store import Session, SessionStore, Tail
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec

from .auth import grpc_request_context, patience_of
from .request_reader import read_sampling
from .response_stream import REQUEST_ID_KEY, write_tokens
from .session_input import read_session_input


class SessionService(pb_grpc.SessionServicer):
    """Joins the token logs of a SessionStore with text and templates. Lives on the event loop's
    thread."""

    def __init__(
        self,
        engine: EngineClient,
        codec: TextCodec,
        store: SessionStore,
        keys: ApiKeys = NO_KEYS,
    ) -> None:
        """keys: identify the caller, who owns the session and whose limits a call counts
        against."""
        self._keys = keys
        self._engine = engine
        self._codec = codec
        self._store = store

    async def Open(
        self, request: pb.SessionOpenRequest, context: CallContext
    ) -> pb.SessionOpenResponse:
        request_context = grpc_request_context(self._keys, context)
        salt = salt_of(request_context.tenant, request.cache_salt)
        session = await self._store.open(request_context.caller, salt, request_context.tenant)
        return pb.SessionOpenResponse(session_id=session.id)

    async def Append(
        self, request: pb.SessionAppendRequest, context: CallContext
    ) -> pb.SessionAppendResponse:
        caller = self._caller(context)
        self._engine.admit(caller)
        before_reading = self._store.idle(caller, request.session_id)
        tail, salt = before_reading.tail, before_reading.salt
        added = await self._codec.work.run(
            partial(read_session_input, request, tail, salt, self._codec)
        )
        # Other calls may have changed it meanwhile.
        session = self._store.idle(caller, request.session_id)
        if session.tail is not tail:
            raise SessionBusy(
                "session_id has changed while this was read: append one thing after the other"
            )
        before = session.log.length
        tokens, marks = added.behind(session.log)
        check_length("session", before + len(tokens), self._codec)
        if added.tail is Tail.ANSWER:
            self._open_answer(session)
        session.log.append(tokens, marks)
        session.tail = added.tail
        log = session.log
        return pb.SessionAppendResponse(
            appended_tokens=log.length - before, total_tokens=log.length
        )

    async def Generate(self, request: pb.SessionGenerateRequest, context: CallContext) -> None:
        with self._engine.calls.one():
            await self._generate(request, context)

    async def _generate(self, request: pb.SessionGenerateRequest, context: CallContext) -> None:
        request_context = grpc_request_context(self._keys, context)
        self._engine.admit(request_context.caller)
        request_id = read_request_id(request.request_id)
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        sampling = read_sampling(request.sampling, self._codec)
        with self._store.turn(request_context.caller, request.session_id) as turn:
            session = turn.session
            if request_context.tenant != session.tenant:
                raise InvalidField(
                    TENANT_KEY, "must name the tenant that the session was opened for"
                )
            self._open_answer(session)
            submit = Submit(
                request_id=request_id,
                prompt=session.log.tokens(),
                sampling=sampling,
                salt=session.salt,
                cursor=await self._store.cursor(session),
                marks=session.log.marks,
                session=session.label,
                priority=request.priority,
                patience=patience_of(context),
            )
            parts = self._engine.generate(submit, request_context)
            answer = await write_tokens(parts, context.write, self._codec.detokenizer())
            if answer.reason is not FinishReason.ABORT:
                turn.keep(answer.token_ids)
        # The turn is over first: a client may append as soon as it reads this.
        await context.write(answer.finished)

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

    def _caller(self, context: CallContext) -> Caller:
        return grpc_request_context(self._keys, context).caller

    def _open_answer(self, session: Session) -> None:
        """After messages, append the opening of the assistant's turn. A turn that is taken back
        takes the opening with it."""
        if session.tail is Tail.EMPTY:
            raise InvalidRequest("session has no tokens: append text, token_ids or messages first")
        if session.tail is Tail.MESSAGES:
            session.log.append(ChatRenderer(self._codec).answer_opening())
