"""tasuki.v1.Session: conversations that send only what is new."""

from collections.abc import Sequence

import numpy as np

from ..engine.messages import FinishReason, Submit
from ..proto import inference_pb2 as pb
from ..proto import inference_pb2_grpc as pb_grpc
from .answer_stream import REQUEST_ID_KEY, write_tokens
from .api_keys import NO_KEYS, ApiKeys
from .caller import Caller
from .chat_message import ChatTemplateError
from .engine_client import EngineClient
from .errors import CallContext, InvalidField, InvalidRequest, refusals
from .origin import grpc_origin
from .request_reader import (
    check_length,
    read_messages,
    read_plain_input,
    read_request_id,
    read_sampling,
    read_token_ids,
)
from .session_store import Session, SessionStore, Tail
from .tenant import TENANT_KEY, salt_of
from .text_codec import TextCodec


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
        """keys: whose limits a call counts against, and whose its session is."""
        self._keys = keys
        self._engine = engine
        self._codec = codec
        self._store = store

    async def Open(
        self, request: pb.SessionOpenRequest, context: CallContext
    ) -> pb.SessionOpenResponse:
        async with refusals(context):
            origin = grpc_origin(self._keys, context)
            salt = salt_of(origin.tenant, request.cache_salt)
            session = await self._store.open(origin.caller, salt, origin.tenant)
        return pb.SessionOpenResponse(session_id=session.id)

    async def Append(
        self, request: pb.SessionAppendRequest, context: CallContext
    ) -> pb.SessionAppendResponse:
        async with refusals(context):
            session = self._store.idle(self._caller(context), request.session_id)
            before = session.log.length
            match request.WhichOneof("input"):
                case "messages":
                    self._append_messages(session, request.messages)
                case "answer":
                    self._append_answer(session, request.answer.ids)
                case _:
                    self._append_tokens(session, request)
        log = session.log
        return pb.SessionAppendResponse(
            appended_tokens=log.length - before, total_tokens=log.length
        )

    async def Generate(self, request: pb.SessionGenerateRequest, context: CallContext) -> None:
        async with refusals(context):
            request_id = read_request_id(request.request_id)
            await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
            origin = grpc_origin(self._keys, context)
            sampling = read_sampling(request.sampling, self._codec)
            with self._store.turn(origin.caller, request.session_id) as turn:
                session = turn.session
                if origin.tenant != session.tenant:
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
                )
                events = self._engine.generate(submit, origin)
                answer = await write_tokens(events, context.write, self._codec.detokenizer())
                if answer.reason is not FinishReason.ABORT:
                    turn.keep(answer.token_ids)
            # The turn is over first: a client may append as soon as it reads this.
            await context.write(answer.finished)

    async def Fork(
        self, request: pb.SessionForkRequest, context: CallContext
    ) -> pb.SessionForkResponse:
        async with refusals(context):
            session = await self._store.fork(self._caller(context), request.session_id)
        return pb.SessionForkResponse(session_id=session.id)

    async def Close(
        self, request: pb.SessionCloseRequest, context: CallContext
    ) -> pb.SessionCloseResponse:
        async with refusals(context):
            self._store.close(self._caller(context), request.session_id)
        return pb.SessionCloseResponse()

    def _caller(self, context: CallContext) -> Caller:
        return grpc_origin(self._keys, context).caller

    def _append_tokens(self, session: Session, request: pb.SessionAppendRequest) -> None:
        tokens = read_plain_input(request, self._codec)
        if not len(tokens):
            raise InvalidRequest("input is empty: send text, token_ids or messages")
        check_length("session", session.log.length + len(tokens), self._codec)
        session.log.append(tokens)
        session.tail = Tail.TOKENS

    def _append_answer(self, session: Session, ids: Sequence[int]) -> None:
        """As if the turn had been generated here."""
        tokens = read_token_ids("answer", ids, self._codec)
        if not len(tokens):
            raise InvalidRequest("answer is empty: leave out a turn that answered nothing")
        check_length("session", session.log.length + len(tokens), self._codec)
        self._open_answer(session)
        session.log.append(tokens)
        session.tail = Tail.ANSWER

    def _append_messages(self, session: Session, messages: pb.Messages) -> None:
        template = self._codec.require_template()
        log = session.log
        try:
            closing: list[int] = []
            if session.tail is Tail.EMPTY:
                rendered = template.prompt(read_messages(messages), open_answer=False)
            else:
                rendered = template.continuation(read_messages(messages))
            if session.tail is Tail.ANSWER:
                closing = template.answer_closing()
                if closing and log.ends_with(closing[0]):
                    closing = closing[1:]
        except ChatTemplateError as error:
            raise InvalidRequest(str(error)) from error
        added = np.array(closing + rendered.token_ids, dtype=np.int32)
        check_length("session", log.length + len(added), self._codec)
        log.append(added, tuple(len(closing) + mark for mark in rendered.marks))
        session.tail = Tail.MESSAGES

    def _open_answer(self, session: Session) -> None:
        """Messages need the opening of the assistant's turn; it is taken back with the turn."""
        if session.tail is Tail.EMPTY:
            raise InvalidRequest("session has no tokens: append text, token_ids or messages first")
        if session.tail is Tail.MESSAGES:
            try:
                opening = self._codec.require_template().answer_opening()
            except ChatTemplateError as error:
                raise InvalidRequest(str(error)) from error
            session.log.append(np.array(opening, dtype=np.int32))
