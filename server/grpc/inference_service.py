"""tasuki.v1.Inference: one-shot requests, each with its whole prompt."""

from functools import partial

from tasuki.engine.messages import Submit
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.api_keys import NO_KEYS, ApiKeys
from tasuki.server.auth.tenant import salt_of
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import CallContext, InvalidRequest
from tasuki.server.request_checks import read_request_id
from tasuki.server.text.text_codec import TextCodec

from .auth import grpc_request_context, patience_of
from .request_reader import read_prompt, read_sampling
from .response_stream import REQUEST_ID_KEY, write_tokens


class InferenceService(pb_grpc.InferenceServicer):
    """Has no part in sessions. Lives on the event loop's thread."""

    def __init__(self, engine: EngineClient, codec: TextCodec, keys: ApiKeys = NO_KEYS) -> None:
        """keys: identify the caller, whose limits a call counts against."""
        self._keys = keys
        self._engine = engine
        self._codec = codec

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        with self._engine.calls.one():
            await self._generate(request, context)

    async def _generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        request_id = read_request_id(request.request_id)
        # Gateways give up on streams whose headers wait for the first token.
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        request_context = grpc_request_context(self._keys, context)
        self._engine.admit(request_context.caller)
        salt = salt_of(request_context.tenant, request.cache_salt)
        tokens, marks = await self._codec.work.run(partial(read_prompt, request, salt, self._codec))
        submit = Submit(
            request_id=request_id,
            prompt=tokens,
            sampling=read_sampling(request.sampling, self._codec),
            salt=salt,
            marks=marks,
            priority=request.priority,
            patience=patience_of(context),
        )
        parts = self._engine.generate(submit, request_context)
        answer = await write_tokens(parts, context.write, self._codec.detokenizer())
        await context.write(answer.finished)

    async def Abort(self, request: pb.AbortRequest, context: CallContext) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequest("request_id is empty: name the request to abort")
        caller = grpc_request_context(self._keys, context).caller
        self._engine.abort(read_request_id(request.request_id), caller)
        return pb.AbortResponse()
