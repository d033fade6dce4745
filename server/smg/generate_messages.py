"""Reader of a gateway's GenerateRequest, and writer of the answer as GenerateResponse messages.

The reader rejects a request with the wrong field's name and the fix. Pure except for random seeds.
A request with a grammar may take seconds, so it is read on a codec's thread. An unsupported field
is rejected if it would change the answer.

GatewayAnswer converts the engine's answer to GenerateResponse messages. Owns the answer so far.
Makes no gRPC calls itself. One answer, one thread. Invariant: a stop token is sent only if the
request keeps it. Nothing is sent after a stop string. The counts include every token sampled up to
the answer's end.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb

from tasuki.engine.messages import (
    Finished,
    FinishReason,
    GatewayTransfer,
    Submit,
    TokenOut,
    Tokens,
    TransferId,
)
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import MAX_BIASES, MAX_TOP_LOGPROBS, SamplingParams
from tasuki.model.ops.sampling.reference import stop_ids
from tasuki.server.auth.tenants import salt_of
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.request_checks import (
    MAX_STOP_TOKENS,
    asked_sampling,
    check_prompt_ids,
    check_stops,
    check_vocabulary,
    read_request_id,
)
from tasuki.server.text.grammars.asked_grammar import (
    AskedGrammar,
    of_schema,
    of_text,
    placed,
    thinking_at_end,
)
from tasuki.server.text.grammars.structural_tag import of_structural_tag
from tasuki.server.text.stop_strings import StopStrings
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart

from .gateway_model import GatewayModel

# By field: the values equal to the default.
_WITHOUT_EFFECT: dict[str, tuple[float, ...]] = {"n": (0, 1)}


@dataclass(frozen=True)
class GatewayRequest:
    """A parsed request of a gateway. stops: stop strings of the answer. streams: send chunks before
    the complete message. keeps_stop_token: send the stop token too, as the answer's last token.
    asked: grammar of the answer, not yet compiled; None without a grammar, or if another node
    samples the answer."""

    submit: Submit
    stops: tuple[str, ...]
    streams: bool
    wants_logprobs: bool
    keeps_stop_token: bool
    asked: AskedGrammar | None = None


def has_grammar(request: pb.GenerateRequest) -> bool:
    return request.sampling_params.WhichOneof("constraint") is not None


def read_gateway_request(
    request: pb.GenerateRequest,
    model: GatewayModel,
    tenant: str | None = None,
    codec: TextCodec | None = None,
) -> GatewayRequest:
    """Return the parsed request of a gateway. tenant: tenant of the caller; part of the cache salt.
    codec: codec of this node, if it samples the answer; None: another node gets the same request,
    samples and checks the grammar. Raises InvalidRequest."""
    # Before the prompt: its ids have placeholders for such inputs.
    if request.HasField("mm_inputs") or request.HasField("encode_bootstrap_info"):
        raise InvalidField("mm_inputs", "is not supported here: this model reads text only")
    prompt = _prompt(request, model)
    if not 0 <= request.top_logprobs_num <= MAX_TOP_LOGPROBS:
        raise InvalidField("top_logprobs_num", f"must be in [0, {MAX_TOP_LOGPROBS}]")
    if request.token_ids_logprob:
        raise InvalidField("token_ids_logprob", "is not supported here: leave it out")
    if request.HasField("logprob_start_len") and request.logprob_start_len >= 0:
        raise InvalidField("logprob_start_len", "is not supported here: prompts have no logprobs")
    wanted = request.sampling_params
    sampling = _sampling(wanted, model, model.max_tokens - len(prompt), request.top_logprobs_num)
    asked = _asked_grammar(wanted)
    return GatewayRequest(
        submit=Submit(
            request_id=read_request_id(request.request_id),
            prompt=prompt,
            sampling=replace(sampling, grammar=_grammar(asked, prompt, codec)),
            salt=salt_of(tenant, b""),
            gateway_transfer=_transfer(request),
        ),
        stops=check_stops("sampling_params.stop", wanted.stop),
        streams=request.stream,
        wants_logprobs=request.return_logprob,
        keeps_stop_token=wanted.no_stop_trim,
        asked=None if codec is None else asked,
    )


def _prompt(request: pb.GenerateRequest, model: GatewayModel) -> Tokens:
    given = request.tokenized.input_ids
    if not len(given):
        raise InvalidRequest("tokenized.input_ids is empty: send at least one token")
    # Checked before the copy, because copying a large message takes a tenth of a second.
    if len(given) >= model.max_tokens:
        raise PromptTooLong(
            f"tokenized.input_ids has {len(given)} tokens, and {model.max_tokens} fit with the "
            "answer: send less"
        )
    ids = np.array(given, dtype=np.int64)
    check_prompt_ids("tokenized.input_ids", ids, model.vocab_size, model.placeholders)
    return ids.astype(np.int32)


def _transfer(request: pb.GenerateRequest) -> GatewayTransfer | None:
    if not request.HasField("kv_bootstrap_info"):
        return None
    bootstrap = request.kv_bootstrap_info
    if bootstrap.bootstrap_room < 1:
        raise InvalidField("kv_bootstrap_info.bootstrap_room", "must be a positive number")
    host = bootstrap.bootstrap_host
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return GatewayTransfer(
        TransferId(bootstrap.bootstrap_room), f"{host}:{bootstrap.bootstrap_port}"
    )


def _sampling(
    wanted: pb.SamplingParams, model: GatewayModel, free_tokens: int, top_logprobs: int
) -> SamplingParams:
    """Return the engine's sampling parameters for the gateway's. free_tokens: largest number of
    tokens after the prompt; the limit of new tokens if the request sets no `max_new_tokens`.
    top_logprobs: number of likeliest tokens reported with each token."""
    for name, harmless in _WITHOUT_EFFECT.items():
        if getattr(wanted, name) not in harmless:
            raise InvalidField(f"sampling_params.{name}", f"must be left out, or {harmless[-1]}")
    if wanted.custom_params.fields:
        raise InvalidField("sampling_params.custom_params", "is not supported here: leave it out")
    if len(wanted.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidField("sampling_params.stop_token_ids", f"may hold at most {MAX_STOP_TOKENS}")
    stops = np.array(wanted.stop_token_ids, dtype=np.int64)
    check_vocabulary("sampling_params.stop_token_ids", stops, model.vocab_size)
    seed = wanted.sampling_seed if wanted.HasField("sampling_seed") else secrets.randbits(62)
    try:
        return asked_sampling(
            model.vocab_size,
            max_new_tokens=wanted.max_new_tokens
            if wanted.HasField("max_new_tokens")
            else free_tokens,
            temperature=wanted.temperature if wanted.HasField("temperature") else 1.0,
            # Gateways send -1 for "every token".
            top_k=max(0, wanted.top_k),
            top_p=wanted.top_p if wanted.HasField("top_p") else 1.0,
            seed=seed % 2**62,
            stop_token_ids=tuple(stops.tolist()),
            ignore_eos=wanted.ignore_eos,
            min_p=wanted.min_p,
            presence_penalty=wanted.presence_penalty,
            frequency_penalty=wanted.frequency_penalty,
            # Gateways send 0 for "none".
            repetition_penalty=wanted.repetition_penalty or 1.0,
            min_tokens=wanted.min_new_tokens,
            logit_bias=_bias(wanted),
            top_logprobs=top_logprobs,
        )
    except ValueError as error:
        raise InvalidRequest(f"sampling_params.{error}") from error


def _grammar(asked: AskedGrammar | None, prompt: Tokens, codec: TextCodec | None) -> Grammar | None:
    """Return the grammar for the engine. It holds only after the thinking, if the prompt ends with
    an opened thinking tag. smg's reasoning parsers split the answer at the same place."""
    if codec is None:
        return None
    return placed(asked, thinking_at_end(prompt, codec), codec)


def _asked_grammar(wanted: pb.SamplingParams) -> AskedGrammar | None:
    name = wanted.WhichOneof("constraint")
    field = f"sampling_params.{name}"
    match name:
        case "json_schema":
            return of_schema(field, wanted.json_schema)
        case "regex":
            return of_text(field, GrammarKind.REGEX, wanted.regex)
        case "ebnf_grammar":
            return of_text(field, GrammarKind.LARK, wanted.ebnf_grammar)
        case "structural_tag":
            return of_structural_tag(field, wanted.structural_tag)
        case _:
            return None


def _bias(wanted: pb.SamplingParams) -> tuple[tuple[int, float], ...]:
    """Return the pairs of token id and bias in `logit_bias`, sorted by id. In the message the ids
    are text. Raises InvalidField."""
    if len(wanted.logit_bias) > MAX_BIASES:
        raise InvalidField(
            "sampling_params.logit_bias",
            f"must hold at most {MAX_BIASES} tokens, not {len(wanted.logit_bias)}",
        )
    found = {}
    for name, bias in wanted.logit_bias.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidField(
                "sampling_params.logit_bias", f"must name token ids, not {name!r:.40}"
            )
        found[int(name)] = bias
    return tuple(sorted(found.items()))


class GatewayAnswer:
    def __init__(
        self,
        asked: GatewayRequest,
        eos_ids: tuple[int, ...],
        detokenizer: IncrementalDetokenizer,
        abort: Callable[[], None],
    ) -> None:
        """eos_ids: ids of the tokens ending an answer. abort: function to make the engine end this
        request early; the engine still sends its Finished."""
        self._asked = asked
        self._abort = abort
        self._stop_ids = stop_ids(asked.submit.sampling, eos_ids)
        self._detokenizer = detokenizer
        self._stops = StopStrings(asked.stops)
        self._tokens: list[TokenOut] = []
        self._made = 0

    async def messages(
        self, parts: AsyncGenerator[AnswerPart, None]
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield the answer's messages: chunks if the request streams, then one complete message.
        parts: the engine's answer. Raises the exceptions of `parts`."""
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Finished):
                    yield self._complete(part)
                    return
                if self._stops.found:
                    continue
                shown = [token for token in part if self._shows(token)]
                self._tokens += shown
                if shown and self._asked.streams:
                    yield self._chunk(shown)
                if self._stops.found:
                    self._abort()

    def _shows(self, token: TokenOut) -> bool:
        """Count the answer's next token, and search its text for stop strings. Return True if the
        token is sent to the gateway."""
        if self._stops.found:
            return False
        self._made += 1
        if self._asked.stops:
            text = self._detokenizer.push(token.token)
            if self._made > self._asked.submit.sampling.min_tokens:
                self._stops.push(text)
        return token.token not in self._stop_ids or self._asked.keeps_stop_token

    def _chunk(self, tokens: list[TokenOut]) -> pb.GenerateResponse:
        chunk = pb.GenerateStreamChunk(
            token_ids=[token.token for token in tokens],
            prompt_tokens=len(self._asked.submit.prompt),
            completion_tokens=self._made,
        )
        if self._asked.wants_logprobs:
            chunk.output_logprobs.CopyFrom(_logprobs(tokens))
        return pb.GenerateResponse(request_id=self._asked.submit.request_id, chunk=chunk)

    def _complete(self, finished: Finished) -> pb.GenerateResponse:
        hit = finished.usage.hit
        reason = FinishReason.STOP if self._stops.found else finished.reason
        complete = pb.GenerateComplete(
            output_ids=[token.token for token in self._tokens],
            finish_reason=reason.value,
            prompt_tokens=len(self._asked.submit.prompt),
            completion_tokens=self._made,
            cached_tokens=0 if hit is None else hit.usable_tokens,
        )
        if self._asked.wants_logprobs:
            complete.output_logprobs.CopyFrom(_logprobs(self._tokens))
        return pb.GenerateResponse(request_id=self._asked.submit.request_id, complete=complete)


def _logprobs(tokens: list[TokenOut]) -> pb.OutputLogProbs:
    return pb.OutputLogProbs(
        token_logprobs=[token.logprob for token in tokens],
        token_ids=[token.token for token in tokens],
        top_logprobs=[_top(token) for token in tokens] if any(t.top for t in tokens) else None,
    )


def _top(token: TokenOut) -> pb.TopLogProbs:
    return pb.TopLogProbs(
        values=[logprob for _, logprob in token.top], token_ids=[other for other, _ in token.top]
    )
