"""tasuki.v1.Inference: one-shot requests, each with its whole prompt."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from tasuki.engine.messages import PromptScored, Submit
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.api_keys import NO_KEYS, ApiKeys
from tasuki.server.auth.held_bytes import HeldBytes, Hold
from tasuki.server.auth.tenant import salt_of
from tasuki.server.engine_client import Answering
from tasuki.server.errors import CallContext, InvalidRequest
from tasuki.server.replies.kept_bytes import score_bytes, submit_bytes
from tasuki.server.request_checks import checked_prediction, forks_of, read_request_id
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import AnswerPart
from tasuki.utils.loops.together import together

from .auth import grpc_request_context, metadata_targets, patience_of
from .request_reader import (
    read_choices,
    read_prompt,
    read_sampling,
    read_targets,
    with_text_rules,
)
from .response_stream import REQUEST_ID_KEY, write_tokens


class InferenceService(pb_grpc.InferenceServicer):
    """Has no part in sessions. Lives on the event loop's thread."""

    def __init__(
        self,
        engine: Answering,
        codec: TextCodec,
        keys: ApiKeys = NO_KEYS,
        held: HeldBytes | None = None,
    ) -> None:
        """keys: identify the caller, whose limits a call counts against. held: counts the memory of
        calls; None: counts of its own."""
        self._keys = keys
        self._held = HeldBytes() if held is None else held
        self._engine = engine
        self._codec = codec

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        with self._engine.calls.one():
            await self._counted(request, context)

    async def _counted(self, request: pb.GenerateRequest, context: CallContext) -> None:
        """Answer the call. gRPC has read the message already: it is counted from here on, and
        stands in memory until the call's end."""
        caller = grpc_request_context(self._keys, context).caller
        with self._held.hold(caller, request.ByteSize()) as hold:
            await self._generate(request, context, hold)

    async def _generate(
        self, request: pb.GenerateRequest, context: CallContext, hold: Hold
    ) -> None:
        request_id = read_request_id(request.request_id)
        # Gateways give up on streams whose headers wait for the first token.
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        request_context = grpc_request_context(self._keys, context)
        await self._engine.admit(request_context.caller)
        salt = salt_of(request_context.tenant, request.cache_salt)
        prompt = await self._codec.work.run(
            request_context.line, partial(read_prompt, request, salt, self._codec), hold.size
        )
        sampling = read_sampling(request.sampling, self._codec, least_new_tokens=0)
        sampling = await with_text_rules(
            sampling, request.sampling, prompt.tokens, self._codec, request_context.line
        )
        choices = range(read_choices(request))
        asks_scores = request.HasField("prompt_logprobs")
        submit = Submit(
            request_id=request_id,
            prompt=prompt.tokens,
            sampling=sampling,
            salt=salt,
            marks=prompt.marks,
            message_end=prompt.message_end,
            priority=request.priority,
            patience=patience_of(context),
            targets=read_targets(request.targets).or_else(metadata_targets(context)),
            prompt_logprobs=request.prompt_logprobs if asks_scores else None,
            forks=forks_of(request_id, choices, sampling.seed),
            prediction=checked_prediction(request.prediction, self._codec),
        )
        hold.grow(submit_bytes(submit) + score_bytes(submit))
        scores: list[PromptScored] = []
        taken = [scores.append if asks_scores else None]
        writing = asyncio.Lock()

        async def answer(choice: int, parts: AsyncGenerator[AnswerPart, None]) -> None:
            async def write(response: pb.GenerateResponse) -> None:
                response.choice = choice
                # gRPC takes one message at a time.
                async with writing:
                    await context.write(response)

            detokenizer = self._codec.detokenizer()
            shown = () if choice else scores
            await write((await write_tokens(parts, write, detokenizer, shown)).finished)

        sinks = [None for _ in choices]
        asking = self._engine.generate_all([submit], request_context, sinks, taken)
        async with asking as answers:
            await together([answer(*pair) for pair in enumerate(answers)])

    async def Abort(self, request: pb.AbortRequest, context: CallContext) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequest("request_id is empty: name the request to abort")
        caller = grpc_request_context(self._keys, context).caller
        self._engine.abort(read_request_id(request.request_id), caller)
        return pb.AbortResponse()
